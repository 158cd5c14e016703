"""A function of tensors on the card, compiled once for any sizes of some dims.

Each form of the arguments (dtypes, other sizes, strides) is traced with tensors that are made up,
no two named sizes alike, and without guards: a graph of sizes that are symbols holds for all of
them, 1 included, so nothing is looked at again and nothing is compiled while a model serves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from openspyre.errors import BrokenInvariant

# Sizes of the tensors that are traced, by the order in which dims are first named.
_MADE_UP = (7, 3, 5, 11, 13, 17, 19)
Dims = Sequence[str | None]
Form = tuple[Any, ...]


class OneGraph:
    """Calls a function through the compiler.

    Args:
        function: takes tensors of one device and returns tensors or writes to its arguments.
        dims: for each argument, the name of each dim that may have any size, None for others.
    """

    def __init__(self, function: FunctionType, *dims: Dims) -> None:
        self.function, self.dims = function, tuple(map(tuple, dims))
        self._compiled: dict[Form, Callable[..., Any]] = {}
        names = dict.fromkeys(name for of_one in self.dims for name in of_one if name is not None)
        self._sizes = dict(zip(names, _MADE_UP, strict=False))

    @property
    def graphs(self) -> int:
        """How many forms of arguments have been compiled."""
        return len(self._compiled)

    def __call__(self, *arguments: Tensor) -> Any:
        form = tuple(map(_form, arguments, self.dims))
        compiled = self._compiled.get(form)
        if compiled is None:
            compiled = self._compiled[form] = self._compile(arguments, form)
        return compiled(*arguments)

    def _compile(self, arguments: Sequence[Tensor], form: Form) -> Callable[..., Any]:
        number = len(self._compiled)
        code = self.function.__code__.replace(co_name=f"{self.function.__name__}_{number}")
        # Dynamo keeps what it has compiled by code: without guards, each form needs its own.
        fresh = FunctionType(
            code, self.function.__globals__, code.co_name, None, self.function.__closure__
        )
        compiled: Callable[..., Any] = torch.compile(
            fresh,
            fullgraph=True,
            options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
        )
        compiled(*map(self._made_up, arguments, self.dims))
        return compiled

    def _made_up(self, argument: Tensor, dims: Dims) -> Tensor:
        """A tensor of zeros of the same form, with sizes of our own in the named dims."""
        size = [
            n if name is None else self._sizes[name]
            for n, name in zip(argument.shape, dims, strict=True)
        ]
        stride = _strides(argument, dims) or argument.new_empty(size, device="meta").stride()
        extent = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        made = argument.new_zeros(extent).as_strided(size, stride)
        for dim, name in enumerate(dims):
            if name is not None:
                torch._dynamo.mark_dynamic(made, dim)
        return made


def _form(argument: Tensor, dims: Dims) -> Form:
    fixed = tuple(n for n, name in zip(argument.shape, dims, strict=True) if name is None)
    return argument.dtype, argument.device, fixed, _strides(argument, dims)


def _strides(argument: Tensor, dims: Dims) -> tuple[int, ...] | None:
    """Strides that are no consequence of the sizes; None for a contiguous tensor."""
    return None if argument.is_contiguous() else argument.stride()


def one_graph(function: Callable[..., Any], *dims: Dims) -> OneGraph:
    """A OneGraph of a plain Python function."""
    if not isinstance(function, FunctionType):
        raise BrokenInvariant(f"{function!r} has no code of its own")
    return OneGraph(function, *dims)
