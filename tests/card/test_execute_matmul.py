"""PT of the execute engine: every tail, tiles, parts, layouts, and the same bits everywhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from openspyre.card.native import SoftwareCard, library
from openspyre.errors import CardError, InvalidProgram
from openspyre.ir.kernel import DType
from openspyre.ir.program import Axis, Copy, Node, Origin, Program, Pt, TileLoop
from tests.card.checking import Instr, edited
from tests.execute_programs import Array, buffers, device, lx, program, run, stored, widened

FLOATS = (DType.F16, DType.BF16, DType.F32)
TOLERANCE = {DType.F16: 2e-3, DType.BF16: 1.6e-2, DType.F32: 1e-5}
M, N, K = 0, 1, 2


@pytest.fixture
def card() -> Iterator[SoftwareCard]:
    with SoftwareCard(memory=1 << 26, threads=2) as opened:
        yield opened


def available(isa: str) -> bool:
    with SoftwareCard(memory=1 << 20) as probe:
        code = library().spyre_card_use_isa(probe._card, isa.encode(), None)
    return bool(code == 0)


def matmul(
    sizes: tuple[int, int, int],
    dtype: DType,
    out: DType,
    *,
    parts: tuple[int, int] = (1, 1),
    tiles: tuple[int, int, int] = (0, 0, 0),
    b_is_nk: bool = False,
    right: DType | None = None,
) -> Program:
    """c[m, n] = a[m, k] @ b, b stored as [k, n] or as a weight [n, k]; tiles of 0: no loop.

    `right`: of b, where it is not that of a.
    """
    m, n, k = sizes
    item = dtype.bytes
    tm, tn, tk = (t or max(s, 1) for t, s in zip(tiles, sizes, strict=True))
    axes = [Axis("m", m, parts[0], 1), Axis("n", n, parts[1], parts[0]), Axis("k", k)]
    a = lx(0, dtype, {M: tk * item, K: item})
    of_b = right or dtype
    b = lx(1, of_b, {K: tn * item, N: item})
    partial = DType.F32 if tiles[2] else out
    c = lx(2, partial, {M: tn * partial.bytes, N: partial.bytes})
    in_memory = {N: k * item, K: item} if b_is_nk else {K: n * item, N: item}
    inner: list[Node] = [
        Copy((M, K), device(0, dtype, {M: k * item, K: item}), a),
        Copy((K, N), device(1, of_b, in_memory), b),
        Pt((), (M,), (N,), (K,), a, b, c),
    ]
    if tiles[2]:
        inner = [TileLoop(K, tk, tuple(inner))]
    inner.append(Copy((M, N), c, device(2, partial, {M: n * partial.bytes, N: partial.bytes})))
    if tiles[1]:
        inner = [TileLoop(N, tn, tuple(inner))]
    if tiles[0]:
        inner = [TileLoop(M, tm, tuple(inner))]
    room = buffers(tm * tk * item, tk * tn * item, tm * tn * 4)
    return program(axes, inner, room, 3)


def operands(sizes: tuple[int, int, int], dtype: DType, seed: int = 0) -> tuple[Array, Array]:
    m, n, k = sizes
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    return stored(a.astype(np.float32), dtype), stored(b.astype(np.float32), dtype)


def check(got: Array, a: Array, b: Array, dtype: DType, out: DType) -> None:
    exact = widened(a, dtype).astype(np.float64) @ widened(b, dtype).astype(np.float64)
    scale = 1 + np.abs(widened(a, dtype)) @ np.abs(widened(b, dtype))
    error = np.abs(widened(got, out).astype(np.float64) - exact) / scale
    assert error.size == 0 or error.max() <= TOLERANCE[out]


def outcome(
    card: SoftwareCard, prog: Program, a: Array, b: Array, shape: tuple[int, int], out: DType
) -> Array:
    empty = stored(np.full(shape, 7, np.float32), out)
    return run(card, prog, [a, b, empty])[2]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("b_is_nk", [False, True])
def test_tails(card: SoftwareCard, dtype: DType, b_is_nk: bool) -> None:
    for sizes in itertools.product((1, 2, 7, 13), (1, 15, 16, 33, 64, 65, 130), (1, 3, 64, 67)):
        a, b = operands(sizes, dtype)
        prog = matmul(sizes, dtype, dtype, b_is_nk=b_is_nk)
        given = np.ascontiguousarray(b.T) if b_is_nk else b
        check(outcome(card, prog, a, given, sizes[:2], dtype), a, b, dtype, dtype)


FP8 = (DType.F8E4M3, DType.F8E5M2)


def test_fp8_multiplies_with_nothing_else_and_is_no_result(card: SoftwareCard) -> None:
    sizes = (2, 3, 4)
    for wrong in (
        matmul(sizes, DType.F8E4M3, DType.F32, right=DType.F16),
        matmul(sizes, DType.F8E4M3, DType.F8E4M3),
    ):
        with pytest.raises(InvalidProgram, match=r"matmul|whole elements"):
            card.load_program(wrong)


@pytest.mark.parametrize("left", FP8)
@pytest.mark.parametrize("right", FP8)
@pytest.mark.parametrize("b_is_nk", [False, True])
def test_fp8_operands_of_both_kinds(
    card: SoftwareCard, left: DType, right: DType, b_is_nk: bool
) -> None:
    for sizes in itertools.product((1, 7), (1, 16, 65, 130), (1, 3, 64, 67, 200)):
        (a, _), (_, b) = operands(sizes, left), operands(sizes, right, 1)
        given = np.ascontiguousarray(b.T) if b_is_nk else b
        wide = [stored(widened(x, kind), DType.F16) for x, kind in ((a, left), (b, right))]
        want = outcome(card, matmul(sizes, DType.F16, DType.F32), *wide, sizes[:2], DType.F32)
        for out, tiles in itertools.product((DType.F32, DType.F16), ((0, 0, 0), (3, 16, 0))):
            prog = matmul(sizes, left, out, b_is_nk=b_is_nk, right=right, tiles=tiles)
            got = outcome(card, prog, a, given, sizes[:2], out)
            assert got.tobytes() == stored(want, out).tobytes()
        prog = matmul(sizes, left, DType.F32, b_is_nk=b_is_nk, right=right, tiles=(0, 0, 48))
        assert outcome(card, prog, a, given, sizes[:2], DType.F32).tobytes() == want.tobytes()


@pytest.mark.parametrize("sizes", [(0, 5, 6), (5, 0, 6), (0, 0, 0)])
def test_no_elements(card: SoftwareCard, sizes: tuple[int, int, int]) -> None:
    a, b = operands(sizes, DType.F16)
    assert outcome(card, matmul(sizes, DType.F16, DType.F16), a, b, sizes[:2], DType.F16).size == 0


@pytest.mark.parametrize("tile", [0, 4])
def test_empty_sum_is_zero(card: SoftwareCard, tile: int) -> None:
    sizes = (5, 70, 0)
    a, b = operands(sizes, DType.F16)
    prog = matmul(sizes, DType.F16, DType.F32, tiles=(0, 0, tile))
    assert (outcome(card, prog, a, b, sizes[:2], DType.F32) == 0).all()


@pytest.mark.parametrize("base", [1 << 40, -(1 << 40), 4])
def test_an_empty_sum_is_not_written_outside_of_its_buffer(card: SoftwareCard, base: int) -> None:
    sizes = (5, 70, 0)
    a, b = operands(sizes, DType.F16)

    def moved(_: int, instr: Instr) -> Instr:
        return replace(instr, c=replace(instr.c, base=base)) if isinstance(instr, Pt) else instr

    wrong = edited(matmul(sizes, DType.F16, DType.F32), moved)
    with pytest.raises(CardError, match="of LX buffer b2, which has"):
        outcome(card, wrong, a, b, sizes[:2], DType.F32)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("parts", [(4, 8), (32, 1), (1, 3), (5, 6)])
@pytest.mark.parametrize("b_is_nk", [False, True])
def test_parts_and_tiles_do_not_change_bits(
    card: SoftwareCard, dtype: DType, parts: tuple[int, int], b_is_nk: bool
) -> None:
    sizes = (50, 150, 40)
    a, b = operands(sizes, dtype)
    given = np.ascontiguousarray(b.T) if b_is_nk else b
    one = outcome(card, matmul(sizes, dtype, dtype, b_is_nk=b_is_nk), a, given, sizes[:2], dtype)
    check(one, a, b, dtype, dtype)
    for tiles in ((0, 0, 0), (7, 0, 0), (0, 48, 0), (8, 64, 0)):
        prog = matmul(sizes, dtype, dtype, parts=parts, tiles=tiles, b_is_nk=b_is_nk)
        assert outcome(card, prog, a, given, sizes[:2], dtype).tobytes() == one.tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("b_is_nk", [False, True])
def test_k_in_trips_continues_the_same_chain(
    card: SoftwareCard, dtype: DType, b_is_nk: bool
) -> None:
    sizes = (9, 70, 100)
    a, b = operands(sizes, dtype)
    given = np.ascontiguousarray(b.T) if b_is_nk else b
    whole = matmul(sizes, dtype, DType.F32, b_is_nk=b_is_nk)
    wanted = outcome(card, whole, a, given, sizes[:2], DType.F32)
    for tile in (1, 32, 99, 100, 128):
        prog = matmul(sizes, dtype, DType.F32, tiles=(0, 0, tile), parts=(2, 2), b_is_nk=b_is_nk)
        assert outcome(card, prog, a, given, sizes[:2], DType.F32).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
def test_bits_do_not_depend_on_isa_or_threads(dtype: DType) -> None:
    sizes = (37, 133, 71)
    a, b = operands(sizes, dtype)
    seen = set()
    for isa, threads in itertools.product(("avx512", "avx2", "portable"), (1, 3)):
        if not available(isa):
            continue
        with SoftwareCard(memory=1 << 24, threads=threads, isa=isa) as card:
            for b_is_nk in (False, True):
                given = np.ascontiguousarray(b.T) if b_is_nk else b
                prog = matmul(sizes, dtype, dtype, parts=(4, 2), b_is_nk=b_is_nk)
                seen.add(outcome(card, prog, a, given, sizes[:2], dtype).tobytes())
    assert len(seen) == 1


def test_kept_panels_follow_their_weight(card: SoftwareCard) -> None:
    """A weight [n, k] is packed once; a copy or a launch that writes it makes the panels anew."""
    sizes = (8, 100, 40)
    a, b = operands(sizes, DType.F16)
    weight = np.ascontiguousarray(b.T)
    at = [card.store(x.tobytes()) for x in (a, weight)] + [card.allocate(8 * 100 * 2)]
    loaded = card.load_program(matmul(sizes, DType.F16, DType.F16, parts=(2, 2), b_is_nk=True))

    def result() -> Array:
        card.launch(loaded, at)
        return np.frombuffer(card.read(at[2], 1600), np.float16).reshape(8, 100)

    first = result().copy()
    np.testing.assert_array_equal(result(), first)
    card.write(at[1], (weight * 2).tobytes())
    np.testing.assert_array_equal(result(), first * 2)
    # A launch that stores to the weight: copies the first half of its bytes back.
    axes = [Axis("i", 2000)]
    tile = lx(0, DType.F16, {0: 2})
    copy = program(
        axes,
        [
            Copy((0,), device(0, DType.F16, {0: 2}), tile),
            Copy((0,), tile, device(1, DType.F16, {0: 2})),
        ],
        buffers(4000),
        2,
    )
    source = card.store(weight.tobytes())
    other = card.load_program(copy)
    card.launch(other, [source, at[1]])
    half = result()
    np.testing.assert_array_equal(half[:, :50], first[:, :50])
    np.testing.assert_array_equal(half[:, 50:], first[:, 50:] * 2)
    card.unload(other)
    card.unload(loaded)


def test_batch_axes_and_split_rows(card: SoftwareCard) -> None:
    """Attention's q @ k.T: heads inside the rows of both operands, heads as batch."""
    batch, heads, rows, cols, width = 2, 3, 5, 7, 20
    rng = np.random.default_rng(3)
    q = rng.standard_normal((batch, rows, heads, width)).astype(np.float16)
    k = rng.standard_normal((batch, cols, heads, width)).astype(np.float16)
    axes = [
        Axis("b", batch, 2),
        Axis("h", heads, 3, 2),
        Axis("m", rows),
        Axis("n", cols),
        Axis("k", width),
    ]
    in_q = {0: rows * heads * width * 2, 1: width * 2, 2: heads * width * 2, 4: 2}
    in_k = {0: cols * heads * width * 2, 1: width * 2, 3: heads * width * 2, 4: 2}
    a = lx(0, DType.F16, {0: 600, 1: 200, 2: 40, 4: 2})
    b = lx(1, DType.F16, {0: 840, 1: 280, 4: 14, 3: 2})
    c = lx(2, DType.F32, {0: 420, 1: 140, 2: 28, 3: 4})
    body = [
        Copy((0, 1, 2, 4), device(0, DType.F16, in_q), a),
        Copy((0, 1, 3, 4), device(1, DType.F16, in_k), b),
        Pt((0, 1), (2,), (3,), (4,), a, b, c),
        Copy((0, 1, 2, 3), c, device(2, DType.F32, {0: 420, 1: 140, 2: 28, 3: 4})),
    ]
    out = np.zeros((batch, heads, rows, cols), np.float32)
    got = run(card, program(axes, body, buffers(1200, 1680, 840), 3), [q, k, out])[2]
    wanted = np.einsum("bmhk,bnhk->bhmn", q.astype(np.float64), k.astype(np.float64))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns", [5, 2, 1])
