"""The interpreter is the definition of a Program: each rule of `ir/program.py` on its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from openspyre.errors import CardError
from openspyre.ir.interpret import interpret, symbol_block
from openspyre.ir.kernel import DType, Space
from openspyre.ir.ops import CONST, INDEX, LOAD, SLOT, TABLE
from openspyre.ir.program import (
    Axis,
    Bound,
    Buffer,
    Calc,
    Copy,
    Given,
    Indirect,
    Node,
    Origin,
    Place,
    Program,
    Pt,
    Section,
    Slot,
    SlotDef,
    Term,
    TileLoop,
    Vec,
    VecIndex,
    VecOp,
    VecOut,
)

Array = np.ndarray[Any, np.dtype[Any]]
F32, I64, F16 = DType.F32, DType.I64, DType.F16
A, C, T = Origin.ABSOLUTE, Origin.CORE, Origin.TILE


def device(at: int, dtype: DType, *terms: tuple[int, int]) -> Place:
    return Place(Space.DEVICE, dtype, at, tuple(Term(a, by, A) for a, by in terms))


def lx(buffer: int, dtype: DType, *terms: tuple[int, int], origin: Origin = T) -> Place:
    return Place(Space.LX, dtype, 0, tuple(Term(a, by, origin) for a, by in terms), buffer)


def run(
    body: tuple[Node, ...],
    axes: tuple[Axis, ...],
    memory: Array,
    *,
    buffers: tuple[Buffer, ...] = (Buffer("x", 0, 512), Buffer("y", 512, 512)),
    slots: tuple[SlotDef, ...] = (),
    values: tuple[int, ...] = (),
) -> Array:
    program = Program(
        "p", slots, buffers, (Section("s", axes, body),), 0, (0, 0, 0), ("line 1", "line 2")
    )
    raw = memory.view(np.uint8)
    interpret(program, raw, values)
    return memory


def test_uneven_parts_in_granules() -> None:
    """Core p of 3 takes granules [p*G//3, (p+1)*G//3) of G = 4: 2, 2 and 3 points of 7."""
    place = lx(0, I64, (0, 8))
    core = VecOp(INDEX, I64, (0,))
    low = Vec((0,), (), (VecIndex((Term(0, 1, A),), 0),), (core,), (VecOut(0, place),))
    store = Copy((0,), place, device(0, I64, (0, 8)))
    # Every core writes its coordinate relative to its own start.
    relative = Vec(
        (0,),
        (place, lx(0, I64, origin=C)),
        (),
        (VecOp(LOAD, I64, (0,)), VecOp(LOAD, I64, (1,)), VecOp(TABLE["sub"].code, I64, (0, 1))),
        (VecOut(2, lx(1, I64, (0, 8))),),
    )
    back = Copy((0,), lx(1, I64, (0, 8)), device(64, I64, (0, 8)))
    found = run((low, store, relative, back), (Axis("i", 7, 3, 1, 2),), np.full(16, -7))
    assert found.tolist() == [0, 1, 2, 3, 4, 5, 6, -7, 0, 1, 0, 1, 0, 1, 2, -7]


def test_tiles_double_buffers_and_tails() -> None:
    tile = lx(0, F32, (0, 4))
    load, store = (
        Copy((0,), device(0, F32, (0, 4)), tile),
        Copy((0,), tile, device(32, F32, (0, 4))),
    )
    memory = np.arange(16, dtype=np.float32)
    found = run(
        (TileLoop(0, 3, (load, store)),), (Axis("i", 7),), memory, buffers=(Buffer("x", 0, 128, 2),)
    )
    assert found.tolist() == [*range(8), *range(7), 15]


def test_slots_alternate_by_trip() -> None:
    tile = Place(Space.LX, F32, 0, (), 0)
    load = Copy((), device(0, F32, (0, 4)), tile)
    both = lx(1, F32, (1, 128), origin=A)  # a buffer over both slots
    out = Copy((1,), both, device(8, F32, (1, 4)))
    buffers = (Buffer("x", 0, 128, 2), Buffer("both", 0, 256))
    memory = np.array([5, 6, 0, 0], np.float32)
    body = (TileLoop(0, 1, (load,)), out)
    found = run(body, (Axis("i", 2), Axis("j", 2)), memory, buffers=buffers)
    assert found.tolist() == [5, 6, 5, 6]


def test_an_access_stays_inside_its_slot() -> None:
    beyond = Copy((), device(0, F32), Place(Space.LX, F32, 128, (), 0))
    with pytest.raises(CardError, match="outside of LX buffer x"):
        run((beyond,), (), np.zeros(4), buffers=(Buffer("x", 0, 128, 2),))


def test_bounds_give_zeros() -> None:
    tile = lx(0, F32, (0, 4))
    load = Copy((0,), device(-8, F32, (0, 4)), tile, bounds=(Bound((Term(0, 1, A),), -2, 3),))
    store = Copy((0,), tile, device(32, F32, (0, 4)))
    memory = np.arange(1, 17, dtype=np.float32)
    found = run((load, store), (Axis("i", 6),), memory)
    assert found[8:14].tolist() == [0, 0, 1, 2, 3, 0]


@pytest.mark.parametrize("clamp", [True, False])
def test_indirect_loads(clamp: bool) -> None:
    index, tile = lx(1, I64, (0, 8)), lx(0, I64, (0, 8))
    picked = Indirect(index, 8, 4, wrap=True, clamp=clamp)
    body = (
        Copy((0,), device(64, I64, (0, 8)), index),
        Copy((0,), device(0, I64), tile, (picked,), origin=1),
        Copy((0,), tile, device(128, I64, (0, 8))),
    )
    memory = np.array(
        [10, 11, 12, 13, 0, 0, 0, 0, 3, -4, 0, 4 if clamp else -1, 9, 9, 9, 9, *[9] * 4]
    )
    found = run(body, (Axis("i", 4),), memory)
    assert found[16:].tolist() == [13, 10, 10, 0 if clamp else 13]
    memory[11] = -5
    if not clamp:
        with pytest.raises(CardError, match="line 2: index out of range"):
            run(body, (Axis("i", 4),), memory)


def test_an_adding_store_takes_points_in_order_and_in_its_dtype() -> None:
    index, tile = lx(1, I64, (0, 8)), lx(0, F16, (0, 2))
    body = (
        Copy((0,), device(0, I64, (0, 8)), index),
        Copy((0,), device(32, F16, (0, 2)), tile),
        Copy((0,), tile, device(40, F16), (Indirect(index, 2, 4, False, False),), add=True),
    )
    memory = np.zeros(16)
    memory.view(np.int64)[:3] = [2, 0, 2]
    memory.view(np.float16)[16:24] = [0.5, 3, 0.75, 0, 1, 0, 2048, 0]
    found = run(body, (Axis("i", 3),), memory).view(np.float16)
    assert found[20:24].tolist() == [4, 0, 2048, 0]  # 2048 + 0.5 and + 0.75 round back to even


def test_matmul_continues_over_trips_of_k() -> None:
    a, b = lx(0, F32, (0, 16), (2, 4), origin=A), lx(1, F32, (2, 8), (1, 4), origin=A)
    c = lx(2, F32, (0, 8), (1, 4), origin=A)
    body = (
        Copy((0, 2), device(0, F32, (0, 12), (2, 4)), a),
        Copy((2, 1), device(24, F32, (2, 8), (1, 4)), b),
        TileLoop(2, 2, (Pt((), (0,), (1,), (2,), a, b, c),)),
        Copy((0, 1), c, device(48, F32, (0, 8), (1, 4))),
    )
    buffers = (Buffer("a", 0, 128), Buffer("b", 128, 128), Buffer("c", 256, 128))
    memory = np.arange(16, dtype=np.float32)
    left, right = memory[:6].reshape(2, 3).copy(), memory[6:12].reshape(3, 2).copy()
    found = run(body, (Axis("m", 2), Axis("n", 2), Axis("k", 3)), memory, buffers=buffers)
    np.testing.assert_array_equal(found[12:].reshape(2, 2), left @ right)
    none = run(body, (Axis("m", 2), Axis("n", 2), Axis("k", 0)), memory, buffers=buffers)
    assert none[12:].tolist() == [0, 0, 0, 0]  # an empty K makes one empty trip


@pytest.mark.parametrize(("reduce", "wanted"), [("sum", 15), ("max", 5), ("min", 0), ("prod", 0)])
@pytest.mark.parametrize("extent", [6, 0])
def test_reductions_over_trips(reduce: str, wanted: float, extent: int) -> None:
    x, y = lx(0, F32, (0, 4), origin=A), lx(1, F32)
    body = (
        Copy((0,), device(0, F32, (0, 4)), x),
        TileLoop(0, 4, (Vec((0,), (x,), (), (VecOp(LOAD, F32, (0,)),), (VecOut(0, y, reduce),)),)),
        Copy((), y, device(32, F32)),
    )
    found = run(body, (Axis("i", extent),), np.arange(16, dtype=np.float32))
    neutral = {"sum": 0, "max": -np.inf, "min": np.inf, "prod": 1}[reduce]
    assert found[8] == (wanted if extent else neutral)


def test_scans_and_scalars() -> None:
    x = lx(0, I64, (0, 8), origin=A)
    twice = (
        VecOp(LOAD, I64, (0,)),
        VecOp(SLOT, I64, (0,)),
        VecOp(TABLE["mul"].code, I64, (0, 1)),
        VecOp(CONST, I64, (), 1),
        VecOp(TABLE["add"].code, I64, (2, 3)),
    )
    out = VecOut(4, lx(1, I64, (0, 8), origin=A), "sum", scan=True)
    body = (
        Copy((0,), device(0, I64, (0, 8)), x),
        Vec((0,), (x,), (), twice, (out,)),
        Copy((0,), lx(1, I64, (0, 8), origin=A), device(0, I64, (0, 8))),
    )
    (bits,) = np.array([3.0]).view(np.int64).tolist()
    found = run(body, (Axis("i", Slot(1)),), np.arange(4), values=(bits, 4))
    assert found.tolist() == [1, 5, 12, 22]


def test_the_symbol_block() -> None:
    formula = (
        (Calc.SLOT, 1), (Calc.CONST, 3), (Calc.FLOORDIV, 0), (Calc.SLOT, 0), (Calc.ADD, 0),
        (Calc.CONST, 5), (Calc.MIN, 0), (Calc.CONST, -2), (Calc.MAX, 0), (Calc.CONST, 4),
        (Calc.MOD, 0),
    )  # fmt: skip
    defs = (
        SlotDef(Given.ADDRESS, 1),
        SlotDef(Given.SIZE, 0),
        SlotDef(Given.SCALAR, 0),
        SlotDef(Given.POOL),
        SlotDef(Given.FORMULA, 0, formula),
    )
    program = Program("p", defs, (), (), 0, (2, 1, 1), ())
    slots = symbol_block(program, [100, 1], [-7], [0.5], 4096)
    assert slots[:2] == [1, -7]
    assert slots[3:] == [4096, 2]  # max(min(-7 // 3 + 1, 5), -2) % 4
    assert np.array([slots[2]]).view(np.float64)[0] == 0.5


def test_an_access_outside_of_memory_stops() -> None:
    with pytest.raises(CardError, match="outside of the card's memory"):
        run((Copy((0,), device(0, F32, (0, 4)), lx(0, F32, (0, 4))),), (Axis("i", 9),), np.zeros(4))
