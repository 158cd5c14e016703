"""A function of tensors on the card, compiled once for any sizes of some dims.

Each form of the arguments (dtypes, other sizes, strides) is traced with tensors that are made up,
no two named sizes alike, and without guards: a graph of sizes that are symbols holds for all of
them, 1 included, so nothing is looked at again and no graph is made while a model serves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from openspyre.errors import BrokenInvariant

# Sizes of the tensors that are traced, by the order in which dims are first named.
_MADE_UP = (7, 3, 5, 11, 13, 17, 19)
Dims = Sequence[str | None]


@dataclass(frozen=True, slots=True)
class Form:
    """What a graph is compiled for: all of an argument but the sizes of its named dims.

    Attributes:
        sizes: None in named dims.
        strides: None in dims of one element, where a stride means nothing.
    """

    dtype: torch.dtype
    device: torch.device
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]

    @staticmethod
    def of(argument: Tensor, dims: Dims) -> Form:
        shape, strides = argument.shape, argument.stride()
        return Form(
            argument.dtype,
            argument.device,
            tuple(n if name is None else None for n, name in zip(shape, dims, strict=True)),
            tuple(None if n == 1 else s for n, s in zip(shape, strides, strict=True)),
        )

    def holds_for(self, other: Form) -> bool:
        """Whether a graph for this form is right for another one."""
        same = (self.dtype, self.device, self.sizes) == (other.dtype, other.device, other.sizes)
        return same and all(
            b is None or a == b for a, b in zip(self.strides, other.strides, strict=True)
        )

    def example(self, dims: Dims, sizes: Mapping[str, int]) -> Tensor:
        """A tensor of zeros of this form with these sizes; dense where a stride means nothing."""
        shape: list[int] = []
        strides: list[int] = []
        for n, name, own in reversed(list(zip(self.sizes, dims, self.strides, strict=True))):
            dense = strides[0] * shape[0] if strides else 1
            strides.insert(0, dense if own is None else own)
            shape.insert(0, sizes[name] if name is not None else n or 0)
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        made = torch.zeros(extent, dtype=self.dtype, device=self.device).as_strided(shape, strides)
        for dim, name in enumerate(dims):
            if name is not None:
                torch._dynamo.mark_dynamic(made, dim)
        return made


class OneGraph:
    """Calls a function through the compiler.

    Args:
        function: takes tensors of one device and writes to some of them.
        dims: for each argument, the name of each dim that may have any size, None for others.
    """

    def __init__(self, function: FunctionType, *dims: Dims) -> None:
        self.function, self.dims = function, dims
        self.graphs = 0
        self._compiled: dict[tuple[Form, ...], Callable[..., Any]] = {}
        names = dict.fromkeys(name for of_one in dims for name in of_one if name is not None)
        self._sizes = dict(zip(names, _MADE_UP, strict=False))
        _all.append(self)

    def __call__(self, *arguments: Tensor) -> None:
        self.prepared(*arguments)(*arguments)

    def prepared(self, *arguments: Tensor) -> Callable[..., Any]:
        """The graph for arguments of this form, compiled if there is none yet; does not run it."""
        forms = tuple(map(Form.of, arguments, self.dims))
        found = self._compiled.get(forms)
        if found is None:
            alike = [
                graph
                for known, graph in self._compiled.items()
                if all(a.holds_for(b) for a, b in zip(known, forms, strict=True))
            ]
            found = self._compiled[forms] = alike[0] if alike else self._compile(forms)
        return found

    def _compile(self, forms: Sequence[Form]) -> Callable[..., Any]:
        self.graphs += 1
        # Dynamo keeps what it has compiled by code: without guards, each form needs its own. What
        # it has seen of sizes it keeps by name and line: forms of one name would share theirs, and
        # sizes in which they differ become symbols.
        name = f"{self.function.__name__}_{compiled_graphs()}"
        code = self.function.__code__.replace(co_name=name)
        fresh = FunctionType(code, self.function.__globals__, name, None, self.function.__closure__)
        compiled: Callable[..., Any] = torch.compile(
            fresh,
            fullgraph=True,
            options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
        )
        examples = [f.example(d, self._sizes) for f, d in zip(forms, self.dims, strict=True)]
        compiled(*examples)
        self._compiled[tuple(map(Form.of, examples, self.dims))] = compiled
        return compiled


_all: list[OneGraph] = []


def one_graph(function: Callable[..., Any], *dims: Dims) -> OneGraph:
    """A OneGraph of a plain Python function."""
    if not isinstance(function, FunctionType):
        raise BrokenInvariant(f"{function!r} has no code of its own")
    return OneGraph(function, *dims)


def compiled_graphs() -> int:
    """How many graphs have been compiled here in this process."""
    return sum(graph.graphs for graph in _all)
