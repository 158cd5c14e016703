"""Transcendentals computed once."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from openspyre.compiler.canonical import canonicalize
from openspyre.ir.kernel import Call, Kernel, walk
from openspyre.ir.reference import evaluate
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1

SOFTMAX = """
kernel softmax
arguments x y
input x: f16[{0}, {1}]
output y: f16[{0}, {1}]
local m: f32[{0}, 1]
local l: f32[{0}, 1]
op m reduce i0:{0} | r0:{1}
  m[i0, 0] <- max: x[i0, r0]
op l reduce i0:{0} | r0:{1}
  l[i0, 0] <- sum: exp(x[i0, r0] - m[i0, 0])
op y map i0:{0} i1:{1}
  y[i0, i1] <- f16(exp(x[i0, i1] - m[i0, 0]) / l[i0, 0])
"""


def exps(kernel: Kernel) -> int:
    return sum(isinstance(n, Call) and n.op == "exp" for op in kernel.ops for n in walk(op.body))


def test_a_softmax_takes_each_exponential_once() -> None:
    kernel = parse_kernel(SOFTMAX.format(6, 40))
    shared = canonicalize(kernel, SPYRE_CARD_V1)
    assert (exps(kernel), exps(shared)) == (2, 1)
    x = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float16)
    arguments = {"x": x, "y": np.zeros((6, 40), np.float16)}
    before, after = (evaluate(k, dict(arguments)) for k in (kernel, shared))
    assert np.array_equal(before["y"], after["y"])


@pytest.mark.parametrize(
    "text",
    [
        SOFTMAX.format(6, 1 << 20),  # a row is too long to keep
        SOFTMAX.format(6, 40).replace("exp(x[i0, i1] - m", "exp(x[i0, i1] + m"),
    ],
)
def test_what_is_not_the_same_or_too_large_stays(text: str) -> None:
    kernel = parse_kernel(text)
    assert exps(canonicalize(kernel, SPYRE_CARD_V1)) == 2


CAPPED = """
kernel capped
arguments x y
input x: f16[{0}, {1}]
output y: f16[{0}, {1}]
local s: f16[{0}, {1}]
local m: f32[{0}, 1]
local l: f32[{0}, 1]
op s map i0:{0} i1:{1}
  s[i0, i1] <- x[i0, i1] * 3.0
op m reduce i0:{0} | r0:{1}
  m[i0, 0] <- max: where(idx[r0]:i32 <= idx[i0]:i32, tanh(s[i0, r0] * 0.02) * 50.0, -inf)
op l reduce i0:{0} | r0:{1}
  l[i0, 0] <- sum: exp(where(idx[r0]:i32 <= idx[i0]:i32, tanh(s[i0, r0] * 0.02) * 50.0, -inf) - m[i0, 0])
op y map i0:{0} i1:{1}
  y[i0, i1] <- f16(exp(where(idx[i1]:i32 <= idx[i0]:i32, tanh(s[i0, i1] * 0.02) * 50.0, -inf) - m[i0, 0]) / l[i0, 0])
"""  # noqa: E501


def calls(kernel: Kernel, name: str) -> int:
    return sum(isinstance(n, Call) and n.op == name for op in kernel.ops for n in walk(op.body))


@pytest.mark.parametrize("size", [(6, 40), (70, 33)])
def test_a_masked_softmax_of_capped_scores_takes_each_function_once(size: tuple[int, int]) -> None:
    kernel = parse_kernel(CAPPED.format(*size))
    shared = canonicalize(kernel, SPYRE_CARD_V1)
    assert [calls(k, f) for k in (kernel, shared) for f in ("tanh", "exp")] == [3, 2, 1, 1]
    x = np.random.default_rng(0).standard_normal(size).astype(np.float16)
    x[:, -1] = 6e4  # far above the cap
    x[1, 0] = np.nan
    arguments = {"x": x, "y": np.zeros(size, np.float16)}
    with np.errstate(invalid="ignore", over="ignore"):
        before, after = (evaluate(k, dict(arguments)) for k in (kernel, shared))
    assert np.array_equal(before["y"], after["y"], equal_nan=True)


def test_functions_of_rows_too_long_to_fill_pt_are_computed_anew() -> None:
    shared = canonicalize(parse_kernel(CAPPED.format(64, 4096)), SPYRE_CARD_V1)
    assert (calls(shared, "tanh"), calls(shared, "exp")) == (3, 2)


NORM = """
kernel norm
arguments x y
input x: f16[{0}, 128]
output y: f16[{0}, 128]
local v: f32[{0}, 1]
op v reduce i0:{0} | r0:128
  v[i0, 0] <- sum: x[i0, r0] * x[i0, r0]
op y map i0:{0} i1:128
  y[i0, i1] <- f16(x[i0, i1] * rsqrt(v[i0, 0] * 0.0078125 + 0.00001))
"""


@pytest.mark.parametrize(("rows", "points"), [(512, 512), (4, 4 * 128)])
def test_what_all_elements_of_a_row_need_is_computed_for_the_row(rows: int, points: int) -> None:
    kernel = parse_kernel(NORM.format(rows))
    found = canonicalize(kernel, SPYRE_CARD_V1)
    (op,) = (o for o in found.ops for n in walk(o.body) if isinstance(n, Call) and n.op == "rsqrt")
    assert prod(d.extent.constant or 0 for d in op.dims) == points  # of few rows it is not worth it
    x = np.random.default_rng(0).standard_normal((rows, 128)).astype(np.float16)
    arguments = {"x": x, "y": np.zeros_like(x)}
    before, after = (evaluate(k, dict(arguments)) for k in (kernel, found))
    np.testing.assert_allclose(
        after["y"].astype(np.float32), before["y"].astype(np.float32), rtol=1e-3
    )


LOOKED_UP = """
kernel looked_up
arguments x i j l y
input x: f32[9, 40]
input i: i64[6]
input j: i64[6]
output l: f32[6]
output y: f32[6]
op l reduce i0:6 | r0:40
  lookup k0 = i[i0] size 9
  l[i0] <- sum: exp(x[k0, r0])
op y reduce i0:6 | r0:40
  lookup k0 = {0}[i0] size 9
  y[i0] <- max: exp(x[k0, r0])
"""


@pytest.mark.parametrize("table", ["i", "j"])
def test_looked_up_rows_keep_their_own_lookups(table: str) -> None:
    kernel = parse_kernel(LOOKED_UP.format(table))
    random = np.random.default_rng(0)
    arguments = {
        "x": random.standard_normal((9, 40)).astype(np.float32),
        "i": np.arange(6), "j": np.arange(3, 9), "l": np.zeros(6, np.float32),
        "y": np.zeros(6, np.float32),
    }  # fmt: skip
    before, after = (
        evaluate(k, dict(arguments)) for k in (kernel, canonicalize(kernel, SPYRE_CARD_V1))
    )
    for name in ("l", "y"):
        np.testing.assert_allclose(after[name], before[name], rtol=1e-6)
