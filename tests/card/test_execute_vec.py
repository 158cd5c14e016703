"""SFU of the execute engine: operands, dtypes, reductions, scans, over any shape and tiling."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from openspyre.card.native import SoftwareCard, library
from openspyre.ir.kernel import DType
from openspyre.ir.ops import CONST, INDEX, LOAD, SLOT, TABLE
from openspyre.ir.program import (
    Axis,
    Copy,
    Node,
    Origin,
    Program,
    Term,
    TileLoop,
    Vec,
    VecIndex,
    VecOp,
    VecOut,
)
from tests.execute_programs import (
    Array,
    buffers,
    contiguous,
    device,
    lx,
    program,
    run,
    stored,
    widened,
)

F32, I64, I32, BOOL = DType.F32, DType.I64, DType.I32, DType.BOOL


@pytest.fixture
def card() -> Iterator[SoftwareCard]:
    with SoftwareCard(memory=1 << 26, threads=2) as opened:
        yield opened


def op(name: str, dtype: DType, *args: int) -> VecOp:
    return VecOp(TABLE[name].code, dtype, args)


def load(number: int, dtype: DType) -> VecOp:
    return VecOp(LOAD, dtype.compute, (number,))


def vector_program(
    extents: Sequence[int],
    inputs: Sequence[tuple[DType, Sequence[int]]],
    ops: Sequence[VecOp],
    outputs: Sequence[tuple[int, DType, Sequence[int], str | None, bool]],
    *,
    parts: Mapping[int, int] | None = None,
    tiles: Mapping[int, int] | None = None,
    scalars: int = 0,
) -> Program:
    """One Vec over axes 0..n-1.

    Inputs are (dtype, the axes they have), outputs (value, dtype, axes, reduce, scan); each lies
    row-major in its own argument. Tiles loop over their axis; stores run inside of the loops over
    axes they have.
    """
    split, looped = dict(parts or {}), dict(tiles or {})
    stride, axes = 1, []
    for number, extent in enumerate(extents):
        axes.append(Axis(f"a{number}", extent, split.get(number, 1), stride))
        stride *= split.get(number, 1)
    tile_of = [looped.get(a, max(e, 1)) for a, e in enumerate(extents)]
    places, room, before, after = [], [], [], []
    for number, (dtype, has) in enumerate([*inputs, *((o[1], o[2]) for o in outputs)]):
        lengths = [tile_of[a] for a in has]
        tile = lx(number, dtype, dict(zip(has, contiguous(lengths, dtype.bytes), strict=True)))
        whole = contiguous([extents[a] for a in has], dtype.bytes)
        memory = device(number, dtype, dict(zip(has, whole, strict=True)))
        places.append(tile)
        room.append(int(np.prod(lengths, dtype=np.int64)) * dtype.bytes)
        is_input = number < len(inputs)
        copy = Copy(tuple(has), memory, tile) if is_input else Copy(tuple(has), tile, memory)
        (before if is_input else after).append(copy)
    outs = tuple(
        VecOut(value, place, reduce, scan)
        for (value, _, _, reduce, scan), place in zip(outputs, places[len(inputs) :], strict=True)
    )
    vec = Vec(tuple(range(len(extents))), tuple(places[: len(inputs)]), (), tuple(ops), outs)
    body: list[Node] = [*before, vec]
    reduced = [a for a in looped if any(a not in o[2] for o in outputs)]
    for axis in reduced:  # innermost: stores come after them
        body = [TileLoop(axis, looped[axis], tuple(body))]
    body += after
    for axis in [a for a in looped if a not in reduced]:
        body = [TileLoop(axis, looped[axis], tuple(body))]
    count = len(inputs) + len(outputs)
    return program(axes, body, buffers(*room), count, scalars=scalars)


def evaluate(
    card: SoftwareCard, prog: Program, given: Sequence[Array], out: Sequence[Array], **more: Any
) -> list[Array]:
    return run(card, prog, [*given, *out], **more)[len(given) :]


SHAPES = [
    (1,),
    (7,),
    (64,),
    (1000,),
    (3000,),
    (5, 3),
    (17, 100),
    (3, 5, 64),
    (2, 3, 1030),
    (4, 1, 9),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32])
def test_floats_widen_and_round_once(
    card: SoftwareCard, shape: tuple[int, ...], dtype: DType
) -> None:
    """x * x + row, with a row broadcast over the leading axes."""
    rng = np.random.default_rng(0)
    x = stored(rng.standard_normal(shape).astype(np.float32), dtype)
    row = stored(rng.standard_normal(shape[-1:]).astype(np.float32), dtype)
    axes = range(len(shape))
    ops = [load(0, dtype), load(1, dtype), op("mul", F32, 0, 0), op("add", F32, 2, 1)]
    prog = vector_program(
        shape, [(dtype, axes), (dtype, axes[-1:])], ops, [(3, dtype, axes, None, False)]
    )
    wide = widened(x, dtype)
    wanted = stored(wide * wide + widened(row, dtype), dtype)
    got = evaluate(card, prog, [x, row], [np.zeros_like(x)])[0]
    assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", [I64, I32, DType.I16, DType.I8, DType.U8])
def test_integers_wrap(card: SoftwareCard, dtype: DType) -> None:
    info = np.iinfo(stored(np.zeros(1), dtype).dtype)
    rng = np.random.default_rng(1)
    x = rng.integers(info.min, info.max, 777, dtype=info.dtype, endpoint=True)
    y = rng.integers(info.min, info.max, 777, dtype=info.dtype, endpoint=True)
    ops = [
        load(0, dtype),
        load(1, dtype),
        op("mul", dtype.compute, 0, 1),
        op("add", dtype.compute, 2, 0),
    ]
    prog = vector_program((777,), [(dtype, (0,))] * 2, ops, [(3, dtype, (0,), None, False)])
    got = evaluate(card, prog, [x, y], [np.zeros_like(x)])[0]
    wide = np.int64 if dtype is I64 else np.int32
    wanted = (x.astype(wide) * y.astype(wide) + x.astype(wide)).astype(info.dtype)
    np.testing.assert_array_equal(got, wanted)


def test_masks_and_where(card: SoftwareCard) -> None:
    rng = np.random.default_rng(2)
    x, keep = rng.standard_normal((9, 130)).astype(np.float16), rng.random((9, 130)) < 0.5
    ops = [
        load(0, DType.F16),
        load(1, BOOL),
        VecOp(CONST, F32, (), float("-inf")),
        VecOp(CONST, F32, (), 0.0),
        op("lt", BOOL, 0, 3),
        op("and", BOOL, 4, 1),
        op("where", F32, 5, 0, 2),
        op("not", BOOL, 1),
    ]
    prog = vector_program(
        (9, 130),
        [(DType.F16, (0, 1)), (BOOL, (0, 1))],
        ops,
        [(6, DType.F16, (0, 1), None, False), (7, BOOL, (0, 1), None, False)],
    )
    got = evaluate(card, prog, [x, keep], [np.zeros_like(x), np.zeros_like(keep)])
    np.testing.assert_array_equal(got[0], np.where(keep & (x < 0), x, np.float16(-np.inf)))
    np.testing.assert_array_equal(got[1], ~keep)


def test_strided_transposed_and_splat_operands(card: SoftwareCard) -> None:
    """out[i, j] = x[j, i] - column[i] + one."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((70, 33)).astype(np.float32)
    column, one = rng.standard_normal(33).astype(np.float32), np.array([2.5], np.float32)
    ops = [
        *(load(0, F32), load(1, F32), load(2, F32)),
        *(op("sub", F32, 0, 1), op("add", F32, 3, 2)),
    ]
    prog = vector_program(
        (33, 70),
        [(F32, (1, 0)), (F32, (0,)), (F32, ())],
        ops,
        [(4, F32, (0, 1), None, False), (4, F32, (1, 0), None, False)],
    )
    wanted = x.T - column[:, None] + one
    got = evaluate(card, prog, [x, column, one], [np.zeros_like(wanted), np.zeros_like(x)])
    np.testing.assert_array_equal(got[0], wanted)
    np.testing.assert_array_equal(got[1], wanted.T)


