"""The bytes that bounds count: every byte of an argument that is touched, once."""

from __future__ import annotations

import pytest

from openspyre.compiler.least_work import Work, least_work
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1

HALVES = """
kernel halves
arguments x y
input x: f32[64, 10] {strides}
output y: f32[64, 10]
op a map i0:{first} i1:10
  y[i0, i1] <- x[i0, i1] * 2.0
op b map i0:{rest} i1:10
  y[i0 + {at}, i1] <- x[i0 + {at}, i1] * 3.0
"""


def total(text: str) -> Work:
    return sum(least_work(parse_kernel(text), SPYRE_CARD_V1).values(), Work())


@pytest.mark.parametrize(
    ("first", "at", "rows"),
    [
        (40, 40, 64),  # parts that together are all of it
        (64, 40, 64),  # a part of what is touched anyway
        (30, 40, 54),  # a gap between
    ],
)
def test_parts_of_an_argument_count_once_each(first: int, at: int, rows: int) -> None:
    found = total(HALVES.format(first=first, at=at, rest=64 - at, strides=""))
    assert found.read_bytes == rows * 10 * 4
    assert found.written_bytes == rows * 10 * 4


def test_rows_that_are_one_row_in_memory_count_once() -> None:
    text = HALVES.format(first=40, at=40, rest=24, strides="strides [0, 1]")
    assert total(text).read_bytes == 10 * 4


def test_parts_of_different_ops_stay_theirs() -> None:
    text = HALVES.format(first=40, at=40, rest=24, strides="")
    works = least_work(parse_kernel(text), SPYRE_CARD_V1)
    assert {n: w.read_bytes for n, w in works.items()} == {"a": 40 * 10 * 4, "b": 24 * 10 * 4}
