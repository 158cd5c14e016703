"""What the compiler chooses plans by: the card's clock, from one barrier to the next.

Times between barriers add up. Equal sections, as of the layers of a model, are timed once.
"""

from __future__ import annotations

from dataclasses import fields, replace

from openspyre.compiler.timed import Timer
from openspyre.ir.binary import encoder
from openspyre.ir.program import (
    Axis,
    Bound,
    Calc,
    Copy,
    Holding,
    Indirect,
    Place,
    Program,
    Pt,
    Ring,
    Section,
    Slot,
    Term,
    TileLoop,
    Vec,
    VecIndex,
    VecOp,
    VecOut,
    rounds,
)
from openspyre.runtime.check import loaded_alone
from openspyre.spec import CardSpec

NODES = (
    Axis,
    Bound,
    Copy,
    Holding,
    Indirect,
    Pt,
    Ring,
    Term,
    TileLoop,
    Vec,
    VecIndex,
    VecOp,
    VecOut,
)
"""What a section is made of, but for slots and places."""
_UNTIMED = ("name", "origin")
_TIMED: dict[type, tuple[str, ...]] = {
    node: tuple(field.name for field in fields(node) if field.name not in _UNTIMED)
    for node in NODES
}


def card_timer(card: CardSpec) -> Timer:
    """A timer that knows sections again which it has seen."""
    known: dict[object, int] = {}
    barrier = card.cores // 2 * card.ring_hop_cycles

    def cycles(program: Program) -> float:
        every = rounds(program.sections[program.prologue :])  # what stays in LX is there already
        keys = [round_key(program, together) for together in every]
        new = {k: s for k, s in zip(keys, every, strict=True) if k not in known}
        encoded = encoder(replace(program, prologue=0))
        known.update({k: _alone(encoded(s), program.arguments, card) for k, s in new.items()})
        return sum(known[key] for key in keys) + barrier * (len(keys) - 1)

    return cycles


def _alone(data: bytes, arguments: tuple[int, int, int], card: CardSpec) -> int:
    with loaded_alone(data, card) as (machine, found):
        addresses, sizes, scalars = arguments  # time does not depend on them
        block = machine.fill(found, [0] * addresses, [0] * sizes, [0.0] * scalars)
        return machine.time(found, block).cycles


def round_key(program: Program, together: tuple[Section, ...]) -> object:
    """Equal for sections that differ in names, in slots and in which arguments they take alone."""
    return _Numbered(program).of(tuple((section.axes, section.body) for section in together))


class _Numbered:
    """Values as plain tuples, with slots, buffers and arguments numbered as they come."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.numbers: dict[tuple[str, int], int] = {}

    def of(self, value: object) -> object:
        match value:
            case tuple():
                return tuple(map(self.of, value))
            case Slot(index):
                return self._slot(index)
            case Place():
                where = self._buffer(value.buffer), self._number("argument", value.argument)
                return value.space, value.dtype, self.of(value.base), self.of(value.terms), where
        if (meant := _TIMED.get(type(value))) is not None:
            return type(value), *(self.of(getattr(value, name)) for name in meant)
        return value

    def _number(self, kind: str, index: int) -> int:
        return self.numbers.setdefault((kind, index), len(self.numbers)) if index >= 0 else -1

    def _buffer(self, index: int) -> object:
        """With its place, which says what it overlaps."""
        if index < 0:
            return -1
        buffer = self.program.buffers[index]
        return self._number("buffer", index), buffer.offset, buffer.bytes, buffer.slots

    def _slot(self, index: int) -> object:
        slot = self.program.slots[index]
        formula = tuple(
            (calc, self._slot(n) if calc is Calc.SLOT else n) for calc, n in slot.formula
        )
        given = slot.given.name.lower()
        return "slot", self._number("slot", index), given, self._number(given, slot.number), formula
