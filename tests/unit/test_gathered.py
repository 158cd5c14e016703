"""Products look up the rows of gathered operands themselves, where few points use each."""

from __future__ import annotations

import pytest

from openspyre.compiler.canonical import canonicalize
from openspyre.ir.kernel import Kernel, Kind
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.card_runner import check_on_card
from tests.unit.test_canonical import same_values

PAGED = """
kernel paged
arguments q pages table y
input q: f16[2, ROWS, 64]
input pages: f16[9, SIZE, 2, 64]
input table: i64[5]
output y: f32[2, ROWS, 5, SIZE]
local k: f16[5, SIZE, 2, 64]
op k gather i0:5 i1:SIZE i2:2 i3:64
  lookup k0 = table[i0] size 9 wrap
  k[i0, i1, i2, i3] <- pages[k0, i1, i2, i3]
op y contract i0:2 i1:ROWS i2:5 i3:SIZE | r0:64
  y[i0, i1, i2, i3] <- (q[i0, i1, r0] * k[i2, i3, i0, r0])
"""
VALUES = """
kernel values
arguments p pages table y
input p: f16[2, 4, 5, 16]
input pages: f16[9, 16, 2, 33]
input table: i32[5]
output y: f16[2, 4, 33]
local v: f16[5, 16, 2, 33]
op v gather i0:5 i1:16 i2:2 i3:33
  lookup k0 = table[i0] size 9 wrap
  v[i0, i1, i2, i3] <- pages[k0, i1, i2, i3]
op y contract i0:2 i1:4 i2:33 | r0:5 r1:16
  y[i0, i1, i2] <- (p[i0, i1, r0, r1] * v[r0, r1, i0, i2])
"""


def paged(rows: int, size: int, text: str = PAGED) -> Kernel:
    return parse_kernel(text.replace("ROWS", str(rows)).replace("SIZE", str(size)))


def gathers(kernel: Kernel) -> int:
    return sum(op.kind is Kind.GATHER for op in canonicalize(kernel, SPYRE_CARD_V1).ops)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("size", [1, 13, 16, 128])
def test_scores_of_pages(rows: int, size: int) -> None:
    kernel = paged(rows, size)
    assert gathers(kernel) == 0
    same_values(kernel)
    check_on_card(kernel)


def test_weighted_values_of_pages() -> None:
    kernel = parse_kernel(VALUES)
    assert gathers(kernel) == 0
    same_values(kernel)
    check_on_card(kernel)


def test_rows_that_many_points_use_are_copied_once() -> None:
    assert gathers(paged(SPYRE_CARD_V1.pt_fill_rows, 16)) == 1
    check_on_card(paged(SPYRE_CARD_V1.pt_fill_rows, 16))


@pytest.mark.parametrize(
    "text",
    [
        PAGED.replace("input pages", "mutated pages").replace(
            "op y", "op pages map i0:9 i1:SIZE i2:2 i3:64\n  pages[i0, i1, i2, i3] <- 0.0\nop y"
        ),
        PAGED.replace("table y", "table y k").replace("local k", "output k"),
        PAGED.replace("table y", "table y z").replace("local k", "output z: f16[5]\nlocal k")
        + "op z map i0:5\n  z[i0] <- k[i0, 0, 0, 0]\n",
    ],
    ids=["pages that change in between", "a result", "another reader"],
)
def test_copies_that_are_needed_stay(text: str) -> None:
    kernel = paged(4, 16, text)
    assert gathers(kernel) == 1
    same_values(kernel)
