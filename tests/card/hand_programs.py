"""Small hand-written programs, and shorthand to write more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from openspyre.ir.kernel import DType, Space
from openspyre.ir.ops import CONST, LOAD, TABLE
from openspyre.ir.program import (
    Axis,
    Buffer,
    Copy,
    Given,
    Holding,
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

F16, F32, I64 = DType.F16, DType.F32, DType.I64
Steps = Sequence[tuple[int, Value]]


def device(argument: int, steps: Steps, dtype: DType = F16, base: Value | None = None) -> Place:
    """A device place at an argument's address (slot `argument`)."""
    start = Slot(argument) if base is None else base
    terms = tuple(Term(axis, step, Origin.ABSOLUTE) for axis, step in steps)
    return Place(Space.DEVICE, dtype, start, terms, -1, argument)


def local(buffer: int, steps: Steps, dtype: DType = F16) -> Place:
    """A tile in LX."""
    terms = tuple(Term(axis, step, Origin.TILE) for axis, step in steps)
    return Place(Space.LX, dtype, 0, terms, buffer)


def buffers(*sizes: tuple[int, int]) -> tuple[Buffer, ...]:
    """Buffers of (bytes, slots), one after another, in whole sticks."""
    found, offset = [], 0
    for number, (size, slots) in enumerate(sizes):
        found.append(Buffer(f"b{number}", offset, -(-size // 128) * 128, slots))
        offset += found[-1].bytes * slots
    return tuple(found)


def program(
    arguments: int, held: tuple[Buffer, ...], *sections: Section, sources: tuple[str, ...] = ()
) -> Program:
    """A program whose first slots are the addresses of its arguments."""
    slots = tuple(SlotDef(Given.ADDRESS, n) for n in range(arguments))
    return Program("hand", slots, held, sections, 0, (arguments, 0, 0), sources)


def loads(rows: int, columns: int, cores: int, *, tile: int = 8) -> Program:
    """Reads f16[rows, columns] once, rows split over cores."""
    steps = ((0, columns * 2), (1, 2))
    body: tuple[Node, ...] = (Copy((0, 1), device(0, steps), local(0, steps)),)
    axes = (Axis("m", rows, cores), Axis("n", columns))
    section = Section("load", axes, (TileLoop(0, tile, body),))
    return program(1, buffers((tile * columns * 2, 2)), section)


def copies(rows: int, columns: int, cores: int, *, tile: int = 8, slots: int = 2) -> Program:
    """Reads and writes f16[rows, columns], rows split over cores."""
    section = copy_section(rows, columns, cores, tile=tile)
    return program(2, buffers((tile * columns * 2, slots)), section)


def copy_section(rows: int, columns: int, cores: int, *, tile: int = 8) -> Section:
    steps = ((0, columns * 2), (1, 2))
    body: tuple[Node, ...] = (
        Copy((0, 1), device(0, steps), local(0, steps)),
        Copy((0, 1), local(0, steps), device(1, steps)),
    )
    axes = (Axis("m", rows, cores), Axis("n", columns))
    return Section("copy", axes, (TileLoop(0, tile, body),))


def kept_copies(rows: int, columns: int, cores: int, *, offset: int = 0) -> Program:
    """f16[rows, columns]: the prologue reads argument 0, the rest writes it to argument 1."""
    steps = ((0, columns * 2), (1, 2))
    held = (Buffer("kept", offset, -(-rows // cores) * columns * 2, 1),)
    axes = (Axis("m", rows, cores), Axis("n", columns))
    load = Section("keep", axes, (Copy((0, 1), device(0, steps), local(0, steps)),))
    store = Section("use", axes, (Copy((0, 1), local(0, steps), device(1, steps)),))
    return replace(program(2, held, load, store), prologue=1)


def exchange(rows: int, columns: int, cores: int) -> Program:
    """f16[rows, columns], loaded by rows over cores, exchanged and stored by columns."""
    device_steps = ((0, columns * 2), (1, 2))
    by_rows = (Axis("rows", rows, cores), Axis("columns", columns))
    by_columns = (Axis("rows", rows), Axis("columns", columns, cores))
    part_rows, part_columns = -(-rows // cores), -(-columns // cores)
    held = local(0, device_steps)
    got = local(1, ((0, part_columns * 2), (1, 2)))
    column = Place(Space.LX, F16, 0, (Term(1, 2, Origin.ABSOLUTE),), 0)
    row = Holding((Term(0, 1, Origin.ABSOLUTE),), 0, rows, cores, 1, 1, columns * 2)
    sections = (
        Section("load", by_rows, (Copy((0, 1), device(0, device_steps), held),)),
        Section("move", by_columns, (Ring((0, 1), column, got, (row,), cores),)),
        Section("store", by_columns, (Copy((0, 1), got, device(1, device_steps)),)),
    )
    return program(
        2, buffers((part_rows * columns * 2, 1), (rows * part_columns * 2, 1)), *sections
    )


def added(source: Place, target: Place, then: Sequence[str] = ()) -> Vec:
    """target = ops applied in turn to source + 1, over axes 0 and 1."""
    ops = [VecOp(LOAD, F32, (0,)), VecOp(CONST, F32, (), 1.0)]
    ops.append(VecOp(TABLE["add"].code, F32, (0, 1)))
    for name in then:
        ops.append(VecOp(TABLE[name].code, F32, (len(ops) - 1,)))
    return Vec((0, 1), (source,), (), tuple(ops), (VecOut(len(ops) - 1, target),))


def loads_ahead(rows: int, columns: int, cores: int, later: int) -> Program:
    """out0 = tanh(...(x + 1)) on some cores, out1 = y + 1 on others, which load y meanwhile."""
    steps = ((0, columns * 2), (1, 2))
    part = -(-rows // min(cores, later)) * columns * 2
    part = -(-part // 128) * 128
    held = tuple(Buffer(f"b{n}", n * part, part, 1) for n in range(4))
    work = (
        Copy((0, 1), device(0, steps), local(0, steps)),
        added(local(0, steps), local(1, steps), ["tanh"] * 10),
        Copy((0, 1), local(1, steps), device(2, steps)),
    )
    load = Copy((0, 1), device(1, steps), local(2, steps))
    then = (
        added(local(2, steps), local(3, steps)),
        Copy((0, 1), local(3, steps), device(3, steps)),
    )
    axes = (Axis("m", rows, later), Axis("n", columns))
    return program(
        4,
        held,
        Section("work", (Axis("m", rows, cores), Axis("n", columns)), work),
        Section("next early", axes, (load,), joins=True),
        Section("next", axes, then),
    )


def kept_and_ahead(rows: int, columns: int, cores: int, later: int) -> Program:
    """`loads_ahead` behind a prologue that loads argument 4; the last section stores it to 5."""
    steps = ((0, columns * 2), (1, 2))
    ahead = loads_ahead(rows, columns, cores, later)
    part = ahead.buffers[0].bytes
    kept = Buffer("kept", 4 * part, part, 1)
    axes = ahead.sections[-1].axes
    load = Section("keep", axes, (Copy((0, 1), device(4, steps), local(4, steps)),))
    store = Section("use", axes, (Copy((0, 1), local(4, steps), device(5, steps)),))
    sections = (load, *ahead.sections, store)
    return replace(program(6, (*ahead.buffers, kept), *sections), prologue=1)


def pointwise(
    rows: int, columns: int, cores: int, ops: Sequence[str], *, tile: int = 8, slots: int = 2
) -> Program:
    """f16 out = ops applied in turn to f16 in: load, vector program, store."""
    steps = ((0, columns * 2), (1, 2))
    values = [VecOp(LOAD, F32, (0,)), VecOp(CONST, F32, (), 2.0)]
    last = 0
    for name in ops:
        args = (last, 1)[: TABLE[name].arity]
        values.append(VecOp(TABLE[name].code, F32, args))
        last = len(values) - 1
    body: tuple[Node, ...] = (
        Copy((0, 1), device(0, steps), local(0, steps)),
        Vec((0, 1), (local(0, steps),), (), tuple(values), (VecOut(last, local(1, steps)),)),
        Copy((0, 1), local(1, steps), device(1, steps)),
    )
    axes = (Axis("m", rows, cores), Axis("n", columns))
    section = Section("pointwise", axes, (TileLoop(0, tile, body),))
    size = tile * columns * 2
    return program(2, buffers((size, slots), (size, slots)), section)


def multiplications(
    rows: int, columns: int, inner: int, *, times: int = 64, cores: int = 1, dtype: DType = F16
) -> Program:
    """PT alone: on every core c[rows, columns] = a[rows, inner] @ b[inner, columns], repeated."""
    size = dtype.bytes
    matmul = Pt(
        (), (0,), (1,), (2,),
        local(0, ((0, inner * size), (2, size)), dtype),
        local(1, ((2, columns * size), (1, size)), dtype),
        local(2, ((0, columns * 4), (1, 4)), F32),
    )  # fmt: skip
    axes = (
        Axis("m", rows), Axis("n", columns), Axis("k", inner), Axis("times", times * cores, cores),
    )  # fmt: skip
    held = buffers((rows * inner * size, 1), (inner * columns * size, 1), (rows * columns * 4, 1))
    return program(0, held, Section("pt", axes, (TileLoop(3, 1, (matmul,)),)))


def matmul(
    m: int, n: int, k: int, split: tuple[int, int], tile: tuple[int, int, int], *, slots: int = 2
) -> Program:
    """f16 c[m, n] = a[m, k] @ b[k, n], m and n split over cores, tiles of (m, n, k)."""
    tm, tn, tk = tile
    part = local(2, ((0, tn * 4), (1, 4)), F32)
    inner: tuple[Node, ...] = (
        Copy((2, 1), device(1, ((2, n * 2), (1, 2))), local(1, ((2, tn * 2), (1, 2)))),
        Copy((0, 2), device(0, ((0, k * 2), (2, 2))), local(0, ((0, tk * 2), (2, 2)))),
        Pt(
            (), (0,), (1,), (2,),
            local(0, ((0, tk * 2), (2, 2))), local(1, ((2, tn * 2), (1, 2))), part,
        ),
    )  # fmt: skip
    out = local(3, ((0, tn * 2), (1, 2)))
    body: tuple[Node, ...] = (
        TileLoop(2, tk, inner),
        Vec((0, 1), (part,), (), (VecOp(LOAD, F32, (0,)),), (VecOut(0, out),)),
        Copy((0, 1), out, device(2, ((0, n * 2), (1, 2)))),
    )
    axes = (Axis("m", m, split[0]), Axis("n", n, split[1], split[0]), Axis("k", k))
    held = buffers((tm * tk * 2, slots), (tk * tn * 2, slots), (tm * tn * 4, 1), (tm * tn * 2, 1))
    section = Section("matmul", axes, (TileLoop(1, tn, (TileLoop(0, tm, body),)),))
    return program(3, held, section)
