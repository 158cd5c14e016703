"""Trips that run together, loads and stores left out: the same bits as one trip after the other.

The debug mode `late` runs every trip by itself and makes every copy.
"""

from __future__ import annotations

import numpy as np
import pytest

from openspyre.card.native import NO_DEBUG, DebugMode, SoftwareCard
from openspyre.ir.kernel import DType
from openspyre.ir.ops import CONST
from openspyre.ir.program import (
    Axis,
    Copy,
    Node,
    Origin,
    Place,
    Program,
    TileLoop,
    Vec,
    VecOp,
    VecOut,
)
from tests.card.probe import isas
from tests.card.test_execute_vec import F32, load, op
from tests.execute_programs import Array, buffers, device, lx, program, run, stored

ROWS, LANES, PART, TURN = range(4)  # axes


def vec(axes: tuple[int, ...], inputs: list[Place], ops: list[VecOp], out: VecOut) -> Vec:
    return Vec(axes, tuple(inputs), (), tuple(ops), (out,))


def norm(rows: int, lanes: int, dtype: DType, tile: int, parts: int) -> Program:
    """y = exp(x - max(x)) / sum(exp(x - max(x))) by rows, the sum by way of `parts` columns."""
    size, turns = dtype.bytes, lanes // parts
    x, y = (device(n, dtype, {ROWS: lanes * size, LANES: size}) for n in (0, 1))
    row = {ROWS: (lanes * size, Origin.TILE), LANES: (size, Origin.CORE)}
    here, there = tiled(0, dtype, row), tiled(5, dtype, row)
    most, total = (tiled(n, F32, {ROWS: (4, Origin.TILE)}) for n in (1, 4))
    powers = tiled(2, F32, {ROWS: (4 * lanes, Origin.TILE), LANES: (4, Origin.CORE)})
    turned = {TURN: (4 * parts, Origin.CORE), PART: (4, Origin.CORE)}
    by_parts = tiled(2, F32, {ROWS: (4 * lanes, Origin.TILE), **turned})
    partial = tiled(3, F32, {ROWS: (4 * parts, Origin.TILE), PART: (4, Origin.CORE)})
    both = [load(0, dtype), load(1, F32)]
    body: list[Node] = [
        Copy((ROWS, LANES), x, here),
        vec((LANES, ROWS), [here], [load(0, dtype)], VecOut(0, most, "max", False)),
        vec(
            (ROWS, LANES),
            [here, most],
            [*both, op("sub", F32, 0, 1), op("exp", F32, 2)],
            VecOut(3, powers, None, False),
        ),
        vec((ROWS, TURN, PART), [by_parts], [load(0, F32)], VecOut(0, partial, "sum", False)),
        vec((ROWS, PART), [partial], [load(0, F32)], VecOut(0, total, "sum", False)),
        vec(
            (ROWS, LANES),
            [powers, total],
            [load(0, F32), load(1, F32), op("div", F32, 0, 1)],
            VecOut(2, there, None, False),
        ),
        Copy((ROWS, LANES), there, y),
    ]
    room = [tile * lanes * size, tile * 4, tile * lanes * 4, tile * parts * 4, tile * 4]
    axes = [Axis("rows", rows, 3), Axis("lanes", lanes), Axis("part", parts), Axis("turn", turns)]
    return program(axes, [TileLoop(ROWS, tile, tuple(body))], buffers(*room, room[0]), 2)


def tiled(buffer: int, dtype: DType, terms: dict[int, tuple[int, Origin]]) -> Place:
    place = lx(buffer, dtype, {axis: step for axis, (step, _) in terms.items()})
    origins = {axis: origin for axis, (_, origin) in terms.items()}
    return Place(
        place.space,
        place.dtype,
        place.base,
        tuple(type(t)(t.axis, t.coefficient, origins[t.axis]) for t in place.terms),
        buffer=place.buffer,
    )


def results(prog: Program, given: list[Array]) -> dict[tuple[str, DebugMode], list[bytes]]:
    found = {}
    for isa in isas():
        for debug in (NO_DEBUG, DebugMode.LATE):
            with SoftwareCard(memory=1 << 24, threads=2, isa=isa, debug=debug) as card:
                got = run(card, prog, [a.copy() for a in given])
                found[isa, debug] = [np.ascontiguousarray(a).tobytes() for a in got]
    return found


def same_everywhere(prog: Program, given: list[Array]) -> list[bytes]:
    found = results(prog, given)
    first = found["portable", DebugMode.LATE]
    assert all(got == first for got in found.values()), [k for k, g in found.items() if g != first]
    return first