def test_several_axes_per_role(card: SoftwareCard, columns: int) -> None:
    """Rows, columns and sums over two axes each that do not lie one behind the other.

    With fewer columns than the operands hold the last axis may have one point on a core.
    """
    m1, m2, n1, n2, k1, k2 = 2, 3, 2, 5, 3, 4
    rng = np.random.default_rng(4)
    a = rng.standard_normal((k1, m2, m1, k2)).astype(np.float32)
    b = rng.standard_normal((n1, k2, k1, n2)).astype(np.float32)
    axes = [Axis(n, e) for n, e in zip("abcdef", (m1, m2, n1, columns, k1, k2), strict=True)]
    at_a = {4: 96, 1: 32, 0: 16, 5: 4}
    at_b = {2: 240, 5: 60, 4: 20, 3: 4}
    at_c = {1: 80, 0: 40, 2: 20, 3: 4}
    tiles = lx(0, DType.F32, at_a), lx(1, DType.F32, at_b), lx(2, DType.F32, at_c)
    body = [
        Copy((0, 1, 4, 5), device(0, DType.F32, at_a), tiles[0]),
        Copy((2, 3, 4, 5), device(1, DType.F32, at_b), tiles[1]),
        Pt((), (0, 1), (2, 3), (4, 5), *tiles),
        Copy((0, 1, 2, 3), tiles[2], device(2, DType.F32, at_c)),
    ]
    out = np.zeros((m2, m1, n1, n2), np.float32)
    got = run(card, program(axes, body, buffers(288, 480, 240), 3), [a, b, out])[2]
    wanted = np.einsum("xbay,cyxd->bacd", a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(got[..., :columns], wanted[..., :columns], rtol=1e-5, atol=1e-5)
    assert not got[..., columns:].any()


def test_loads_that_stay_in_lx_give_the_same(card: SoftwareCard) -> None:
    """A core-resident weight: loaded once outside of the row loop, read in every trip."""
    sizes = (40, 66, 30)
    a, b = operands(sizes, DType.F16)
    wanted = outcome(card, matmul(sizes, DType.F16, DType.F16), a, b, sizes[:2], DType.F16)
    tile = lx(0, DType.F16, {M: 60, K: 2})
    weight = lx(1, DType.F16, {K: 132, N: 2}, Origin.CORE)
    c = lx(2, DType.F16, {M: 132, N: 2})
    body: list[Node] = [
        Copy((K, N), device(1, DType.F16, {K: 132, N: 2}), weight),
        TileLoop(
            M,
            7,
            (
                Copy((M, K), device(0, DType.F16, {M: 60, K: 2}), tile),
                Pt((), (M,), (N,), (K,), tile, weight, c),
                Copy((M, N), c, device(2, DType.F16, {M: 132, N: 2})),
            ),
        ),
    ]
    axes = [Axis("m", 40, 4), Axis("n", 66), Axis("k", 30)]
    prog = program(axes, body, buffers(420, 3960, 924), 3)
    assert outcome(card, prog, a, b, sizes[:2], DType.F16).tobytes() == wanted.tobytes()


def test_a_store_over_the_source_keeps_the_load(card: SoftwareCard) -> None:
    """x is loaded, overwritten in device memory, then used: the loaded values count."""
    sizes = (6, 6, 6)
    a, b = operands(sizes, DType.F32)
    square = {M: 24, K: 4}
    tile, other, c = (
        lx(0, DType.F32, square),
        lx(1, DType.F32, {K: 24, N: 4}),
        lx(2, DType.F32, {M: 24, N: 4}),
    )
    body = [
        Copy((M, K), device(0, DType.F32, square), tile),
        Copy((K, N), device(1, DType.F32, {K: 24, N: 4}), other),
        Copy((K, N), other, device(0, DType.F32, {K: 24, N: 4})),
        Pt((), (M,), (N,), (K,), tile, other, c),
        Copy((M, N), c, device(2, DType.F32, {M: 24, N: 4})),
    ]
    axes = [Axis("m", 6), Axis("n", 6), Axis("k", 6)]
    got = run(
        card, program(axes, body, buffers(144, 144, 144), 3), [a, b, np.zeros((6, 6), np.float32)]
    )
    np.testing.assert_array_equal(got[0], b)
    check(got[2], a, b, DType.F32, DType.F32)


def test_infinities_and_nans_stay_in_their_rows(card: SoftwareCard) -> None:
    sizes = (8, 20, 16)
    a, b = operands(sizes, DType.F16)
    a[2, 3], a[5, 0] = np.nan, np.inf
    got = outcome(card, matmul(sizes, DType.F16, DType.F16), a, b, sizes[:2], DType.F16)
    assert np.isnan(got[2]).all()
    assert np.isinf(got[5]).all()
    rest = np.delete(got, [2, 5], 0)
    assert np.isfinite(rest).all()
