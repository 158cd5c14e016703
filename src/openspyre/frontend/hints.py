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

from torch.overrides import TorchFunctionMode

import openspyre
from openspyre.errors import InvalidHint
from openspyre.ir.kernel import Fixed, Hint, Kernel, Space
from openspyre.spec import SPYRE_CARD_V1

openspyre.require()

_SPACES = {space.value: space for space in Space}


@dataclass(frozen=True, slots=True)
class _Told:
    """What one context says, and to which kernels."""

    hints: tuple[Hint, ...]
    kernel: str

    def __str__(self) -> str:
        return "; ".join(map(str, self.hints)) + f" of {self.kernel}"


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
    division: Mapping[str, int], tile: Mapping[str, int], residency: Mapping[str, str], kernel: str
) -> Iterator[None]:
    """See `openspyre.hint`."""
    counts = [(Fixed.DIVISION, *item) for item in division.items()]
    counts += [(Fixed.TILE, *item) for item in tile.items()]
    hints = [_counted(*count) for count in counts]
    hints += [_placed(*item) for item in residency.items()]
    if not hints:
        raise InvalidHint("the hint says nothing", hint='division={"i0": 8}, tile=, residency=')
    told = _Told(tuple(hints), kernel)
    token = _told.set((*_told.get(), told))
    try:
        with _mode_type(str(told))():
            yield
    finally:
        _told.reset(token)


def hinted(kernel: Kernel) -> Kernel:
    """The kernel with the hints in force for it; an inner context's come before an outer one's."""
    found: dict[tuple[Fixed, str], Hint] = {}
    for told in _told.get():
        if fnmatchcase(kernel.name, told.kernel):
            found.update({(h.what, h.name): h for h in told.hints})
    return replace(kernel, hints=tuple(found.values())) if found else kernel


def hints_text() -> str:
    """What is told here; equal texts mean equal kernels."""
    return "\n".join(map(str, _told.get()))


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
    if space not in _SPACES:
        raise InvalidHint(
            f"the hint residency {name}: {space} means nothing", hint=" or ".join(_SPACES)
        )
    return Hint(Fixed.RESIDENCY, _named(name), _SPACES[space])


def _named(name: str) -> str:
    if not isinstance(name, str) or not all(p.isidentifier() for p in name.split(".")):
        raise InvalidHint(
            f"{name!r} is no name of a dim or a tensor",
            hint="names as OPENSPYRE_TRACE=stages prints them: i0, s1.i0, contract0.r0, buf0",
        )
    return name
