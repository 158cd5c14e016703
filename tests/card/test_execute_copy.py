"""LOAD and STORE of the execute engine: strides, bounds, indices, adding, refusals."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from openspyre.card.native import SoftwareCard
from openspyre.errors import CardError
from openspyre.ir.kernel import DType
from openspyre.ir.program import Axis, Bound, Copy, Indirect, Node, Origin, Section, Term, TileLoop
from tests.execute_programs import (
    STORAGE,
    Array,
    buffers,
    contiguous,
    device,
    lx,
    program,
    run,
)


@pytest.fixture
def card() -> Iterator[SoftwareCard]:
    with SoftwareCard(memory=1 << 24, threads=2) as opened:
        yield opened


def sample(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (*shape, dtype.bytes), dtype=np.uint8)
    if dtype is DType.BOOL:
        raw &= 1
    return raw.view(STORAGE[dtype])[..., 0]


def moved(
    card: SoftwareCard, source: Array, order: tuple[int, ...], dtype: DType, parts: int = 1
) -> Array:
    """Source -> LX in its own order -> a target whose dims lie in another order in memory."""
    shape = source.shape
    rank = len(shape)
    item = dtype.bytes
    in_lx = dict(enumerate(contiguous(shape, item)))
    out_strides = contiguous([shape[d] for d in order], item)
    target = {d: out_strides[order.index(d)] for d in range(rank)}
    axes = [Axis(f"a{d}", shape[d], parts if d == 0 else 1) for d in range(rank)]
    walked = tuple(range(rank))
    body = [
        Copy(
            walked, device(0, dtype, dict(enumerate(contiguous(shape, item)))), lx(0, dtype, in_lx)
        ),
        Copy(walked, lx(0, dtype, in_lx), device(1, dtype, target)),
    ]
    size = max(int(np.prod(shape)) * item, 1)
    out = np.zeros([shape[d] for d in order], source.dtype)
    return run(card, program(axes, body, buffers(size), 2), [source, out])[1]


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 3), (33, 70), (3, 1, 17, 5), (0, 4)])
def test_every_dtype_and_order(card: SoftwareCard, dtype: DType, shape: tuple[int, ...]) -> None:
    source = sample(shape, dtype)
    rank = len(shape)
    for order in {tuple(range(rank)), tuple(reversed(range(rank)))}:
        got = moved(card, source, order, dtype)
        assert got.tobytes() == np.ascontiguousarray(source.transpose(order)).tobytes()


@pytest.mark.parametrize("parts", [2, 5, 32])
@pytest.mark.parametrize("extent", [1, 4, 31, 64, 100])
def test_uneven_parts(card: SoftwareCard, parts: int, extent: int) -> None:
    source = sample((extent, 6), DType.F16)
    assert moved(card, source, (1, 0), DType.F16, parts).tobytes() == source.T.tobytes()


def test_negative_and_zero_strides_and_odd_addresses(card: SoftwareCard) -> None:
    source = np.arange(60, dtype=np.int16).reshape(10, 6)
    axes = [Axis("i", 10), Axis("j", 3), Axis("r", 2)]
    # Rows backwards, every second column, each twice (stride 0), from an odd address.
    at = {0: -12, 1: 4, 2: 0}
    tile = {0: 12, 1: 4, 2: 2}
    last_row = device(0, DType.I16, at)
    body = [
        Copy((0, 1, 2), last_row, lx(0, DType.I16, tile)),
        Copy((0, 1, 2), lx(0, DType.I16, tile), device(1, DType.I16, tile)),
    ]
    prog = program(axes, body, buffers(120), 2)
    address = card.allocate(512) + 1
    card.write(address, source.tobytes())
    out = card.allocate(512) + 3
    loaded = card.load_program(prog)
    card.launch(loaded, [address + 9 * 12, out])
    card.unload(loaded)
    got = np.frombuffer(card.read(out, 120), np.int16).reshape(10, 3, 2)
    np.testing.assert_array_equal(got, np.repeat(source[::-1, ::2, None], 2, 2))


@pytest.mark.parametrize("tile", [1, 3, 8, 64])
def test_tiles(card: SoftwareCard, tile: int) -> None:
    source = sample((21, 5), DType.F32)
    axes = [Axis("i", 21, 3), Axis("j", 5)]
    tiles = lx(0, DType.F32, {0: 20, 1: 4})
    body: list[Node] = [
        TileLoop(
            0,
            tile,
            (
                Copy((0, 1), device(0, DType.F32, {0: 20, 1: 4}), tiles),
                Copy((0, 1), tiles, device(1, DType.F32, {0: 4, 1: 84})),
            ),
        )
    ]
    out = np.zeros((5, 21), np.float32)
    got = run(card, program(axes, body, buffers(tile * 20), 2), [source, out])[1]
    assert got.tobytes() == source.T.tobytes()


@pytest.mark.parametrize("shift", [-30, -3, 0, 2, 9, 30])
def test_bounds_zero_fill_loads(card: SoftwareCard, shift: int) -> None:
    """A pad: out[i, j] = in[i, j + shift] where that exists, else 0."""
    source = np.arange(1, 61, dtype=np.int32).reshape(6, 10)
    axes = [Axis("i", 6, 4), Axis("j", 10)]
    bound = Bound((Term(1, 1, Origin.ABSOLUTE),), shift, 10)
    tile = lx(0, DType.I32, {0: 40, 1: 4})
    body = [
        Copy((0, 1), device(0, DType.I32, {0: 40, 1: 4}), tile, bounds=(bound,)),
        Copy((0, 1), tile, device(1, DType.I32, {0: 40, 1: 4})),
    ]
    prog = program(axes, body, buffers(240), 2)
    address = card.store(source.tobytes())
    out = card.allocate(240)
    loaded = card.load_program(prog)
    card.launch(loaded, [address + 4 * shift, out])
    card.unload(loaded)
    wanted = np.zeros_like(source)
    for j in range(10):
        if 0 <= j + shift < 10:
            wanted[:, j] = source[:, j + shift]
    np.testing.assert_array_equal(
        np.frombuffer(card.read(out, 240), np.int32).reshape(6, 10), wanted
    )


@pytest.mark.parametrize(("coefficient", "offset"), [(1, 0), (-1, 4), (2, -3), (-2, 7)])
def test_bounds_over_two_axes(card: SoftwareCard, coefficient: int, offset: int) -> None:
    """Stores move only the elements that a bound over both axes allows."""
    source = np.arange(1, 43, dtype=np.uint8).reshape(6, 7)
    axes = [Axis("i", 6), Axis("j", 7)]
    bound = Bound((Term(0, 1, Origin.ABSOLUTE), Term(1, coefficient, Origin.ABSOLUTE)), offset, 5)
    tile = lx(0, DType.U8, {0: 7, 1: 1})
    body = [
        Copy((0, 1), device(0, DType.U8, {0: 7, 1: 1}), tile),
        Copy((0, 1), tile, device(1, DType.U8, {0: 7, 1: 1}), bounds=(bound,)),
    ]
    before = np.full((6, 7), 99, np.uint8)
    got = run(card, program(axes, body, buffers(42), 2), [source, before])[1]
    i, j = np.indices((6, 7))
    value = offset + i + coefficient * j
    np.testing.assert_array_equal(got, np.where((value >= 0) & (value < 5), source, before))


def gather(
    index: DType, *, wrap: bool = False, clamp: bool = False, lanes_first: bool = False
) -> list[Node]:
    """out[t, h] = table[index[t], h] for a table of 9 rows of 5 floats."""
    rows = lx(0, index, {0: index.bytes})
    tile = lx(1, DType.F32, {0: 20, 1: 4})
    axes = (1, 0) if lanes_first else (0, 1)
    return [
        Copy((0,), device(1, index, {0: index.bytes}), rows),
        Copy(
            axes,
            device(0, DType.F32, {1: 4}),
            tile,
            indirect=(Indirect(rows, 20, 9, wrap, clamp),),
            origin=0,
        ),
        Copy(axes, tile, device(2, DType.F32, {0: 20, 1: 4})),
    ]


@pytest.mark.parametrize("index", [DType.I64, DType.I32, DType.I16, DType.I8, DType.U8])
@pytest.mark.parametrize("lanes_first", [False, True])
def test_gather(card: SoftwareCard, index: DType, lanes_first: bool) -> None:
    table = np.arange(45, dtype=np.float32).reshape(9, 5)
    rows = np.array([3, 0, 8, 8, 1, 2, 7], STORAGE[index])
    prog = program(
        [Axis("t", 7, 3), Axis("h", 5)],
        gather(index, lanes_first=lanes_first),
        buffers(56, 140),
        3,
    )
    out = np.zeros((7, 5), np.float32)
    np.testing.assert_array_equal(run(card, prog, [table, rows, out])[2], table[rows])


def test_gather_wraps_and_clamps(card: SoftwareCard) -> None:
    table = np.arange(45, dtype=np.float32).reshape(9, 5)
    rows = np.array([-1, -9, -10, 9, 4, 100, 0], np.int64)
    prog = program(
        [Axis("t", 7), Axis("h", 5)],
        gather(DType.I64, wrap=True, clamp=True),
        buffers(56, 140),
        3,
    )
    got = run(card, prog, [table, rows, np.ones((7, 5), np.float32)])[2]
    wanted = np.zeros((7, 5), np.float32)
    wanted[[0, 1, 4, 6]] = table[[8, 0, 4, 0]]
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("bad", [-1, 9, 1 << 40, -(1 << 60)])
def test_index_out_of_range_names_the_op(card: SoftwareCard, bad: int) -> None:
    table = np.zeros((9, 5), np.float32)
    rows = np.array([0, 1, bad, 3, 4, 5, 6], np.int64)
    prog = program(
        [Axis("t", 7), Axis("h", 5)],
        gather(DType.I64),
        buffers(56, 140),
        3,
        sources=("model.py:7 embedding",),
    )
    message = f"model.py:7 embedding: index {bad} is out of range for a dimension of size 9"
    with pytest.raises(CardError, match=message):
        run(card, prog, [table, rows, np.ones((7, 5), np.float32)])


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.I64, DType.I32, DType.I8])
def test_scatter_add_in_order(card: SoftwareCard, dtype: DType) -> None:
    """table[index[t], h] += values[t, h], duplicates included, over several cores."""
    rng = np.random.default_rng(1)
    table = rng.integers(-9, 9, (9, 5)).astype(STORAGE[dtype])
    rows = rng.integers(0, 9, 40)
    values = rng.integers(-9, 9, (40, 5)).astype(STORAGE[dtype])
    item = dtype.bytes
    index, tile = lx(0, DType.I64, {0: 8}), lx(1, dtype, {0: 5 * item, 1: item})
    body = [
        Copy((0,), device(1, DType.I64, {0: 8}), index),
        Copy((0, 1), device(2, dtype, {0: 5 * item, 1: item}), tile),
        Copy(
            (0, 1),
            tile,
            device(0, dtype, {1: item}),
            indirect=(Indirect(index, 5 * item, 9, False, False),),
            add=True,
        ),
    ]
    prog = program([Axis("t", 40, 4), Axis("h", 5)], body, buffers(320, 40 * 5 * item), 3)
    got = run(card, prog, [table, rows, values])[0]
    wanted = table.copy()
    np.add.at(wanted, rows, values)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("base", "stride"), [(-4, 4), (1 << 24, 4), (0, 1 << 40), (0, -4), (1 << 62, 1 << 62)]
)
def test_access_outside_memory_is_refused(card: SoftwareCard, base: int, stride: int) -> None:
    place = device(0, DType.F32, {0: stride}, base=card.memory_base + base)
    tile = lx(0, DType.F32, {0: 4})
    for body in ([Copy((0,), place, tile)], [Copy((0,), tile, place)]):
        with pytest.raises(CardError, match=r"access .* of the card's memory"):
            run(card, program([Axis("i", 64)], body, buffers(256), 0), [])


def test_access_outside_a_buffer_is_refused(card: SoftwareCard) -> None:
    for stride, extent in ((4, 65), (-4, 2), (1 << 41, 3)):
        tile = lx(0, DType.F32, {0: stride})
        address = card.allocate(4096)
        body = [Copy((0,), device(0, DType.F32, {0: 4}, base=address), tile)]
        with pytest.raises(CardError, match="LX buffer b0"):
            run(card, program([Axis("i", extent)], body, buffers(256), 0), [])


def test_bounded_and_indexed_accesses_are_checked_too(card: SoftwareCard) -> None:
    tile, rows = lx(0, DType.F32, {0: 4}), lx(1, DType.I64, {0: 8})
    outside = device(0, DType.F32, {0: 4}, base=card.memory_base + (1 << 24) - 8)
    always = Bound((Term(0, 1, Origin.ABSOLUTE),), 0, 100)
    zero = Indirect(rows, 4, 1, False, False)
    zeros = card.store(bytes(64))
    fill = Copy((0,), device(0, DType.I64, {0: 8}, base=zeros), rows)
    for node in (
        Copy((0,), outside, tile, bounds=(always,)),
        Copy((0,), tile, outside, bounds=(always,)),
        Copy((0,), outside, tile, indirect=(zero,)),
        Copy((0,), tile, outside, indirect=(zero,)),
    ):
        with pytest.raises(CardError, match="the card's memory"):
            run(card, program([Axis("i", 8)], [fill, node], buffers(64, 64), 0), [])


def test_sections_see_what_earlier_ones_stored(card: SoftwareCard) -> None:
    """A transposition through device memory, split differently in the two sections."""
    source = sample((40, 24), DType.I32)
    tile = lx(0, DType.I32, {0: 96, 1: 4})
    strides, back = {0: 96, 1: 4}, {0: 4, 1: 160}
    first = Section(
        "first",
        (Axis("i", 40, 8), Axis("j", 24)),
        (
            Copy((0, 1), device(0, DType.I32, strides), tile),
            Copy((0, 1), tile, device(1, DType.I32, back)),
        ),
    )
    turned = lx(0, DType.I32, {0: 4, 1: 160})
    second = Section(
        "second",
        (Axis("i", 40), Axis("j", 24, 6)),
        (
            Copy((0, 1), device(1, DType.I32, back), turned),
            Copy((0, 1), turned, device(2, DType.I32, back)),
        ),
    )
    zeros = np.zeros((24, 40), np.int32)
    prog = program([], [], buffers(4096), 3, sections=[first, second])
    np.testing.assert_array_equal(run(card, prog, [source, zeros, zeros])[2], source.T)
