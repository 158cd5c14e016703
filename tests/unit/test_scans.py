"""Long scans in blocks."""

from __future__ import annotations

import numpy as np
import pytest

from openspyre.compiler.bounds import highest
from openspyre.compiler.canonical import canonicalize
from openspyre.compiler.pipeline import compile_kernel
from openspyre.ir import verify
from openspyre.ir.kernel import Kernel, Kind
from openspyre.ir.reference import evaluate
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1

SCAN = """
kernel scanned
{symbols}
arguments x i y
input x: {dtype}[3, {n}]
input i: i64[3]
output y: {dtype}[{n}, 3]
op y scan i0:3 | r0:{n}
  lookup k0 = i[i0] size 3
  y[r0, i0] <- {reduce}: (x[k0, r0] * {factor})
"""


def scan(n: int | str, dtype: str, reduce: str, symbols: str = "") -> Kernel:
    factor = "1.5" if dtype == "f32" else "3"
    text = SCAN.format(n=n, dtype=dtype, reduce=reduce, symbols=symbols, factor=factor)
    return parse_kernel(text)


def longest(kernel: Kernel) -> int:
    scans = [op for op in kernel.ops if op.kind is Kind.SCAN]
    return max(highest(op.rdims[0].extent, kernel.limits) for op in scans)


def same_values(kernel: Kernel, n: int, sizes: dict[str, int]) -> None:
    changed = canonicalize(kernel, SPYRE_CARD_V1)
    assert list(verify.canonical(changed, SPYRE_CARD_V1)) == []
    assert longest(changed) <= 32_768 < longest(kernel)
    random = np.random.default_rng(n)
    x = random.integers(-9, 10, (3, n))
    if kernel.tensors["x"].dtype.is_float:
        x = (1 + x * 1e-6).astype(np.float32)
    given = {"x": x, "i": np.array([2, 0, 1]), "y": np.zeros((n, 3), x.dtype)}
    before, after = (evaluate(k, dict(given), sizes)["y"] for k in (kernel, changed))
    if x.dtype == np.int64:
        assert np.array_equal(before, after)
    else:
        np.testing.assert_allclose(after, before, rtol=1e-5)


@pytest.mark.parametrize("n", [40_961, 65_536, 100_003])
@pytest.mark.parametrize("reduce", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "i64"])
def test_values_stay(n: int, dtype: str, reduce: str) -> None:
    same_values(scan(n, dtype, reduce), n, {})


@pytest.mark.parametrize("n", [32_769, 40_960, 65_536])
def test_values_stay_for_every_size_of_a_class(n: int) -> None:
    kernel = scan("n", "i64", "sum", "symbols n\nlimits n:32769..65536")
    same_values(kernel, n, {"n": n})


def test_a_short_scan_stays_one_op() -> None:
    kernel = canonicalize(scan(10_000, "f32", "sum"), SPYRE_CARD_V1)
    assert sum(op.kind is Kind.SCAN for op in kernel.ops) == 1


def test_a_scan_of_any_length_has_a_program() -> None:
    compile_kernel(scan(300_000_001, "f32", "sum"), SPYRE_CARD_V1)
