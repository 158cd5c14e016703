"""Reductions over rows cut in two; tensors that stay in LX because steps agree on a split."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from openspyre.compiler.canonical import canonicalize
from openspyre.compiler.pipeline import plan_kernel
from openspyre.ir.kernel import Kernel, Role, Space
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.card_runner import check_on_card

SOFTMAX = """
kernel softmax
arguments x y
input x: DTYPE[R, C]
output y: DTYPE[R, C]
local m: f32[1, C]
local e: f32[R, C]
local s: f32[1, C]
op m reduce i0:C | r0:R
  m[0, i0] <- max: x[r0, i0]
op e map i0:R i1:C
  e[i0, i1] <- exp(x[i0, i1] - m[0, i1])
op s reduce i0:C | r0:R
  s[0, i0] <- sum: e[r0, i0]
op y map i0:R i1:C
  y[i0, i1] <- DTYPE(e[i0, i1] / s[0, i1])
"""
MIDDLE = """
kernel middle
arguments x y
input x: f32[3, 512, 130]
output y: f32[3, 512, 130]
local m: f32[3, 130]
local s: f32[3, 130]
op m reduce i0:3 i1:130 | r0:512
  m[i0, i1] <- max: x[i0, r0, i1] * 0.5
op s reduce i0:3 i1:130 | r0:512
  s[i0, i1] <- sum: exp((x[i0, r0, i1] * 0.5) - m[i0, i1])
op y map i0:3 i1:512 i2:130
  y[i0, i1, i2] <- exp((x[i0, i1, i2] * 0.5) - m[i0, i2]) / s[i0, i2]
"""
REDUCTION = """
kernel reduction
arguments x y
input x: DTYPE[R, C]
output y: DTYPE[C]
op y reduce i0:C | r0:R
  y[i0] <- KIND: x[r0, i0]