@pytest.mark.parametrize("dtype", [I64, I32])
@pytest.mark.parametrize("tiles", [{}, {0: 4}, {1: 64}])
def test_index_values_and_scalars(
    card: SoftwareCard, dtype: DType, tiles: Mapping[int, int]
) -> None:
    """A causal mask value: 3 i - j + 5, and a host scalar."""
    index = VecIndex((Term(0, 3, Origin.ABSOLUTE), Term(1, -1, Origin.ABSOLUTE)), 5)
    out, scaled = lx(0, dtype, {0: 150 * dtype.bytes, 1: dtype.bytes}), lx(1, F32, {0: 600, 1: 4})
    vec = Vec(
        (0, 1),
        (),
        (index,),
        (
            VecOp(INDEX, dtype, (0,)),
            VecOp(TABLE["cast"].code, F32, (0,)),
            VecOp(SLOT, F32, (2,)),
            op("mul", F32, 1, 2),
        ),
        (VecOut(0, out), VecOut(3, scaled)),
    )
    body: tuple[Node, ...] = (
        vec,
        Copy((0, 1), out, device(0, dtype, {0: 150 * dtype.bytes, 1: dtype.bytes})),
        Copy((0, 1), scaled, device(1, F32, {0: 600, 1: 4})),
    )
    for axis, tile in tiles.items():
        body = (TileLoop(axis, tile, body),)
    prog = program([Axis("i", 10, 3), Axis("j", 150)], body, buffers(12000, 6000), 2, scalars=1)
    i, j = np.indices((10, 150))
    wanted = 3 * i - j + 5
    outs = [stored(np.zeros_like(wanted), dtype), np.zeros((10, 150), np.float32)]
    got = run(card, prog, outs, scalars=[0.1])
    np.testing.assert_array_equal(got[0], wanted)
    np.testing.assert_array_equal(got[1], wanted.astype(np.float32) * np.float32(0.1))


