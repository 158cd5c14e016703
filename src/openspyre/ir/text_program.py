"""The text form of a Program: `parse_program(print_program(p)) == p`.

    program "add one" pool 0 arguments 2 1 0
    source "model.py:3 add"
    slot %0 "x" = address 0
    slot %1 "n" = size 0
    slot %2 "n*4" = formula %1 4 *
    buffer #0 "tile" offset 0 bytes 256 slots 2
    section "s0"
      axis a0 "i0" extent %1 parts 32 stride 1 granule 64
      loop a0 tile 64
        copy [a0] from arg0:f16{%0 + 2*a0} to #0:f16{0 + 2*a0.tile} origin 0
        vec [a0] origin 0
          in #0:f16{0 + 2*a0.tile}
          v0 f32 = load 0
          v1 f32 = const 1.0
          v2 f32 = add v0 v1
          out v2 #1:f16{0 + 2*a0.tile}

A section that joins the one before says so: `section "s1.0" joins`.

A place is where:dtype{base + terms}, in bytes: `arg3`, `pool` or the buffer `#3`; a term is
coefficient*axis with `.core` or `.tile` where it counts from the core's low or the tile's start.
`%3` is a slot. Indentation is the nesting. `prologue 2` behind the arguments says that the first
two sections are the prologue. An indirect place, a bound, an index value, an output and a holding
of a ring move have lines of their own under their instruction:

        ring [a0] from #0:f16{0} to #1:f16{0 + 2*a0.core} cores 8 origin 0
          held {0 + 1*a0} extent %1 parts 8 stride 1 granule 64 step 2
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from openspyre.errors import InvalidProgram
from openspyre.ir.kernel import DType, Space
from openspyre.ir.ops import CONST, INDEX, LOAD, SLOT, TABLE
from openspyre.ir.program import (
    Axis,
    Calc,
    Copy,
    Given,
    Node,
    Origin,
    Place,
    Program,
    Pt,
    Ring,
    Section,
    Slot,
    SlotDef,
    Term,
    TileLoop,
    Value,
    Vec,
    VecOp,
    VecOut,
)
from openspyre.ir.text_program_reader import CALCS, OPERANDS, parse_program

__all__ = ["parse_program", "print_program"]

_ORIGIN = {Origin.ABSOLUTE: "", Origin.CORE: ".core", Origin.TILE: ".tile"}
_NAMES = {row.code: row.name for row in TABLE.values()} | {c: n for n, c in OPERANDS.items()}
_CALC = {calc: sign for sign, calc in CALCS.items()}


def print_program(program: Program) -> str:
    """The text of a program.

    Raises:
        InvalidProgram: an instruction that text cannot carry (an unknown op code, a place in LX
            that names an argument).
    """
    return "\n".join(_lines(program)) + "\n"


def _lines(program: Program) -> Iterator[str]:
    counts = " ".join(map(str, program.arguments))
    prologue = f" prologue {program.prologue}" if program.prologue else ""
    head = f"program {json.dumps(program.name)} pool {program.pool_bytes} arguments {counts}"
    yield head + prologue
    for source in program.sources:
        yield f"source {json.dumps(source)}"
    for number, slot in enumerate(program.slots):
        yield f"slot %{number} {json.dumps(slot.name)} = {_given(slot)}"
    for number, buffer in enumerate(program.buffers):
        yield (
            f"buffer #{number} {json.dumps(buffer.name)} offset {buffer.offset}"
            f" bytes {buffer.bytes} slots {buffer.slots}"
        )
    for section in program.sections:
        yield from _section_lines(section)


def _given(slot: SlotDef) -> str:
    word = slot.given.name.lower()
    if slot.given is not Given.FORMULA:
        if slot.formula:
            raise InvalidProgram(f"slot {slot.name} has a formula", why=f"it is given as {word}")
        return f"{word} {slot.number}"
    words = []
    for calc, operand in slot.formula:
        match calc:
            case Calc.CONST:
                words.append(str(operand))
            case Calc.SLOT:
                words.append(f"%{operand}")
            case _:
                words.append(_CALC[calc])
    number = f" {slot.number}" if slot.number else ""
    return " ".join([f"{word}{number}:" if number else word, *words])


def _section_lines(section: Section) -> Iterator[str]:
    yield f"section {json.dumps(section.name)}{' joins' if section.joins else ''}"
    for number, axis in enumerate(section.axes):
        yield f"  {_axis(number, axis)}"
    yield from _nodes(section.body, "  ")


def _axis(number: int, axis: Axis) -> str:
    return (
        f"axis a{number} {json.dumps(axis.name)} extent {_value(axis.extent)}"
        f" parts {axis.parts} stride {axis.stride} granule {axis.granule}"
    )


def _nodes(nodes: Iterable[Node], indent: str) -> Iterator[str]:
    for node in nodes:
        match node:
            case TileLoop(axis, tile, body):
                yield f"{indent}loop a{axis} tile {tile}"
                yield from _nodes(body, indent + "  ")
            case Copy():
                yield from (indent + line for line in _copy(node))
            case Pt():
                yield from (indent + line for line in _pt(node))
            case Vec():
                yield from (indent + line for line in _vec(node))
            case Ring():
                yield from (indent + line for line in _ring(node))


def _copy(copy: Copy) -> Iterator[str]:
    add = " add" if copy.add else ""
    yield (
        f"copy {_axes(copy.axes)} from {_place(copy.source)} to {_place(copy.target)}{add}"
        f"{_from(copy.origin)}"
    )
    for step in copy.indirect:
        flags = (" wrap" if step.wrap else "") + (" clamp" if step.clamp else "")
        flags += " distinct" if step.distinct else ""
        yield (
            f"  indirect {_place(step.place)} coefficient {_value(step.coefficient)}"
            f" size {_value(step.size)}{flags}"
        )
    for bound in copy.bounds:
        yield f"  bound {_sum(bound.offset, bound.terms)} size {_value(bound.size)}"


def _pt(pt: Pt) -> Iterator[str]:
    axes = " ".join(
        f"{name} {_axes(part)}"
        for name, part in (("batch", pt.batch), ("m", pt.m), ("n", pt.n), ("k", pt.k))
    )
    yield f"pt {axes}{_from(pt.origin)}"
    for name, place in (("a", pt.a), ("b", pt.b), ("c", pt.c)):
        yield f"  {name} {_place(place)}"


def _vec(vec: Vec) -> Iterator[str]:
    yield f"vec {_axes(vec.axes)}{_from(vec.origin)}"
    for place in vec.inputs:
        yield f"  in {_place(place)}"
    for index in vec.indices:
        yield f"  index {_sum(index.offset, index.terms)}"
    for number, op in enumerate(vec.ops):
        yield f"  v{number} {op.dtype.value} = {_op(op)}"
    for out in vec.outputs:
        yield f"  {_out(out)}"


def _ring(ring: Ring) -> Iterator[str]:
    places = f"from {_place(ring.source)} to {_place(ring.target)}"
    yield f"ring {_axes(ring.axes)} {places} cores {ring.cores}{_from(ring.origin)}"
    for held in ring.held:
        yield (
            f"  held {_sum(held.offset, held.terms)} extent {_value(held.extent)}"
            f" parts {held.parts} stride {held.stride} granule {held.granule}"
            f" step {_value(held.step)}"
        )


def _op(op: VecOp) -> str:
    name = _NAMES.get(op.code)
    if name is None:
        raise InvalidProgram(f"op code {op.code}", why="the op table has no such row")
    if op.code == CONST:
        words = [_number(op.number, op.dtype)]
    else:
        prefix = "" if op.code in (LOAD, SLOT, INDEX) else "v"
        words = [f"{prefix}{arg}" for arg in op.args]
        words += [f"number {op.number}"] if op.number else []
    return " ".join([name, *words])


def _number(value: float | int, dtype: DType) -> str:
    return repr(float(value)) if dtype.is_float else str(int(value))


def _out(out: VecOut) -> str:
    extra = f" {out.reduce}" if out.reduce else ""
    return f"out v{out.value} {_place(out.place)}{extra}{' scan' if out.scan else ''}"


def _from(origin: int) -> str:
    return "" if origin == -1 else f" origin {origin}"


def _axes(axes: Iterable[int]) -> str:
    return f"[{' '.join(f'a{axis}' for axis in axes)}]"


def _value(value: Value) -> str:
    return f"%{value.index}" if isinstance(value, Slot) else str(value)


def _sum(base: Value, terms: Iterable[Term]) -> str:
    words = [_value(base)]
    words += [f"{_value(t.coefficient)}*a{t.axis}{_ORIGIN[t.origin]}" for t in terms]
    return f"{{{' + '.join(words)}}}"


def _place(place: Place) -> str:
    device = place.space is Space.DEVICE
    if (place.buffer != -1) if device else (place.buffer < 0 or place.argument != -1):
        raise InvalidProgram(
            f"a place in {place.space.value} names buffer {place.buffer} and argument"
            f" {place.argument}",
            why="a place is an argument, the pool or a buffer",
        )
    where = f"#{place.buffer}"
    if device:
        where = "pool" if place.argument == -1 else f"arg{place.argument}"
    return f"{where}:{place.dtype.value}{_sum(place.base, place.terms)}"
