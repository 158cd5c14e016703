"""`openspyre.hint`: decisions of the user's for the kernels that a context compiles.

A hint becomes part of the kernels' text, so program caches, packages and captures hold it. Dynamo
guards on the types of the torch function modes in force: a mode of a type of its own for every
hint makes it compile a function again where another hint, or none, is in force.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch._inductor.virtualized import V
from torch.overrides import TorchFunctionMode

import openspyre
from openspyre.errors import InvalidHint
from openspyre.ir.kernel import Fixed, Hint, Kernel, Role, Space
from openspyre.settings import settings
from openspyre.spec import SPYRE_CARD_V1

openspyre.require()

_SPACES = {space.value: space for space in Space}


@dataclass(frozen=True, slots=True)
class _Told:
    """What one context says, and to which kernels."""

    hints: tuple[Hint, ...]
    weights: Space | None
    kernel: str

    def __str__(self) -> str:
        said = list(map(str, self.hints))
        if self.weights is not None:
            said.append(f"weights: {self.weights.value}")
        return "; ".join(said) + f" of {self.kernel}"


_told: ContextVar[tuple[_Told, ...]] = ContextVar("told", default=())


class _Mode(TorchFunctionMode):
    """Changes nothing; its type says what is told."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


@functools.cache
def _mode_type(text: str) -> type[_Mode]:
    return type("Hint", (_Mode,), {"__doc__": text})


@contextmanager
def hint(
    division: Mapping[str, int],
    tile: Mapping[str, int],
    residency: Mapping[str, str],
    weights: str | None,
    kernel: str,
) -> Iterator[None]:
    """See `openspyre.hint`."""
    counts = [(Fixed.DIVISION, *item) for item in division.items()]
    counts += [(Fixed.TILE, *item) for item in tile.items()]
    hints = [_counted(*count) for count in counts]
    hints += [_placed(*item) for item in residency.items()]
    if not hints and weights is None:
        raise InvalidHint(
            "the hint says nothing", hint='division={"i0": 8}, tile=, residency=, weights="lx"'
        )
    told = _Told(tuple(hints), None if weights is None else _space("weights", weights), kernel)
    token = _told.set((*_told.get(), told))
    try:
        with _mode_type(str(told))():
            yield
    finally:
        _told.reset(token)


def hinted(kernel: Kernel) -> Kernel:
    """The kernel with the hints in force for it; an inner context's come before an outer one's."""
    found: dict[tuple[Fixed, str], Hint] = {}
    weights = Space.LX if settings().keep_weights else Space.DEVICE
    for told in _told.get():
        if fnmatchcase(kernel.name, told.kernel):
            found.update({(h.what, h.name): h for h in told.hints})
            weights = told.weights or weights
    kept = weights_of(kernel) if weights is Space.LX else ()
    return replace(kernel, hints=tuple(found.values()), weights=kept)


def weights_of(kernel: Kernel) -> tuple[str, ...]:
    """The arguments of a kernel of the graph in force that seldom change: parameters, buffers and
    constants that it only reads.
    """
    names = set(V.graph.constants)
    context = torch._guards.TracingContext.try_get()
    if context is not None and context.fw_metadata is not None and not V.graph.is_backward:
        inputs = list(V.graph.graph_inputs)
        still = context.fw_metadata.static_input_indices
        names |= {inputs[number] for number in still if number < len(inputs)}
    tensors = kernel.tensors
    return tuple(a for a in kernel.arguments if a in names and tensors[a].role is Role.INPUT)


def hints_text() -> str:
    """What is told here; equal texts mean equal kernels."""
    keeps = ["weights: lx"] if settings().keep_weights else []
    return "\n".join([*keeps, *map(str, _told.get())])


def _counted(what: Fixed, name: str, count: int) -> Hint:
    found = Hint(what, _named(name), count)
    if type(count) is not int or count < 1:
        raise InvalidHint(f"the hint {found} means nothing", why="it is a number from 1 on")
    if what is Fixed.DIVISION and count > SPYRE_CARD_V1.cores:
        cores = SPYRE_CARD_V1.cores
        raise InvalidHint(
            f"the hint {found} is more than the card has",
            why=f"it has {cores} cores",
            hint=f"at most {cores} parts",
        )
    return found


def _placed(name: str, space: str) -> Hint:
    return Hint(Fixed.RESIDENCY, _named(name), _space(f"residency {name}", space))


def _space(what: str, space: str) -> Space:
    if space not in _SPACES:
        raise InvalidHint(f"the hint {what}: {space} means nothing", hint=" or ".join(_SPACES))
    return _SPACES[space]


def _named(name: str) -> str:
    if not isinstance(name, str) or not all(p.isidentifier() for p in name.split(".")):
        raise InvalidHint(
            f"{name!r} is no name of a dim or a tensor",
            hint="names as OPENSPYRE_TRACE=stages prints them: i0, s1.i0, contract0.r0, buf0",
        )
    return name
