"""Every check of `verify.py` finds the mistake it is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import MappingProxyType

import pytest

from openspyre.compiler.pipeline import plan_kernel
from openspyre.ir import verify
from openspyre.ir.index import Expr
from openspyre.ir.kernel import (
    Access,
    Dim,
    Division,
    DType,
    Kernel,
    Loop,
    Part,
    Residency,
    Space,
    Step,
    StickLayout,
)
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1, CardSpec

Check = Callable[[Kernel, CardSpec], Iterator[str]]
i0, i1 = Expr.var("i0"), Expr.var("i1")

TEXT = """
kernel rows
arguments x w y
input x: f16[64, 96]
input w: f16[32, 96]
output y: f16[64, 32]
local t: f16[64, 96]
op one map i0:64 i1:96
  t[i0, i1] <- f16(x[i0, i1] + 1.0)
op dot contract i0:64 i1:32 | r0:96
  y[i0, i1] <- sum: t[i0, r0] * w[i1, r0]
"""


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return plan_kernel(parse_kernel(TEXT), SPYRE_CARD_V1)


def problems(check: Check, kernel: Kernel) -> str:
    return "; ".join(check(kernel, SPYRE_CARD_V1))


def with_op(kernel: Kernel, op_name: str, /, **changes: object) -> Kernel:
    ops = tuple(replace(op, **changes) if op.name == op_name else op for op in kernel.ops)
    return replace(kernel, ops=ops)


def together(kernel: Kernel, axes: tuple[Dim, ...], **binding: dict[str, str]) -> Kernel:
    """The kernel with both ops in one step, bound as told."""
    step = Step("s", ("one", "dot"), axes, MappingProxyType(binding))
    return replace(kernel, steps=(step,))


ROW = Dim("a", Expr.of(64))


def test_a_plan_is_valid(kernel: Kernel) -> None:
    for check in (
        verify.canonical, verify.laid_out, verify.stepped, verify.divided, verify.looped,
        verify.placed,
    ):  # fmt: skip
        assert problems(check, kernel) == ""


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"out": Access("t", (i0 * i1, i1))}, "not affine"),
        ({"out": Access("t", (i0 // 3, i1))}, "not affine"),
        ({"out": Access("t", (i0,))}, "with 1 expressions"),
        ({"out": Access("t", (i0, Expr.var("j")))}, "unknown names j"),
        ({"out": Access("x", (i0, i1))}, "writes the input x"),
        ({"out": Access("gone", (i0, i1))}, "do not exist: gone"),
        ({"out": Access("y", (i0, i1))}, "reads t before"),
        ({"name": "dot"}, "two ops are called dot"),
    ],
)
def test_form(kernel: Kernel, changes: dict[str, object], found: str) -> None:
    assert found in problems(verify.canonical, with_op(kernel, "one", **changes))


def test_contractions_multiply_two_loads_that_pt_takes_together(kernel: Kernel) -> None:
    body = next(op for op in kernel.ops if op.name == "one").body
    assert "something else" in problems(verify.canonical, with_op(kernel, "dot", body=body))
    for dtype, found in ((DType.BF16, "contracts bf16 and f16"), (DType.F8E4M3, "")):
        other = replace(kernel.tensors["w"], dtype=dtype)
        mixed = replace(kernel, tensors={**kernel.tensors, "w": other})
        assert found in problems(verify.canonical, mixed)
        assert bool(found) == ("contracts" in problems(verify.canonical, mixed))


def test_layouts_name_every_dim_once(kernel: Kernel) -> None:
    wrong = replace(kernel, layouts={"t": StickLayout((0, 0))})
    assert "layout of t" in problems(verify.laid_out, wrong)


def test_steps_hold_every_op(kernel: Kernel) -> None:
    assert "exactly once" in problems(verify.stepped, replace(kernel, steps=kernel.steps[:-1]))


def test_rows_bound_alike_may_share_a_step(kernel: Kernel) -> None:
    fine = together(kernel, (ROW,), one={"i0": "a"}, dot={"i0": "a"})
    assert problems(verify.stepped, fine) == ""


def test_a_contracted_dim_may_not_be_split_by_its_producer(kernel: Kernel) -> None:
    axes = (ROW, Dim("b", Expr.of(96)))
    wrong = together(kernel, axes, one={"i0": "a", "i1": "b"}, dot={"i0": "a"})
    found = problems(verify.stepped, wrong)
    assert "does not walk every axis" in found
    assert "in several ways" in found


def test_an_axis_has_the_extent_of_its_dim(kernel: Kernel) -> None:
    wrong = together(kernel, (ROW,), one={"i1": "a"}, dot={"i0": "a"})
    assert "cannot walk axis a" in problems(verify.stepped, wrong)


def test_what_is_written_in_two_steps_is_not_read_from_lx(kernel: Kernel) -> None:
    first = next(op for op in kernel.ops if op.name == "one")
    before = replace(first, name="zero")
    more = replace(kernel, ops=(before, *kernel.ops))
    steps = (
        Step("z", ("zero",), (ROW,), {"zero": {"i0": "a"}}),
        Step("s", ("one", "dot"), (ROW,), {"one": {"i0": "a"}, "dot": {"i0": "a"}}),
    )
    assert "only a part" in problems(verify.stepped, replace(more, steps=steps))


@pytest.mark.parametrize(
    ("division", "found"),
    [
        (Division((Part("i0", 64, 1),)), "wants 64 of 32 cores"),
        (Division((Part("nowhere", 2, 1),)), "splits nowhere"),
        (Division((Part("i0", 2, 2),)), "does not follow stride"),
        (Division((Part("i0", 2, 1, 0),)), "does not follow"),
    ],
)
def test_divisions(kernel: Kernel, division: Division, found: str) -> None:
    name = kernel.steps[0].name
    wrong = replace(kernel, divisions={**kernel.divisions, name: division})
    assert found in problems(verify.divided, wrong)


def test_every_step_is_divided(kernel: Kernel) -> None:
    assert "has no division" in problems(verify.divided, replace(kernel, divisions={}))


def test_loops(kernel: Kernel) -> None:
    step = kernel.steps[0]
    for loop, found in ((Loop("nowhere", 4), "loops over nowhere"), (Loop("i0", 0), "empty")):
        wrong = replace(kernel, steps=(replace(step, loops=(loop,)), *kernel.steps[1:]))
        assert found in problems(verify.looped, wrong)
    inner = {step.ops[0]: (Loop(step.axes[0].name, 4),)}
    wrong = replace(kernel, steps=(replace(step, inner=inner), *kernel.steps[1:]))
    assert "loops over" in problems(verify.looped, wrong)


def test_lx_ranges(kernel: Kernel) -> None:
    def placed(**rows: tuple[int, int, int, int]) -> str:
        table = {n: Residency(Space.LX, *row) for n, row in rows.items()}
        return problems(verify.placed, replace(kernel, residency=table))

    assert placed(t=(0, 256, 0, 1), tile=(256, 128, 0, 0)) == ""
    assert placed(t=(0, 256, 0, 1), tile=(128, 256, 1, 1)) == "t and the tile tile overlap in LX"
    assert placed(t=(0, 256, 0, 1), tile=(128, 256, 2, 2)) == ""
    assert "t and y overlap" in placed(t=(0, 256, 0, 1), y=(0, 8, 1, 1))
    assert "lies at" in placed(t=(SPYRE_CARD_V1.lx_usable, 128, 0, 0))


def test_a_reduced_dim_is_not_stored(kernel: Kernel) -> None:
    wrong = with_op(kernel, "dot", out=Access("y", (i0, Expr.var("r0"))))
    assert "stores at a reduced dim" in problems(verify.canonical, wrong)
