"""A function of tensors on the card, compiled once for any sizes of some dims.

Each form of the arguments (dtypes, other sizes, strides) is traced with tensors that are made up,
no two named sizes alike, and without guards: a graph of sizes that are symbols holds for all of
them, 1 included, so nothing is looked at again and no graph is made while a model serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from openspyre.errors import BrokenInvariant
from openspyre.runtime.launch import Kernel, programs_of
from openspyre.runtime.rehearsal import in_place_of_launches, make_ready_for
from openspyre.runtime.sizes import Range

# Sizes of the tensors that are traced: each named dim has one that nothing else has.
_MADE_UP = (7, 3, 5, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83)
Dims = Sequence[str | None]
Box = Mapping[str, Range]
"""Of each named dim, the sizes that one program serves."""


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


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel that a graph launches.

    Attributes:
        sizes: those of its symbols when it was traced.
        dims: the named dims that some of its symbols are, by symbol.
    """

    kernel: Kernel
    sizes: tuple[int, ...]
    dims: Mapping[str, str]

    def make_ready(self, box: Box) -> None:
        """One program for the sizes of a box."""
        ranges = {symbol: box[dim] for symbol, dim in self.dims.items() if dim in box}
        make_ready_for(self.kernel, ranges, self.sizes)


@dataclass(frozen=True, slots=True)
class Traced:
    """A compiled graph and the kernels that it launches."""

    run: Callable[..., Any]
    calls: tuple[Call, ...]


class OneGraph:
    """Calls a function through the compiler.

    Args:
        function: takes tensors of one device and writes to some of them.
        dims: for each argument, the name of each dim that may have any size, None for others.
    """

    def __init__(self, function: FunctionType, *dims: Dims) -> None:
        self.function, self.dims = function, dims
        self.graphs = 0
        self._compiled: dict[tuple[Form, ...], Traced] = {}
        self._names = tuple(dict.fromkeys(name for of in dims for name in of if name is not None))
        self._ready: set[tuple[Kernel, tuple[tuple[str, Range], ...]]] = set()
        _all.append(self)

    def __call__(self, *arguments: Tensor) -> None:
        self.prepared(*arguments)(*arguments)

    def prepared(self, *arguments: Tensor) -> Callable[..., Any]:
        """The graph for arguments of this form, compiled if there is none yet; does not run it."""
        return self._traced(arguments).run

    def make_ready(self, boxes: Iterable[Box], *arguments: Tensor) -> None:
        """Makes a program for each box, of the graph for arguments of this form.

        No call with sizes in one of them makes a program later.
        """
        calls = self._traced(arguments).calls
        for box in boxes:
            for call in calls:
                key = (call.kernel, tuple(sorted(box.items())))
                if key not in self._ready:
                    self._ready.add(key)
                    call.make_ready(box)

    def _traced(self, arguments: Sequence[Tensor]) -> Traced:
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

    def _compile(self, forms: Sequence[Form]) -> Traced:
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
        sizes = self._made_up(forms)
        examples = [f.example(d, sizes) for f, d in zip(forms, self.dims, strict=True)]
        launched: dict[Kernel, tuple[int, ...]] = {}
        with in_place_of_launches(launched.__setitem__):
            compiled(*examples)
        names = {size: dim for dim, size in sizes.items()}
        traced = Traced(compiled, tuple(_call(k, s, names) for k, s in launched.items()))
        self._compiled[tuple(map(Form.of, examples, self.dims))] = traced
        return traced

    def _made_up(self, forms: Sequence[Form]) -> dict[str, int]:
        """A size for each named dim, that nothing else in these forms has."""
        taken = {n for form in forms for n in (*form.sizes, *form.strides)}
        return dict(zip(self._names, (n for n in _MADE_UP if n not in taken), strict=False))


def _call(kernel: Kernel, sizes: tuple[int, ...], names: Mapping[int, str]) -> Call:
    symbols = programs_of(kernel).region.symbols
    named = {s: names[n] for s, n in zip(symbols, sizes, strict=True) if n in names}
    return Call(kernel, sizes, named)


_all: list[OneGraph] = []


def one_graph(function: Callable[..., Any], *dims: Dims) -> OneGraph:
    """A OneGraph of a plain Python function."""
    if not isinstance(function, FunctionType):
        raise BrokenInvariant(f"{function!r} has no code of its own")
    return OneGraph(function, *dims)


def compiled_graphs() -> int:
    """How many graphs have been compiled here in this process."""
    return sum(graph.graphs for graph in _all)
