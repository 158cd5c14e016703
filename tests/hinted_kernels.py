"""Kernels with a place for hints."""

from __future__ import annotations

from openspyre.ir.kernel import Kernel
from openspyre.ir.text import parse_kernel

TWO = """kernel two
HINTS
arguments x w v z y
input x: f16[64, 256]
input w: f16[256, 256]
input v: f16[64, 64]
output z: f16[64, 256]
output y: f16[64, 256]
local t: f16[64, 256]
op a contract i0:64 i1:256 | r0:256
  t[i0, i1] <- sum: x[i0, r0] * w[r0, i1]
op b contract i0:64 i1:256 | r0:64
  z[i0, i1] <- sum: v[i0, r0] * t[r0, i1]
op c map i0:64 i1:256
  y[i0, i1] <- exp(t[i0, i1])
"""

# Steps fetch a and t, so that there are two ways to plan, and they differ.
MLP = """
kernel mlp
HINTS
arguments x w v y
input x: f16[128, 384]
input w: f16[384, 1536]
input v: f16[1536, 384]
output y: f16[128, 384]
local a: f16[128, 1536]
local t: f16[128, 384]
local b: f16[128, 384]
local s: f32[128, 1]
op a contract i0:128 i1:1536 | r0:384
  a[i0, i1] <- sum: x[i0, r0] * w[r0, i1]
op t contract i0:128 i1:384 | r0:1536
  t[i0, i1] <- sum: a[i0, r0] * v[r0, i1]
op s reduce i0:128 | r0:384
  s[i0, 0] <- sum: t[i0, r0]
op b map i0:128 i1:384
  b[i0, i1] <- f16(t[i0, i1] * s[i0, 0])
op y map i0:128 i1:384
  y[i0, i1] <- f16(b[i0, i1] + x[i0, i1])
"""


def told(*hints: str, text: str = TWO) -> Kernel:
    """The kernel of a text with these hints."""
    return parse_kernel(text.replace("HINTS", "\n".join(f"hint {h}" for h in hints)))


def mlp(*hints: str) -> Kernel:
    """A kernel of two ways to plan, with these hints."""
    return told(*hints, text=MLP)