@pytest.mark.parametrize(
    ("rows", "parts", "turns"), [(40, 8, 16), (7, 5, 13), (23, 64, 18), (3, 1, 1)]
)
@pytest.mark.parametrize("tile", [1, 3])
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32])
def test_a_softmax_by_rows(rows: int, parts: int, turns: int, tile: int, dtype: DType) -> None:
    lanes = parts * turns
    x = np.random.default_rng(0).standard_normal((rows, lanes)).astype(np.float32) * 3
    if lanes > 1:  # else the whole row is NaN
        x[0, 0] = -np.inf
    x[-1, -1] = -0.0
    prog = norm(rows, lanes, dtype, tile, parts)
    data = stored(x, dtype)
    got = same_everywhere(prog, [data, np.zeros_like(data)])[1]
    if dtype is F32:
        powers = np.exp(x - x.max(1, keepdims=True))
        wanted = powers / powers.sum(1, keepdims=True)
        y = np.frombuffer(got, np.float32).reshape(x.shape)
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize(("parts", "turns"), [(16, 64), (20, 21), (64, 9), (33, 7), (2, 17)])
def test_which_of_equals_a_maximum_keeps(reduce: str, parts: int, turns: int) -> None:
    """To the bit: the first NaN, else the last of the largest (zeros differ by their signs)."""
    rows, rng = 5, np.random.default_rng(3)
    few = np.array([0x0, 0x80000000, 0xBF800000, 0x3F800000, 0x7FC00001, 0xFFC00002], np.uint32)
    shares = np.array(
        [[0.5, 0.5, 0, 0, 0, 0], [0.45, 0.45, 0, 0, 0.05, 0.05], [1 / 6] * 6]
        + 2 * [[0.4, 0.4, 0.1 * (reduce == "max"), 0.1 * (reduce == "min"), 0.05, 0.05]]
    )
    x = np.stack([rng.choice(few, (turns, parts), p=share) for share in shares]).view(np.float32)
    lanes = parts * turns
    row = {ROWS: (4 * lanes, Origin.TILE)}
    here = tiled(0, F32, {**row, TURN: (4 * parts, Origin.CORE), PART: (4, Origin.CORE)})
    most = tiled(1, F32, {ROWS: (4 * parts, Origin.TILE), PART: (4, Origin.CORE)})
    source = device(0, F32, {ROWS: 4 * lanes, TURN: 4 * parts, PART: 4})
    body: tuple[Node, ...] = (
        Copy((ROWS, TURN, PART), source, here),
        vec((ROWS, TURN, PART), [here], [load(0, F32)], VecOut(0, most, reduce, False)),
        Copy((ROWS, PART), most, device(1, F32, {ROWS: 4 * parts, PART: 4})),
    )
    axes = [Axis("rows", rows), Axis("lanes", 1), Axis("part", parts), Axis("turn", turns)]
    prog = program(axes, [TileLoop(ROWS, 1, body)], buffers(4 * lanes, 4 * parts), 2)
    got = same_everywhere(prog, [x, np.zeros((rows, parts), np.float32)])[1]
    wanted = x[:, 0].copy()
    for turn in range(1, turns):
        new = x[:, turn]
        with np.errstate(invalid="ignore"):
            stays = wanted > new if reduce == "max" else wanted < new
        wanted = np.where(np.isnan(wanted) | stays, wanted, new)
    assert np.array_equal(np.frombuffer(got, np.uint32), wanted.view(np.uint32).ravel())


@pytest.mark.parametrize("lanes", [1, 16, 70])
def test_what_goes_from_trip_to_trip_keeps_its_order(lanes: int) -> None:
    """total <- total / 2 + x[i], by rows: reads what the trip before has written."""
    rows = 21
    x = np.random.default_rng(1).standard_normal((rows, lanes)).astype(np.float32)
    total = np.ones(lanes, np.float32)
    here = tiled(0, F32, {ROWS: (4 * lanes, Origin.TILE), LANES: (4, Origin.CORE)})
    kept = tiled(1, F32, {LANES: (4, Origin.CORE)})
    ops = [
        *(load(0, F32), load(1, F32), VecOp(CONST, F32, (), 0.5)),
        *(op("mul", F32, 0, 2), op("add", F32, 3, 1)),
    ]
    there = device(1, F32, {LANES: 4})
    loop = TileLoop(
        ROWS,
        1,
        (
            Copy((ROWS, LANES), device(0, F32, {ROWS: 4 * lanes, LANES: 4}), here),
            vec((ROWS, LANES), [kept, here], ops, VecOut(4, kept, None, False)),
        ),
    )
    body: list[Node] = [Copy((LANES,), there, kept), loop, Copy((LANES,), kept, there)]
    axes = [Axis("rows", rows), Axis("lanes", lanes)]
    prog = program(axes, body, buffers(4 * lanes, 4 * lanes), 2)
    got = same_everywhere(prog, [x, total])[1]
    for row in x:
        total = total * np.float32(0.5) + row
    assert got == total.tobytes()


@pytest.mark.parametrize("shift", [0, 1])
def test_a_loop_in_place(shift: int) -> None:
    """x[i + shift] <- x[i] + 1 by rows: in place trips are apart, shifted ones are not."""
    rows, lanes = 19, 40
    x = np.random.default_rng(2).standard_normal((rows + shift, lanes)).astype(np.float32)
    row = {ROWS: (4 * lanes, Origin.TILE), LANES: (4, Origin.CORE)}
    here, there = tiled(0, F32, row), tiled(1, F32, row)
    source = device(0, F32, {ROWS: 4 * lanes, LANES: 4})
    target = device(1, F32, {ROWS: 4 * lanes, LANES: 4})
    ops = [load(0, F32), VecOp(CONST, F32, (), 1.0), op("add", F32, 0, 1)]
    body = (
        Copy((ROWS, LANES), source, here),
        vec((ROWS, LANES), [here], ops, VecOut(2, there, None, False)),
        Copy((ROWS, LANES), there, target),
    )
    axes = [Axis("rows", rows), Axis("lanes", lanes)]
    prog = program(axes, [TileLoop(ROWS, 1, body)], buffers(4 * lanes, 4 * lanes), 2)
    wanted = x.copy()
    for i in range(rows):
        wanted[i + shift] = wanted[i] + 1
    for isa in isas():
        with SoftwareCard(memory=1 << 24, threads=2, isa=isa) as card:
            address = card.store(x.tobytes())
            loaded = card.load_program(prog)
            card.launch(loaded, [address, address + 4 * lanes * shift])
            got = card.read(address, x.nbytes)
        assert got == wanted.tobytes()
