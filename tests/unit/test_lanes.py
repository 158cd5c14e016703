"""Which dim fills the SFU's lanes."""

from __future__ import annotations

import pytest

from openspyre.compiler.lanes import lanes_of
from openspyre.ir.kernel import Kernel
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1


def kernel(rows: int, width: int, op: str) -> Kernel:
    return parse_kernel(f"""
kernel k
arguments x y
input x: f32[{rows}, {width}]
output y: f32[{rows}]
{op}
""")


@pytest.mark.parametrize(
    ("rows", "reduce", "lane"),
    [(512, "max", "i0"), (16, "max", "i0"), (1, "max", "r0"), (512, "sum", "r0")],
)
def test_what_does_not_round_reduces_side_by_side(rows: int, reduce: str, lane: str) -> None:
    text = f"op a reduce i0:{rows} | r0:1000\n  y[i0] <- {reduce}: x[i0, r0]"
    found = kernel(rows, 1000, text)
    lanes = lanes_of(found, found.ops[0], SPYRE_CARD_V1)
    assert lanes.dim == lane
    across = SPYRE_CARD_V1.clock_ghz / SPYRE_CARD_V1.sfu_reduce_rate
    cycles = lanes.cycles(rows * 1000, rows if lane == "i0" else 1000, SPYRE_CARD_V1)
    assert (cycles < rows * 1000 * across) == (lane == "i0")


def test_a_scan_runs_along_its_dim() -> None:
    text = "op a scan i0:64 | r0:100\n  y[i0, r0] <- sum: x[i0, r0]"
    found = parse_kernel(f"""
kernel k
arguments x y
input x: f32[64, 100]
output y: f32[64, 100]
{text}
""")
    assert lanes_of(found, found.ops[0], SPYRE_CARD_V1).dim == "r0"


def test_lanes_that_few_points_fill_cost_as_much_as_full_ones() -> None:
    text = "op a reduce i0:512 | r0:1000\n  y[i0] <- max: x[i0, r0]"
    found = kernel(512, 1000, text)
    lanes = lanes_of(found, found.ops[0], SPYRE_CARD_V1)
    one, all_ = (lanes.cycles(1000, n, SPYRE_CARD_V1) for n in (1, SPYRE_CARD_V1.sfu_lanes))
    assert one > all_
