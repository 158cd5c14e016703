"""Kernels for wide ranges of sizes: proved, and right, where sizes are least and where they mix.

What a plan presumes of a size must hold for every size of the class. A product of sizes spans the
product of their ranges: here it is 162 to 32,768 points for one plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from openspyre.compiler.emit import emit
from openspyre.ir.reference import evaluate
from openspyre.ir.text import parse_kernel
from openspyre.runtime.check import check_program
from openspyre.spec import SPYRE_CARD_V1
from tests.card_runner import run_program
from tests.random_kernels import changed_stage, differing, inputs_of, planned

HEAD = """kernel wide
symbols a b c
limits a:2..8 b:9..64 c:9..64
"""
FLAT = HEAD + "arguments x y\ninput x: {dtype}[a, b, c]\noutput y: {dtype}[a*b*c]\n"
KERNELS = {
    "a scan over all": FLAT.format(dtype="i64")
    + "op y scan | r0:a*b*c\n  y[r0] <- sum: x[r0 // c // b, r0 // c % b, r0 % c]\n",
    "a scan of floats": FLAT.format(dtype="f32")
    + "op y scan | r0:a*b*c\n  y[r0] <- max: x[r0 // c // b, r0 // c % b, r0 % c]\n",
    "a scan that is read": HEAD
    + """arguments x v y
input x: b1[a, b, c]
input v: f16[a*b*c + 1]
local s: i64[a*b*c]
output y: f16[a, b, c]
op s scan | r0:a*b*c
  s[r0] <- sum: i64(x[r0 // c // b, r0 // c % b, r0 % c])
op y gather i0:a i1:b i2:c
  lookup k0 = s[i0*b*c + i1*c + i2] size a*b*c + 1
  y[i0, i1, i2] <- where(x[i0, i1, i2], v[k0], 0.0)
""",
    "sums": HEAD
    + """arguments x y z
input x: f16[a, b, c]
local n: f32[a, b]
output y: f32[a*b]
output z: f32[1]
op n reduce i0:a i1:b | r0:c
  n[i0, i1] <- sum: x[i0, i1, r0]
op y map i0:a*b
  y[i0] <- n[i0 // b, i0 % b] * 2.0
op z reduce | r0:a r1:b r2:c
  z[0] <- sum: x[r0, r1, r2]
""",
    "a softmax": HEAD
    + """arguments x y
input x: f16[a, b, c]
local m: f32[a, b]
local n: f32[a, b]
output y: f16[a, b, c]
op m reduce i0:a i1:b | r0:c
  m[i0, i1] <- max: x[i0, i1, r0]
op n reduce i0:a i1:b | r0:c
  n[i0, i1] <- sum: exp(x[i0, i1, r0] - m[i0, i1])
op y map i0:a i1:b i2:c
  y[i0, i1, i2] <- exp(x[i0, i1, i2] - m[i0, i1]) / n[i0, i1]
""",
    "a product": HEAD
    + """arguments x w y
input x: f16[a, b, c]
input w: f16[c, b]
output y: f32[a*b, b]
op y contract i0:a*b i1:b | r0:c
  y[i0, i1] <- sum: x[i0 // b, i0 % b, r0] * w[r0, i1]
""",
}


def corners() -> list[Mapping[str, int]]:
    """Sizes least and largest in every combination, and one below the largest."""
    ends = itertools.product((2, 8), (9, 64), (9, 64))
    return [dict(zip("abc", sizes, strict=True)) for sizes in (*ends, (7, 63, 63))]


@pytest.mark.parametrize("name", KERNELS)
def test_one_plan_is_right_for_all_sizes_of_a_class(name: str) -> None:
    kernel = parse_kernel(KERNELS[name])
    plan, stages = planned(kernel)
    program = emit(plan, SPYRE_CARD_V1)
    check_program(program, kernel, corners(), SPYRE_CARD_V1)
    for sizes in corners()[::3]:
        assert changed_stage(kernel, stages, sizes) == "", sizes
        inputs = inputs_of(kernel, sizes)
        got, _ = run_program(program, plan, inputs, sizes)
        assert differing(got, evaluate(kernel, inputs, sizes), kernel) == "", sizes
