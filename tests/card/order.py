"""Order of accesses to the same bytes: by units, tokens and sections; anything else is a race."""

from __future__ import annotations

from dataclasses import dataclass, field

from openspyre.ir.kernel import Space
from openspyre.ir.program import Copy, Ring, Section
from tests.card.byte_sets import NONE, Bytes
from tests.card.operands import instructions_in

Clock = list[int]  # of every unit, how many of its instructions have finished
LOAD, STORE, PT, SFU, RING = range(5)
UNITS = 5


class NotEqual(Exception):
    """The program does what no right one does: a race, or an access out of bounds."""


@dataclass
class Use:
    """One copy of a buffer: the clocks of all that used it, and of the last that wrote it."""

    users: Clock = field(default_factory=lambda: [0] * UNITS)
    writer: Clock = field(default_factory=lambda: [0] * UNITS)


def join(clock: Clock, other: Clock) -> None:
    clock[:] = map(max, clock, other)


_CONFLICTS = {"read": ("write", "add"), "write": ("read", "write", "add"), "add": ("read", "write")}


class Shared:
    """What the cores of a section do to the objects of device memory that it stores to, and to
    each other's LX."""

    def __init__(self, section: Section) -> None:
        copies = [i for i in instructions_in(section.body) if isinstance(i, Copy)]
        self.stored = {c.target.argument for c in copies if c.target.space is Space.DEVICE}
        self.others: dict[tuple[int, str], Bytes] = {}
        self.own: dict[tuple[int, str], Bytes] = {}
        self.moves = any(isinstance(i, Ring) for i in instructions_in(section.body))
        self.lx_written: dict[int, Bytes] = {}
        self.lx_moved: dict[int, Bytes] = {}  # by the core that holds it

    def begin_core(self) -> None:
        for key, where in self.own.items():
            self.others[key] = self.others.get(key, NONE).joined(where)
        self.own = {}

    def touch(self, argument: int, where: Bytes, kind: str) -> None:
        if argument not in self.stored or not where.bits:
            return
        for other in _CONFLICTS[kind]:
            if where.meets(self.others.get((argument, other), NONE)):
                raise NotEqual("a race between cores")
        key = argument, kind
        self.own[key] = self.own[key].joined(where) if key in self.own else where

    def write_lx(self, core: int, where: Bytes) -> None:
        if self.moves:
            self.lx_written[core] = self.lx_written.get(core, NONE).joined(where)

    def move_lx(self, holder: int, where: Bytes) -> None:
        self.lx_moved[holder] = self.lx_moved.get(holder, NONE).joined(where)

    def end(self) -> None:
        """What ring moves read is what the section found."""
        for core, where in self.lx_moved.items():
            if where.meets(self.lx_written.get(core, NONE)):
                raise NotEqual("a ring move and a write race between cores")


class Order:
    """A core's accesses to one memory in a section, by unit and in its order."""

    def __init__(self) -> None:
        self.by_unit: list[list[tuple[int, Bytes, bool]]] = [[] for _ in range(UNITS)]

    def touch(self, where: Bytes, unit: int, number: int, clock: Clock, *, writes: bool) -> None:
        for other in range(UNITS):
            if other == unit:
                continue
            for earlier, there, wrote in reversed(self.by_unit[other]):
                if earlier <= clock[other]:
                    break
                if (writes or wrote) and where.meets(there):
                    raise NotEqual(f"a {_word(writes)} overtakes a {_word(wrote)}")
        self.by_unit[unit].append((number, where, writes))


def _word(writes: bool) -> str:
    return "write" if writes else "read"