NUMPY: Mapping[str, Any] = {
    "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "any": np.any
}  # fmt: skip


def reduction(
    card: SoftwareCard,
    x: Array,
    dtype: DType,
    kept: tuple[int, ...],
    reduce: str,
    **plan: Any,
) -> Array:
    acc = dtype.compute
    prog = vector_program(
        x.shape,
        [(dtype, range(x.ndim))],
        [load(0, dtype)],
        [(0, acc, kept, reduce, False)],
        **plan,
    )
    out = np.full([x.shape[a] for a in kept], 7).astype(stored(np.zeros(1), acc).dtype)
    return evaluate(card, prog, [x], [out])[0]


KEPT = [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("shape", [(4, 5, 70), (3, 1, 1), (1, 9, 1100), (2, 64, 3)])
@pytest.mark.parametrize("tiles", [{}, {0: 2}, {1: 3}, {2: 64}, {0: 1, 1: 2, 2: 50}])
def test_reductions_over_any_axes(
    card: SoftwareCard, kept: tuple[int, ...], shape: tuple[int, ...], tiles: Mapping[int, int]
) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape).astype(np.float16)
    over = tuple(a for a in range(3) if a not in kept)
    exact = np.sum(x.astype(np.float64), axis=over)
    got = reduction(card, x, DType.F16, kept, "sum", tiles=tiles)
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-4)
    got = reduction(card, x, DType.F16, kept, "max", tiles=tiles)
    np.testing.assert_array_equal(got, np.max(x, axis=over))


@pytest.mark.parametrize("dtype", [F32, I64, I32, DType.I8, DType.BF16, BOOL])
@pytest.mark.parametrize("reduce", list(NUMPY))
@pytest.mark.parametrize("kept", [(0,), (1,), ()])
def test_every_reduction_and_class(
    card: SoftwareCard, dtype: DType, reduce: str, kept: tuple[int, ...]
) -> None:
    if (dtype is BOOL) != (reduce == "any"):
        return
    rng = np.random.default_rng(6)
    x = stored(rng.integers(-2, 3, (9, 150)).astype(np.float32), dtype)
    if dtype is BOOL:
        x = rng.random((9, 150)) < 0.01
    over = tuple(a for a in range(2) if a not in kept)
    acc = stored(np.zeros(1), dtype.compute).dtype
    wanted = NUMPY[reduce](
        widened(x, dtype).astype(acc),
        axis=over,
        **({} if reduce in ("max", "min", "any") else {"dtype": acc}),
    )
    got = reduction(card, x, dtype, kept, reduce, parts={kept[0]: 3} if kept else {})
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("kept", [(0,), (1,)])
def test_nan_wins(card: SoftwareCard, reduce: str, kept: tuple[int, ...]) -> None:
    for where in itertools.product((0, 3, 8), (0, 63, 64, 129)):
        x = np.random.default_rng(7).standard_normal((9, 130)).astype(np.float32)
        x[where] = np.nan
        got = reduction(card, x, F32, kept, reduce)
        np.testing.assert_array_equal(got, NUMPY[reduce](x, axis=1 - kept[0]))


