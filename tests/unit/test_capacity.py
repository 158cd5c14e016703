"""Tiles beside what stays in LX between steps."""

from __future__ import annotations

from openspyre.compiler.pipeline import plan_kernel
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1

# y needs most of a core's LX for s, in whatever tiles; t could stay there for u meanwhile.
CROWDED = """
kernel crowded
arguments x w z y u
input x: f16[32, 512, 64]
input w: f16[32, 512, 64]
input z: f16[32, 256, 1024]
output y: f16[32, 512, 512]
output u: f16[32, 256, 1024]
local t: f16[32, 256, 1024]
local tm: f32[32, 1, 1]
local s: f32[32, 512, 512]
local m: f32[32, 1, 1]
op tm reduce i0:32 | r0:256 r1:1024
  tm[i0, 0, 0] <- max: z[i0, r0, r1]
op t map i0:32 i1:256 i2:1024
  t[i0, i1, i2] <- f16(exp(z[i0, i1, i2] - tm[i0, 0, 0]))
op s contract i0:32 i1:512 i2:512 | r0:64
  s[i0, i1, i2] <- sum: x[i0, i1, r0] * w[i0, i2, r0]
op m reduce i0:32 | r0:512 r1:512
  m[i0, 0, 0] <- max: s[i0, r0, r1]
op y map i0:32 i1:512 i2:512
  y[i0, i1, i2] <- f16(s[i0, i1, i2] - m[i0, 0, 0])
op u map i0:32 i1:256 i2:1024
  u[i0, i1, i2] <- t[i0, i1, i2] * m[i0, 0, 0]
"""


def test_a_step_that_only_fits_without_what_could_stay_gets_all_of_lx() -> None:
    kernel = plan_kernel(parse_kernel(CROWDED), SPYRE_CARD_V1)
    step = next(step for step in kernel.steps if "s" in step.ops)
    assert {"s", "y"} <= set(step.ops)
    assert not step.loops  # one tile of each op, not ever smaller ones
    assert not step.inner
    assert "t" in kernel.residency
