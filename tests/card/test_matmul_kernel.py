"""The matmul kernel, panels and widened rows of the software card."""

from __future__ import annotations

import numpy as np
import pytest

from openspyre.ir.kernel import DType
from tests.card.probe import CODE, STORAGE, Array, call, isas, same_on_every_isa
from tests.card.test_elements import by_value, from_bf16, to_bf16

FLOATS = (DType.F16, DType.BF16, DType.F32)
SHAPES = [
    (0, 5, 5), (1, 1, 1), (1, 64, 7), (3, 8, 0), (5, 63, 33), (6, 64, 64), (7, 33, 20), (11, 48, 9),
    (12, 32, 5), (13, 17, 31), (25, 16, 8), (40, 64, 3),
]  # fmt: skip


def widened(dtype: DType, raw: Array) -> Array:
    return from_bf16(raw) if dtype is DType.BF16 else raw.astype(np.float32)


def numbers(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return to_bf16(x) if dtype is DType.BF16 else x.astype(STORAGE[dtype])


def chain(a: Array, b: Array, start: Array) -> Array:
    """Ascending k; each step is a fused multiply-add (exact product, one rounding)."""
    total = start.astype(np.float32)
    for k in range(a.shape[1]):
        product = a[:, k, None].astype(np.float64) * b[k].astype(np.float64)
        total = (product + total).astype(np.float32)
    return total


@pytest.mark.parametrize("c_type", FLOATS, ids=by_value)
@pytest.mark.parametrize("b_type", FLOATS, ids=by_value)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matmul(shape: tuple[int, int, int], b_type: DType, c_type: DType) -> None:
    rows, columns, k = shape
    a = np.zeros((rows + 1, k + 3), np.float32)
    a[:rows, :k] = widened(b_type, numbers(b_type, (rows, k), 1))
    panel = np.zeros((k + 1, 80), STORAGE[b_type])
    panel[:k, :columns] = numbers(b_type, (k, columns), 2)
    want = chain(a[:rows, :k], widened(b_type, panel)[:k, :columns], np.zeros((rows, columns)))

    def run(isa: str) -> Array:
        c = np.full((rows + 1, columns + 5), 77, STORAGE[c_type])
        operands = (a, k + 3, panel, 80, CODE[b_type], c, columns + 5, CODE[c_type], 0)
        assert call("pt", isa, rows, columns, k, *operands) == 0
        assert (c[rows:] == 77).all()
        assert (c[:rows, columns:] == 77).all()
        return widened(c_type, c[:rows, :columns])

    stored = to_bf16(want) if c_type is DType.BF16 else want.astype(STORAGE[c_type])
    assert np.array_equal(same_on_every_isa(run), widened(c_type, stored))


@pytest.mark.parametrize("dtype", FLOATS, ids=by_value)
def test_a_split_of_k_that_accumulates_gives_the_same_bits(dtype: DType) -> None:
    rows, columns, k = 9, 41, 37
    a = widened(dtype, numbers(dtype, (rows, k), 1))
    panel = np.zeros((k, 64), STORAGE[dtype])
    panel[:, :columns] = numbers(dtype, (k, columns), 2)
    for isa in isas():
        results = []
        for cut in (0, 20):
            c = np.full((rows, columns), 5, np.float32)
            for low, high, add in ((0, cut, 0), (cut, k, 1 if cut else 0)):
                part = (a[:, low:], k, panel[low:], 64, CODE[dtype], c, columns, CODE[DType.F32])
                assert call("pt", isa, rows, columns, high - low, *part, add) == 0
            results.append(c)
        assert np.array_equal(*results)


def test_special_values_pass_through_a_matmul() -> None:
    a = np.array([[1, np.inf], [np.nan, 1], [-1, 1e30], [1, 1e-45]], np.float32)
    panel = np.zeros((2, 64), np.float32)
    panel[:, :2] = [[1, -1], [-1, 1e30]]
    want = np.array([[-np.inf, np.inf], [np.nan, np.nan], [-1e30, np.inf], [1, -1]], np.float32)
    for isa in isas():
        c = np.zeros((4, 2), np.float32)
        assert call("pt", isa, 4, 2, 2, a, 2, panel, 64, 2, c, 2, 2, 0) == 0
        assert np.array_equal(c, want, equal_nan=True), isa


def test_the_fused_multiply_add_rounds_once() -> None:
    rng = np.random.default_rng(8)
    a = rng.normal(size=(500, 1)).astype(np.float32)
    panel = np.zeros((1, 64), np.float32)
    panel[0] = rng.normal(size=64)
    start = (-a.astype(np.float64) * panel).astype(np.float32)  # leaves the product's lower half
    want = (a.astype(np.float64) * panel + start).astype(np.float32)
    for isa in isas():
        c = start.copy()
        assert call("pt", isa, 500, 64, 1, a, 1, panel, 64, 2, c, 64, 2, 1) == 0
        assert np.array_equal(c, want), isa
    assert (want != 0).mean() > 0.9


@pytest.mark.parametrize("order", ["k n", "n k", "strided"])
@pytest.mark.parametrize("shape", [(1, 1), (8, 8), (16, 64), (37, 50), (100, 64), (5, 3), (20, 17)])
@pytest.mark.parametrize("dtype", FLOATS, ids=by_value)
def test_pack(dtype: DType, shape: tuple[int, int], order: str) -> None:
    k, n = shape
    memory = numbers(dtype, (400 * 400,), 3)
    k_stride, n_stride = {"k n": (n + 3, 1), "n k": (1, k + 5), "strided": (3, 301)}[order]
    places = np.arange(k)[:, None] * k_stride + np.arange(n) * n_stride
    want = np.zeros((k, 64), memory.dtype)
    want[:, :n] = memory[places]
    for isa in isas():
        panel = np.full((k + 1, 64), 9, memory.dtype)
        assert call("pack", isa, memory, k_stride, n_stride, CODE[dtype], k, n, panel) == 0
        assert np.array_equal(panel[:k], want), isa
        assert (panel[k] == 9).all()


@pytest.mark.parametrize("order", ["rows", "transposed", "strided"])
@pytest.mark.parametrize("shape", [(1, 1), (8, 16), (3, 1100), (17, 33), (32, 40)])
@pytest.mark.parametrize("dtype", FLOATS, ids=by_value)
def test_widen(dtype: DType, shape: tuple[int, int], order: str) -> None:
    rows, k = shape
    memory = numbers(dtype, (400 * 400,), 4)
    strides = {"rows": (k + 3, 1), "transposed": (1, rows + 1), "strided": (301, 3)}
    row_stride, k_stride = strides[order]
    places = np.arange(rows)[:, None] * row_stride + np.arange(k) * k_stride
    for isa in isas():
        out = np.full((rows, k + 2), 9, np.float32)
        strides_and_type = (row_stride, k_stride, CODE[dtype])
        assert call("widen", isa, memory, *strides_and_type, rows, k, out, k + 2) == 0
        assert np.array_equal(out[:, :k], widened(dtype, memory[places])), isa
        assert (out[:, k:] == 9).all()