NEUTRAL = {"sum": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}


@pytest.mark.parametrize("reduce", list(NEUTRAL))
@pytest.mark.parametrize("tiles", [{}, {0: 4}, {1: 4}])
@pytest.mark.parametrize("kept", [(0,), (1,), ()])
def test_empty_reductions(
    card: SoftwareCard, reduce: str, tiles: Mapping[int, int], kept: tuple[int, ...]
) -> None:
    shape = (0, 6) if kept == (1,) else (6, 0)
    x = np.zeros(shape, np.float32)
    got = reduction(card, x, F32, kept, reduce, tiles=tiles)
    np.testing.assert_array_equal(got, np.full([shape[a] for a in kept], NEUTRAL[reduce]))


@pytest.mark.parametrize("reduce", ["sum", "max", "prod"])
@pytest.mark.parametrize("shape", [(5,), (3, 1), (1, 64), (4, 100), (2, 3000), (7, 0)])
@pytest.mark.parametrize("dtype", [F32, I64])
def test_scans(card: SoftwareCard, reduce: str, shape: tuple[int, ...], dtype: DType) -> None:
    rng = np.random.default_rng(8)
    x = rng.integers(-1, 2, shape).astype(stored(np.zeros(1), dtype).dtype)
    axes = range(len(shape))
    prog = vector_program(
        shape, [(dtype, axes)], [load(0, dtype)], [(0, dtype, axes, reduce, True)], parts={0: 2}
    )
    if len(shape) == 1:
        prog = vector_program(
            shape, [(dtype, axes)], [load(0, dtype)], [(0, dtype, axes, reduce, True)]
        )
    function = {"sum": np.add, "max": np.maximum, "prod": np.multiply}[reduce]
    got = evaluate(card, prog, [x], [np.zeros_like(x)])[0]
    wanted = function.accumulate(x, axis=-1) if x.size else x
    np.testing.assert_array_equal(got, wanted)


def softmax_program(rows: int, cols: int, dtype: DType, parts: int, tile: int) -> Program:
    """max, then exp and its sum, then the quotient: three Vecs over tiles of rows."""
    item = dtype.bytes
    axes = [Axis("r", rows, parts), Axis("c", cols)]
    x, most, total, powers, out = (
        lx(0, dtype, {0: cols * item, 1: item}),
        lx(1, F32, {0: 4}),
        lx(2, F32, {0: 4}),
        lx(3, F32, {0: cols * 4, 1: 4}),
        lx(4, dtype, {0: cols * item, 1: item}),
    )
    memory = {0: cols * item, 1: item}
    exp = (load(0, dtype), load(1, F32), op("sub", F32, 0, 1), op("exp", F32, 2))
    body = (
        Copy((0, 1), device(0, dtype, memory), x),
        Vec((0, 1), (x,), (), (load(0, dtype),), (VecOut(0, most, "max"),)),
        Vec((0, 1), (x, most), (), exp, (VecOut(3, powers), VecOut(3, total, "sum"))),
        Vec(
            (0, 1),
            (powers, total),
            (),
            (load(0, F32), load(1, F32), op("div", F32, 0, 1)),
            (VecOut(2, out),),
        ),
        Copy((0, 1), out, device(1, dtype, memory)),
    )
    room = buffers(tile * cols * item, tile * 4, tile * 4, tile * cols * 4, tile * cols * item)
    return program(axes, [TileLoop(0, tile, body)], room, 2)


