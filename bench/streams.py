"""Programs that read, compute point by point and write: the passes of an unfused graph."""

from __future__ import annotations

from collections.abc import Sequence

from openspyre.ir.kernel import DType, Space
from openspyre.ir.ops import CONST, LOAD, TABLE
from openspyre.ir.program import (
    Axis,
    Buffer,
    Copy,
    Given,
    Node,
    Origin,
    Place,
    Program,
    Section,
    Slot,
    SlotDef,
    Term,
    TileLoop,
    Vec,
    VecOp,
    VecOut,
)

# Ops of each section of a softmax whose stages make 5, 2 or 1 passes over the matrix.
SOFTMAX = {
    5: (("max",), ("sub",), ("exp",), ("add",), ("mul",)),
    2: (("max",), ("sub", "exp", "add", "mul")),
    1: (("max", "sub", "exp", "add", "mul"),),
}
_ROW = 2048  # bytes of a row
_TILE = 4  # rows


def stream(passes: Sequence[tuple[int, int]], ops: Sequence[Sequence[str]], cores: int) -> Program:
    """One section per pass: reads so many bytes of f16, applies ops, writes so many."""
    sections = tuple(
        _section(number, *sizes, chain, cores)
        for number, (sizes, chain) in enumerate(zip(passes, ops, strict=True))
    )
    held = (Buffer("in", 0, _TILE * _ROW, 2), Buffer("out", 2 * _TILE * _ROW, _TILE * _ROW, 2))
    slots = tuple(SlotDef(Given.ADDRESS, n) for n in range(2))
    return Program("stream", slots, held, sections, 0, (2, 0, 0), ())


def _section(number: int, read: int, written: int, chain: Sequence[str], cores: int) -> Section:
    def place(space: Space, at: int) -> Place:
        device = space is Space.DEVICE
        origin = Origin.ABSOLUTE if device else Origin.TILE
        terms = (Term(0, _ROW, origin), Term(1, 2, origin))
        if device:
            return Place(space, DType.F16, Slot(at), terms, argument=at)
        return Place(space, DType.F16, 0, terms, buffer=at)

    body: list[Node] = [Copy((0, 1), place(Space.DEVICE, 0), place(Space.LX, 0))]
    body.append(_vector(place(Space.LX, 0), place(Space.LX, 1), chain))
    if written:
        body.append(Copy((0, 1), place(Space.LX, 1), place(Space.DEVICE, 1)))
    axes = (Axis("rows", max(read, written) // _ROW, cores), Axis("columns", _ROW // 2))
    return Section(f"s{number}", axes, (TileLoop(0, _TILE, tuple(body)),))


def _vector(source: Place, target: Place, chain: Sequence[str]) -> Vec:
    values = [VecOp(LOAD, DType.F32, (0,)), VecOp(CONST, DType.F32, (), 1.5)]
    last = 0
    for name in chain:
        row = TABLE[name]
        values.append(VecOp(row.code, DType.F32, (last, 1)[: row.arity]))
        last = len(values) - 1
    return Vec((0, 1), (source,), (), tuple(values), (VecOut(last, target),))
