"""Narrow weights: read as they are stored, widened in LX, right for every dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from openspyre.compiler.canonical import canonicalize
from openspyre.ir.kernel import DType, Kernel, Kind
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.card_runner import check_on_card

LINEAR = """kernel linear
arguments x w s y
input x: {wide}[{m}, {k}]
input w: {narrow}[{n}, {k}]
input s: {wide}[{n}, {groups}]
local t: {wide}[{n}, {k}]
output y: {wide}[{m}, {n}]
op widen map i0:{n} i1:{k}
  t[i0, i1] <- {body}
op dot contract i0:{m} i1:{n} | r0:{k}
  y[i0, i1] <- sum: x[i0, r0] * t[i1, r0]
"""
PLAIN = LINEAR.replace("w: {narrow}[{n}, {k}]", "w: {narrow}[{k}, {n}]")
WIDENED = {"f8e4m3": "w[i0, i1]", "f8e5m2": "w[i0, i1]", "i8": "{wide}(w[i0, i1])"}
WIDENED["u8"] = WIDENED["i8"]


def linear(
    narrow: str, wide: str, shape: tuple[int, int, int], *, scale: str = "", groups: int = 1,
    text: str = LINEAR,
) -> Kernel:  # fmt: skip
    m, n, k = shape
    body = WIDENED[narrow].format(wide=wide) + (f" * s[{scale}]" if scale else "")
    if text is PLAIN:
        body = body.replace("w[i0, i1]", "w[i1, i0]")
    return parse_kernel(
        text.format(narrow=narrow, wide=wide, m=m, n=n, k=k, groups=groups, body=body)
    )


def contracted(kernel: Kernel) -> set[str]:
    """What the contractions of the canonical kernel read."""
    found = canonicalize(kernel, SPYRE_CARD_V1)
    reads = {load for op in found.ops if op.kind is Kind.CONTRACT for load in tensors(op.body)}
    return reads & found.tensors.keys()


def tensors(body: object) -> set[str]:
    if hasattr(body, "tensor"):
        return {body.tensor}
    return {t for arg in getattr(body, "args", ()) for t in tensors(arg)}


def check(kernel: Kernel) -> None:
    """The card is right; unsigned weights are such that sums do not cancel."""
    w = kernel.tensors["w"]
    values = np.random.default_rng(1).integers(0, 9, tuple(e.constant or 0 for e in w.shape))
    given: dict[str, Any] = {"w": values.astype(np.uint8)} if w.dtype is DType.U8 else {}
    check_on_card(kernel, **given)


SHAPES = ((1, 1024, 1024), (33, 70, 130), (1, 200, 64), (5, 1, 7), (0, 64, 64), (128, 256, 512))


@pytest.mark.parametrize("narrow", WIDENED)
@pytest.mark.parametrize("wide", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("scale", ["", "i0, 0", "0, i1", "1, 0"])
def test_every_dtype(narrow: str, wide: str, scale: str) -> None:
    for text in (LINEAR, PLAIN):
        kernel = linear(narrow, wide, (9, 70, 130), scale=scale, groups=130, text=text)
        assert contracted(kernel) == {"x", "w"} | ({"s"} if scale else set())
        check(kernel)


@pytest.mark.parametrize("shape", SHAPES)
def test_sizes(shape: tuple[int, int, int]) -> None:
    for text in (LINEAR, PLAIN):
        check(linear("i8", "f16", shape, text=text))
        check(linear("i8", "f16", shape, scale="i0, 0", text=text))


def test_a_zero_point_and_factors_of_groups() -> None:
    kernel = parse_kernel("""kernel groups
arguments x w z s y
input x: f16[20, 256]
input w: u8[70, 4, 64]
input z: u8[70, 4]
input s: f16[70, 4]
local t: f16[70, 256]
output y: f16[20, 70]
op widen map i0:70 i1:4 i2:64
  t[i0, 64*i1 + i2] <- (f32((w[i0, i1, i2] - z[i0, i1])) * s[i0, i1])
op dot contract i0:20 i1:70 | r0:256
  y[i0, i1] <- sum: x[i0, r0] * t[i1, r0]
""")
    check_on_card(kernel)
    flat = parse_kernel("""kernel zero
arguments x w z s y
input x: f16[20, 256]
input w: u8[70, 256]
input z: u8[70]
input s: f16[70]
local t: f16[70, 256]
output y: f16[20, 70]
op widen map i0:70 i1:256
  t[i0, i1] <- (f32((w[i0, i1] - z[i0])) * s[i0])
op dot contract i0:20 i1:70 | r0:256
  y[i0, i1] <- sum: x[i0, r0] * t[i1, r0]
""")
    assert contracted(flat) == {"x", "w", "z", "s"}
    check_on_card(flat)


def test_factors_as_large_as_the_weights_stay_where_they_are() -> None:
    kernel = linear("f8e4m3", "f16", (9, 70, 128), scale="i0, i1", groups=128)
    assert "w" not in contracted(kernel)
    check(kernel)


@pytest.mark.parametrize("pair", [("f8e4m3", "f8e5m2"), ("i8", "u8"), ("f8e4m3", "i8")])
def test_both_narrow(pair: tuple[str, str]) -> None:
    a, b = (WIDENED[p].format(wide="f16") for p in pair)
    kernel = parse_kernel(f"""kernel both
arguments x w y
input x: {pair[0]}[20, 96]
input w: {pair[1]}[70, 96]
local a: f16[20, 96]
local b: f16[70, 96]
output y: f16[20, 70]
op one map i0:20 i1:96
  a[i0, i1] <- {a.replace("w[", "x[")}
op other map i0:70 i1:96
  b[i0, i1] <- {b}
op dot contract i0:20 i1:70 | r0:96
  y[i0, i1] <- sum: a[i0, r0] * b[i1, r0]
""")
    check_on_card(kernel)


def test_an_accumulated_or_written_weight_is_read_in_its_turn() -> None:
    kernel = parse_kernel("""kernel written
arguments x w y
input x: f16[20, 96]
mutated w: f8e4m3[70, 96]
local t: f16[70, 96]
output y: f16[20, 70]
op widen map i0:70 i1:96
  t[i0, i1] <- w[i0, i1]
op change map i0:70 i1:96
  w[i0, i1] <- w[i0, i1] * 2.0
op dot contract i0:20 i1:70 | r0:96
  y[i0, i1] <- sum: x[i0, r0] * t[i1, r0]
""")
    assert "w" not in contracted(kernel)
    check_on_card(kernel)


def test_a_weight_on_the_left() -> None:
    kernel = parse_kernel("""kernel left
arguments x w y
input x: f16[96, 40]
input w: f8e4m3[70, 96]
local t: f16[70, 96]
output y: f16[70, 40]
op widen map i0:70 i1:96
  t[i0, i1] <- w[i0, i1]
op dot contract i0:70 i1:40 | r0:96
  y[i0, i1] <- sum: t[i0, r0] * x[r0, i1]
""")
    assert contracted(kernel) == {"x", "w"}
    check_on_card(kernel)
