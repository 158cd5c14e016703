"""Maps that one map alone reads: when they become part of it."""

from __future__ import annotations

import numpy as np
import pytest

from openspyre.frontend.inlined import inlined
from openspyre.ir.kernel import Kernel
from openspyre.ir.reference import evaluate
from openspyre.ir.text import parse_kernel

HEAD = """
kernel chain
arguments x b y
input x: f32[4, 6]
input b: f32[6]
output y: f32[{out}]
local t: f32[{shape}]
"""


def kernel(ops: str, shape: str = "4, 6", out: str = "4, 6", more: str = "") -> Kernel:
    return parse_kernel(HEAD.format(shape=shape, out=out) + more + ops)


def values(found: Kernel) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    given = {
        name: rng.standard_normal([e.constant for e in tensor.shape]).astype(np.float32)
        for name, tensor in found.tensors.items()
        if name in ("x", "b")
    }
    return evaluate(found, given)


BIAS = "op t map i0:4 i1:6\n  t[i0, i1] <- x[i0, i1] + b[i1]\n"
READ = {
    "twice": "op y map i0:4 i1:6\n  y[i0, i1] <- t[i0, i1] * exp(t[i0, i1])\n",
    "other names": "op y map i3:4 i2:6\n  y[i3, i2] <- t[i3, i2] * 2.0\n",
    "its index as a value": "op y map i1:4 i0:6\n  y[i1, i0] <- t[i1, i0] * f32(idx[i0])\n",
}


@pytest.mark.parametrize("name", READ)
def test_a_map_of_one_reader_is_part_of_it(name: str) -> None:
    before = kernel(BIAS + READ[name])
    after = inlined(before)
    assert [op.name for op in after.ops] == ["y"]
    assert "t" not in after.tensors
    np.testing.assert_array_equal(values(after)["y"], values(before)["y"])


def test_chains_are_joined_to_the_end_and_turned() -> None:
    before = kernel(
        BIAS + "op u map i0:6 i1:4\n  u[i0, i1] <- t[i1, i0] * f32(idx[i0])\n"
        "op y map i0:4 i1:6\n  y[i0, i1] <- u[i1, i0] - b[i1]\n",
        more="local u: f32[6, 4]\n",
    )
    after = inlined(before)
    assert [op.name for op in after.ops] == ["y"]
    np.testing.assert_array_equal(values(after)["y"], values(before)["y"])


LONG = "exp(exp(exp(exp(exp(x[i0, i1])))))"
STAY = {
    "two readers": kernel(
        BIAS + "op r reduce i0:4 | r0:6\n  r[i0] <- max: t[i0, r0]\n"
        "op y map i0:4 i1:6\n  y[i0, i1] <- t[i0, i1] - r[i0]\n",
        more="local r: f32[4]\n",
    ),
    "a reduction": kernel(BIAS + "op y reduce i0:4 | r0:6\n  y[i0] <- sum: t[i0, r0]\n", out="4"),
    "a point for many": kernel(
        "op t map i0:4\n  t[i0] <- x[i0, 0] + 1.0\n"
        "op y map i0:4 i1:6\n  y[i0, i1] <- x[i0, i1] * t[i0]\n",
        shape="4",
    ),
    "a part": kernel(BIAS + "op y map i0:4 i1:5\n  y[i0, i1] <- t[i0, i1 + 1] * 2.0\n", out="4, 5"),
    "a guard": kernel(BIAS + "op y map i0:4 i1:6\n  y[i0, i1] <- t?[i0, i1] * 2.0\n"),
    "a long chain": kernel(
        f"op t map i0:4 i1:6\n  t[i0, i1] <- {LONG}\n"
        "op y map i0:4 i1:6\n  y[i0, i1] <- t[i0, i1] * 2.0\n"
    ),
    "a narrow integer": parse_kernel("""
kernel wraps
arguments x y
input x: i32[4]
output y: i32[4]
local t: i8[4]
op t map i0:4
  t[i0] <- x[i0] + 1:i32
op y map i0:4
  y[i0] <- t[i0] * 2:i32
"""),
    "written meanwhile": parse_kernel("""
kernel updates
arguments x y
input x: f32[4]
output y: f32[4]
local t: f32[4]
op t map i0:4
  t[i0] <- x[i0] + 1.0
op x map i0:4
  x[i0] <- x[i0] * 2.0
op y map i0:4
  y[i0] <- t[i0] * x[i0]
""".replace("input x", "mutated x")),
}  # fmt: skip


@pytest.mark.parametrize("name", STAY)
def test_what_is_more_than_that_stays(name: str) -> None:
    assert inlined(STAY[name]) is STAY[name]
