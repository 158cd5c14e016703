"""Mutants of a program: every way to drop or weaken one load, store, operation, token or wait.

A program's tokens are its LX buffers (`ir/program.py`): an operand waits for who used its buffer
before. An operand that names an *alias* (another buffer of the same bytes) waits for nobody and
nobody waits for its data; a buffer with one slot more is waited for one trip less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from openspyre.ir.kernel import Space
from openspyre.ir.program import (
    Buffer,
    Calc,
    Copy,
    Given,
    Node,
    Place,
    Program,
    Pt,
    Ring,
    Section,
    Slot,
    SlotDef,
    TileLoop,
    Vec,
)
from tests.card.checking import Instr, edited, instructions, with_buffer, without
from tests.card.operands import operands

STICK = 128


@dataclass(frozen=True, slots=True)
class Mutant:
    kind: str
    what: str
    make: Callable[[], Program]

    @property
    def program(self) -> Program:
        return self.make()


def mutants(program: Program) -> Iterator[Mutant]:
    """All of them, in a fixed order. Some are no programs (the decoder refuses them)."""
    for number, instr in enumerate(instructions(program)):
        name = f"{type(instr).__name__} {number}"
        yield Mutant("drop", name, partial(without, program, number))
        if isinstance(instr, Copy):
            for axis in moved_together(program, number, instr):
                weak = without_axis(instr, axis)
                yield Mutant("weaken", f"{name} axis {axis}", partial(_with, program, number, weak))
        for position, place in enumerate(operands(instr)):
            what = f"{name} operand {position}"
            if place.space is Space.LX:
                yield Mutant("token", what, partial(_aliased, program, number, instr, position))
            size = place.dtype.bytes
            kind = "shift" if place.space is Space.LX else "shift on the device"
            for by in (-size, size, -STICK, STICK):
                if (moved := _shifted(program, place, by)) is None:
                    continue
                shifted, base = moved
                other = with_operand(instr, position, replace(place, base=base))
                yield Mutant(kind, f"{what} by {by}", partial(_with, shifted, number, other))
    yield from _buffers(program)
    yield from _swaps(program)


# --- operands -------------------------------------------------------------------------------


def with_operand(instr: Instr, position: int, place: Place) -> Instr:
    """The instruction with another place, numbered as in `operands`."""
    match instr:
        case Copy():
            if position < 2:
                return replace(instr, **{("source", "target")[position]: place})
            indices = list(instr.indirect)
            indices[position - 2] = replace(indices[position - 2], place=place)
            return replace(instr, indirect=tuple(indices))
        case Pt():
            return replace(instr, **{"abc"[position]: place})
        case Vec():
            count = len(instr.inputs)
            if position < count:
                inputs = list(instr.inputs)
                inputs[position] = place
                return replace(instr, inputs=tuple(inputs))
            outputs = list(instr.outputs)
            outputs[position - count] = replace(outputs[position - count], place=place)
            return replace(instr, outputs=tuple(outputs))
        case Ring():
            return replace(instr, **{("source", "target")[position]: place})


def moved_together(program: Program, number: int, copy: Copy) -> Iterator[int]:
    """The axes of which a copy may move several points at once."""
    position = 0
    for section in program.sections:
        count = len(list(instructions(replace(program, sections=(section,)))))
        if position <= number < position + count:
            tiles = dict(_tiles(section.body, iter(range(position, position + count)), number))
            for number_of_axis in copy.axes:
                axis = section.axes[number_of_axis]
                points = tiles.get(number_of_axis, 1 << 40)
                if isinstance(axis.extent, int):
                    granules = -(-axis.extent // axis.granule)
                    points = min(points, -(-granules // axis.parts) * axis.granule, axis.extent)
                if points > 1:
                    yield number_of_axis
        position += count


def _tiles(body: Sequence[Node], numbers: Iterator[int], wanted: int) -> Iterator[tuple[int, int]]:
    """Axis and tile of the loops around an instruction."""
    for node in body:
        if isinstance(node, TileLoop):
            inside = list(_tiles(node.body, numbers, wanted))
            if inside:
                yield node.axis, node.tile
                yield from inside
        elif next(numbers) == wanted:
            yield -1, 0  # found


def _with(program: Program, number: int, instr: Instr) -> Program:
    return edited(program, lambda n, old: instr if n == number else old)


def without_axis(copy: Copy, axis: int) -> Copy:
    """Moves the first point of an axis only."""

    def place(of: Place) -> Place:
        return replace(of, terms=tuple(t for t in of.terms if t.axis != axis))

    bounds = tuple(
        replace(b, terms=tuple(t for t in b.terms if t.axis != axis)) for b in copy.bounds
    )
    return replace(
        copy,
        axes=tuple(a for a in copy.axes if a != axis),
        source=place(copy.source),
        target=place(copy.target),
        indirect=tuple(replace(i, place=place(i.place)) for i in copy.indirect),
        bounds=bounds,
    )


def _aliased(program: Program, number: int, instr: Instr, position: int) -> Program:
    place = operands(instr)[position]
    buffer = program.buffers[place.buffer]
    alias = replace(buffer, name=buffer.name + "_alias")
    other = with_operand(instr, position, replace(place, buffer=len(program.buffers)))
    return replace(_with(program, number, other), buffers=(*program.buffers, alias))


def _shifted(program: Program, place: Place, by: int) -> tuple[Program, int | Slot] | None:
    """The program with a slot for the shifted base where the base is a slot."""
    if not isinstance(place.base, Slot):
        return program, place.base + by
    formula = ((Calc.SLOT, place.base.index), (Calc.CONST, by), (Calc.ADD, 0))
    slot = SlotDef(Given.FORMULA, 0, formula, "shifted")
    return replace(program, slots=(*program.slots, slot)), Slot(len(program.slots))


# --- buffers and order ----------------------------------------------------------------------


def _buffers(program: Program) -> Iterator[Mutant]:
    end = max((b.offset + b.bytes * b.slots for b in program.buffers), default=0)
    end += -end % STICK
    for number, buffer in enumerate(program.buffers):

        def mutant(kind: str, what: str, number: int = number, **fields: int) -> Mutant:
            def change(old: Buffer) -> Buffer:
                return replace(old, **fields)

            return Mutant(
                kind, f"buffer {number} {what}", partial(with_buffer, program, number, change)
            )

        whole = buffer.bytes + -buffer.bytes % STICK
        if buffer.slots == 2:
            yield mutant("wait", "one slot", slots=1)
        else:
            yield mutant("wait", "two slots in place", slots=2, bytes=whole)
            yield mutant("wait", "two slots elsewhere", slots=2, bytes=whole, offset=end)
        smaller = (buffer.bytes - 1) // STICK * STICK
        yield mutant("shrink", "a stick smaller", bytes=max(smaller, 0))
        for by in (-STICK, STICK):
            if buffer.offset + by >= 0:
                yield mutant("overlap", f"moved by {by}", offset=buffer.offset + by)
        for other, at in enumerate(program.buffers):
            if other != number and at.offset != buffer.offset:
                yield mutant("overlap", f"over buffer {other}", offset=at.offset)


def _swaps(program: Program) -> Iterator[Mutant]:
    for number, section in enumerate(program.sections):
        for what, body in _swapped(section.body, ""):
            swapped = replace(section, body=body)
            yield Mutant(
                "swap",
                f"section {number} at {what}",
                partial(_with_section, program, number, swapped),
            )


def _with_section(program: Program, number: int, section: Section) -> Program:
    sections = list(program.sections)
    sections[number] = section
    return replace(program, sections=tuple(sections))


def _swapped(body: Sequence[Node], path: str) -> Iterator[tuple[str, tuple[Node, ...]]]:
    for at in range(len(body) - 1):
        nodes = list(body)
        nodes[at : at + 2] = nodes[at + 1], nodes[at]
        yield f"{path}{at}", tuple(nodes)
    for at, node in enumerate(body):
        if isinstance(node, TileLoop):
            for what, inner in _swapped(node.body, f"{path}{at}."):
                yield what, (*body[:at], replace(node, body=inner), *body[at + 1 :])