"""


def softmax(rows: int, columns: int, dtype: str = "f16") -> Kernel:
    text = SOFTMAX.replace("DTYPE", dtype).replace("R,", f"{rows},").replace("C]", f"{columns}]")
    text = text.replace(":R", f":{rows}").replace(":C", f":{columns}")
    return parse_kernel(text)


def reduction(kind: str, dtype: str, rows: int, columns: int) -> Kernel:
    text = REDUCTION.replace("KIND", kind).replace("DTYPE", dtype)
    text = text.replace("R,", f"{rows},").replace("C]", f"{columns}]")
    return parse_kernel(text.replace(":R", f":{rows}").replace(":C", f":{columns}"))


def in_lx(kernel: Kernel) -> set[str]:
    """Local tensors that stay in LX between steps."""
    return {
        n for n, row in kernel.residency.items() if n in kernel.tensors and row.space is Space.LX
    }


def test_a_softmax_over_rows_keeps_its_exponentials_in_lx() -> None:
    planned = plan_kernel(softmax(512, 1024), SPYRE_CARD_V1)
    assert "e" in in_lx(planned)
    first, *_, last = (planned.divisions[s.name] for s in planned.steps)
    assert first.cores == last.cores == 32
    assert [(p.parts, p.stride) for p in first.parts] == [(p.parts, p.stride) for p in last.parts]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize(("rows", "columns"), [(513, 1000), (512, 1024), (509, 300), (1024, 70)])
def test_softmax_over_rows(rows: int, columns: int, dtype: str) -> None:
    check_on_card(softmax(rows, columns, dtype))


def test_softmax_over_a_middle_dim() -> None:
    check_on_card(parse_kernel(MIDDLE))


def test_parts_of_minus_infinity_and_values_that_are_no_numbers() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((512, 1024)).astype(np.float32)
    x[:64] = -np.inf  # a part has nothing to raise
    x[:, 3] = -np.inf  # nothing at all: NaN
    x[100, 5] = np.nan
    x[7, 9] = np.inf
    x[64:128, 20] = -1e4  # far below the others
    kernel = softmax(512, 1024, "f32")
    assert len(canonicalize(kernel, SPYRE_CARD_V1).ops) > len(kernel.ops)
    with np.errstate(invalid="ignore"):
        y = check_on_card(kernel, x=x)["y"]
    nothing = np.asarray(np.isnan(y).any(axis=0))
    assert nothing[[3, 5, 9]].all()
    assert nothing.sum() == 3
    assert (y[:64][:, ~nothing] == 0).all()


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("sum", "i64"),
        ("sum", "f16"),
        ("max", "f32"),
        ("min", "i32"),
        ("prod", "f32"),
        ("any", "b1"),
    ],
)
@pytest.mark.parametrize(("rows", "columns"), [(512, 1024), (513, 1000)])
def test_reductions_over_rows_are_cut(kind: str, dtype: str, rows: int, columns: int) -> None:
    kernel = reduction(kind, dtype, rows, columns)
    assert len(canonicalize(kernel, SPYRE_CARD_V1).ops) == 2
    check_on_card(kernel)


def test_the_maximum_of_a_part_that_is_no_number_wins() -> None:
    x = np.zeros((512, 1024), np.float32)
    x[300, 17] = np.nan
    y = check_on_card(reduction("max", "f32", 512, 1024), x=x)["y"]
    assert np.flatnonzero(np.isnan(y)).tolist() == [17]


@pytest.mark.parametrize(("rows", "columns"), [(512, 16384), (8, 1024), (509, 1024), (512, 1)])
def test_one_step_stays_where_columns_suffice_or_rows_have_no_parts(
    rows: int, columns: int
) -> None:
    kernel = canonicalize(reduction("max", "f32", rows, columns), SPYRE_CARD_V1)
    assert len([t for t in kernel.tensors.values() if t.role is Role.LOCAL]) <= (columns == 1)


def test_a_maximum_that_others_need_at_once_is_cut_alone() -> None:
    kernel = softmax(512, 1024, "f32")
    early = replace(kernel.ops[-1], name="early", body=kernel.ops[1].body, out=kernel.ops[-1].out)
    changed = replace(kernel, ops=(*kernel.ops[:2], early, *kernel.ops[2:]))
    check_on_card(changed)


ROW = """
kernel row
arguments x w y
input x: f16[M, K]
input w: f16[K, N]
output y: f16[M, N]
op y contract i0:M i1:N | r0:K
  y[i0, i1] <- sum: x[i0, r0] * w[r0, i1]
"""


def row(m: int, k: int, n: int, text: str = ROW) -> Kernel:
    for name, size in (("M", m), ("K", k), ("N", n)):
        for place in ("[{}", ", {}", ":{}"):
            text = text.replace(place.format(name), place.format(size))
    return parse_kernel(text)


@pytest.mark.parametrize(
    ("m", "k", "n", "cut"),
    [(1, 1024, 1024, True), (1, 1000, 1030, True), (4, 1024, 1024, False), (1, 1021, 1024, False)],
)
def test_a_row_times_a_plain_weight_is_cut_along_k(m: int, k: int, n: int, *, cut: bool) -> None:
    kernel = row(m, k, n)
    planned = plan_kernel(kernel, SPYRE_CARD_V1)
    assert ("y_parts" in [op.name for op in planned.ops]) == cut
    check_on_card(kernel)


def test_a_row_times_a_transposed_weight_is_not_cut() -> None:
    kernel = row(
        1, 1024, 1024, ROW.replace("w: f16[K, N]", "w: f16[N, K]").replace("r0, i1", "i1, r0")
    )
    assert [op.name for op in canonicalize(kernel, SPYRE_CARD_V1).ops] == ["y"]


@pytest.mark.parametrize("n", [1, 0])
def test_rows_times_columns_that_are_hardly_there(n: int) -> None:
    check_on_card(row(1, 1024, n))