@pytest.mark.parametrize("cols", [1, 5, 64, 128, 130, 1500])
def test_softmax_has_the_same_bits_everywhere(cols: int) -> None:
    rng = np.random.default_rng(9)
    x = (rng.standard_normal((40, cols)) * 3).astype(np.float16)
    x[3] = -np.inf
    x[3, 0] = 1
    seen = set()
    for isa, threads in (("avx512", 1), ("avx512", 3), ("avx2", 2), ("portable", 1)):
        with SoftwareCard(memory=1 << 24, threads=threads) as card:
            if library().spyre_card_use_isa(card._card, isa.encode(), None):
                continue
            for parts, tile in ((1, 40), (8, 3), (32, 1)):
                prog = softmax_program(40, cols, DType.F16, parts, tile)
                seen.add(evaluate(card, prog, [x], [np.zeros_like(x)])[0].tobytes())
    assert len(seen) == 1
    got = np.frombuffer(seen.pop(), np.float16).reshape(x.shape)
    wide = np.exp(x.astype(np.float64) - x.max(1, keepdims=True).astype(np.float64))
    np.testing.assert_allclose(got, wide / wide.sum(1, keepdims=True), rtol=2e-3, atol=1e-6)


def test_in_place(card: SoftwareCard) -> None:
    """An output over the bytes of an input that later ops still need."""
    x = np.random.default_rng(10).standard_normal((6, 2000)).astype(np.float32)
    tile = lx(0, F32, {0: 8000, 1: 4})
    other = lx(1, F32, {0: 8000, 1: 4})
    vec = Vec(
        (0, 1),
        (tile,),
        (),
        (load(0, F32), op("neg", F32, 0), load(0, F32), op("add", F32, 1, 2), op("sub", F32, 2, 1)),
        (VecOut(1, tile), VecOut(3, other), VecOut(4, other)),
    )
    rows = {0: 8000, 1: 4}
    body = [
        Copy((0, 1), device(0, F32, rows), tile),
        vec,
        Copy((0, 1), tile, device(1, F32, rows)),
        Copy((0, 1), other, device(2, F32, rows)),
    ]
    prog = program([Axis("i", 6), Axis("j", 2000)], body, buffers(48000, 48000), 3)
    got = evaluate(card, prog, [x], [np.zeros_like(x)] * 2)
    np.testing.assert_array_equal(got[0], -x)
    np.testing.assert_array_equal(got[1], 2 * x)


def test_many_live_values(card: SoftwareCard) -> None:
    """More registers than stay in L1: blocks shrink, values do not change."""
    x = np.random.default_rng(11).standard_normal((3, 700)).astype(np.float32)
    ops = [load(0, F32)]
    for i in range(60):
        ops += [VecOp(CONST, F32, (), float(i)), op("mul", F32, 0, len(ops))]
    terms = [i for i, o in enumerate(ops) if o.code == TABLE["mul"].code]
    total = terms[0]
    for term in terms[1:]:
        ops.append(op("add", F32, total, term))
        total = len(ops) - 1
    prog = vector_program((3, 700), [(F32, (0, 1))], ops, [(total, F32, (0, 1), None, False)])
    got = evaluate(card, prog, [x], [np.zeros_like(x)])[0]
    wanted = np.zeros_like(x)
    for i in range(60):
        wanted = wanted + x * np.float32(i)
    np.testing.assert_array_equal(got, wanted)


def test_denormals_stay(card: SoftwareCard) -> None:
    x = np.array([1e-40, -1e-45, 1.2e-38], np.float32)
    half = np.array([6e-8, 3e-6], np.float16)
    ops = [load(0, F32), VecOp(CONST, F32, (), 1.0), op("mul", F32, 0, 1)]
    prog = vector_program((3,), [(F32, (0,))], ops, [(2, F32, (0,), None, False)])
    assert evaluate(card, prog, [x], [np.zeros_like(x)])[0].tobytes() == x.tobytes()
    ops = [load(0, DType.F16), VecOp(CONST, F32, (), 1.0), op("mul", F32, 0, 1)]
    prog = vector_program((2,), [(DType.F16, (0,))], ops, [(2, DType.F16, (0,), None, False)])
    assert evaluate(card, prog, [half], [np.zeros_like(half)])[0].tobytes() == half.tobytes()
