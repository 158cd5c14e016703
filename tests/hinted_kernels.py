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


def told(*hints: str, text: str = TWO) -> Kernel:
    """The kernel of a text with these hints."""
    return parse_kernel(text.replace("HINTS", "\n".join(f"hint {h}" for h in hints)))
