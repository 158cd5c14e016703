"""Which sizes a variant is checked at, and what a wrong program raises."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openspyre.compiler.pipeline import compile_kernel
from openspyre.errors import BrokenInvariant
from openspyre.ir.kernel import Kernel
from openspyre.ir.program import Program
from openspyre.ir.text import parse_kernel
from openspyre.runtime import check
from openspyre.runtime.check import (
    argument_spans,
    can_occur,
    checked_sizes,
    checked_spans,
    proved,
)
from openspyre.settings import read_settings
from openspyre.spec import SPYRE_CARD_V1

NARROW = """kernel narrow
symbols s
limits s:65..128
arguments x y
input x: f16[3, s]
output y: f16[3, 64]
op a map i0:3 i1:64
  at "model.py:7 narrow"
  y[i0, i1] <- x[i0, i1 + 64]
"""
VIEWED = """kernel viewed
symbols s
limits s:65..128
arguments x y
input x: f32[s]
output y: f32[s // 3, 3]
op a map i0:s//3 i1:3
  y[i0, i1] <- x[3*i0 + i1] * 2.0
"""


def compiled(text: str) -> tuple[Kernel, Program]:
    kernel = parse_kernel(text)
    return kernel, compile_kernel(kernel, SPYRE_CARD_V1)


def test_smallest_largest_and_tail() -> None:
    found = checked_sizes({"a": (65, 128), "b": (1, 1), "c": (3, 4)})
    assert [tuple(sizes.values()) for sizes in found] == [(65, 1, 3), (128, 1, 4), (127, 1, 3)]
    assert [tuple(sizes.values()) for sizes in checked_sizes({"a": (2, 2)})] == [(2,)]


def test_sizes_that_the_kernel_rules_out() -> None:
    narrow, viewed = parse_kernel(NARROW), parse_kernel(VIEWED)
    assert [can_occur(narrow, {"s": s}) for s in (65, 127, 128)] == [False, False, True]
    assert [can_occur(viewed, {"s": s}) for s in (65, 66, 128)] == [False, True, False]


def test_sizes_that_cannot_occur_are_not_checked() -> None:
    kernel, program = compiled(NARROW)
    assert proved(program, kernel, SPYRE_CARD_V1) is program
    assert proved(program, kernel, SPYRE_CARD_V1, {"s": 128}) is program
    with pytest.raises(BrokenInvariant, match=r"wrong for s = 100:\nsection .*model.py:7 narrow"):
        proved(program, kernel, SPYRE_CARD_V1, {"s": 100})


def test_a_wrong_program_shows_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, program = compiled(NARROW)
    small = tuple(replace(b, bytes=b.bytes - 128) for b in program.buffers)
    wrong = replace(program, buffers=small)
    with pytest.raises(BrokenInvariant, match="LX buffer") as raised:
        proved(wrong, kernel, SPYRE_CARD_V1)
    assert "y[i0, i1] <- x[i0, i1 + 64]" in raised.value.text
    off = read_settings({"OPENSPYRE_CHECK": "off"})
    monkeypatch.setattr(check, "settings", lambda: off)
    assert proved(wrong, kernel, SPYRE_CARD_V1) is wrong


def test_spans_of_arguments() -> None:
    text = """kernel k
symbols s
arguments x t y z
input x: f16[4, s] strides [-10, 2]
scalar t: f32[]
output y: f32[s] strides [0]
output z: i64[s, 0]
op a map i0:s
  y[i0] <- x[0, i0] * t[]
"""
    kernel = parse_kernel(text)
    assert argument_spans(kernel, {"s": 3}) == [(-60, 10), (0, 4), (0, 0)]


def test_what_the_ops_store() -> None:
    """Pieces of a tensor add up, ops on the same part count once, scans write every point."""
    kernel = parse_kernel(
        """kernel k
        arguments x y z w
        input x: f16[4, 6]
        output y: f16[8, 6]
        output z: f32[4, 6]
        mutated w: f16[4, 6]
        op a map i0:4 i1:6
          y[i0, i1] <- x[i0, i1]
        op b map i0:4 i1:6
          y[i0 + 4, i1] <- x[i0, i1]
        op c scan i0:4 | r0:6
          z[i0, r0] <- sum: x[i0, r0]
        op d map i0:2 i1:6
          w[i0, i1] <- x[i0, i1]
        op e map i0:2 i1:6
          w[i0, i1] <- x[i0 + 2, i1]
        """
    )
    x, y, z, w = checked_spans(kernel, {})
    assert (x.stored, x.fresh) == (-1, False)
    assert (y.stored, y.fresh) == (96, True)
    assert (z.stored, z.fresh) == (96, True)
    assert (w.stored, w.fresh) == (24, False)


def test_what_a_scatter_stores() -> None:
    """A dim that its index does not depend on writes the same elements again and again."""
    kernel = parse_kernel(
        """kernel k
        arguments x i y z w
        input x: f32[5, 6]
        input i: i64[5]
        mutated y: f32[1]
        mutated z: f32[1, 6]
        mutated w: f32[3, 1]
        op a scatter i0:5 i1:6
          y[0] += x[i0, i1]
        op b scatter i0:5 i1:6
          z[0, i1] <- x[i0, i1]
        op c scatter i0:5 i1:6
          lookup t0 = i[i0] size 3
          w[t0, 0] += x[i0, i1]
        """
    )
    assert [span.stored for span in checked_spans(kernel, {})[2:]] == [4, 24, 20]
