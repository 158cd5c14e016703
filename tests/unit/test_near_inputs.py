"""Inputs that cores fetch from each other, and divisions beside what stays in LX."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from openspyre.compiler.beside import least_beside
from openspyre.compiler.cost import Split, Tiling, cycles
from openspyre.compiler.division import divide
from openspyre.compiler.near_inputs import with_inputs_near
from openspyre.compiler.pipeline import STAGES, Planned, planned
from openspyre.compiler.residency import place
from openspyre.compiler.step_work import StepWorks, whole_works
from openspyre.compiler.work import Works
from openspyre.ir.kernel import Kernel, Space
from openspyre.ir.text import parse_kernel
from openspyre.runtime.clock import card_timer
from openspyre.spec import SPYRE_CARD_V1
from tests.card_runner import check_on_card
from tests.golden.test_cycles import GATED, SWIGLU

CARD = SPYRE_CARD_V1
ROWS = """
kernel rows
arguments x w y
input x: f16[1, 64, 8192]
input w: f16[96, 8192]
output y: f16[64, 96]
op y contract i0:64 i1:96 | r0:8192
  y[i0, i1] <- x[0, i0, r0] * w[i1, r0]
"""


def formed(text: str) -> Kernel:
    kernel = parse_kernel(text)
    for _, run, _ in STAGES[:3]:
        kernel = run(kernel, CARD)
    return kernel


def finished(kernel: Kernel) -> Kernel:
    for _, run, check in STAGES[3:]:
        kernel = run(kernel, CARD)
        assert list(check(kernel, CARD)) == []
    return kernel


@pytest.mark.parametrize("strides", ["", " strides [524288, 1, 64]"])
def test_a_step_more_brings_rows_into_lx(strides: str) -> None:
    text = ROWS.replace("f16[1, 64, 8192]", f"f16[1, 64, 8192]{strides}")
    near = with_inputs_near(formed(text), CARD)
    assert near is not None
    assert [step.ops for step in near.steps] == [("x_near",), ("y",)]
    assert [step.name for step in near.steps] == ["s0", "s1"]
    whole = finished(near)
    assert whole.residency["x_near"].space is Space.LX
    check_on_card(whole)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("8192", "4096"),  # loaded in no time
        ("input x", "mutated x"),
        ("f16[1, 64, 8192]", "f32[1, 64, 8192]"),  # rounded on its way to PT
        ("f16[96, 8192]", "f16[32, 8192]"),  # the larger of the two
        ("kernel rows", "kernel rows\nhint division s0.i0: 8"),
    ],
)
def test_other_inputs_are_left_where_they_are(old: str, new: str) -> None:
    text = ROWS.replace(old, new)
    if "32, 8192" in new:
        text = text.replace("96", "32")
    if "f32" in new:
        text = text.replace("x[0, i0, r0]", "f16(x[0, i0, r0])")
    assert with_inputs_near(formed(text), CARD) is None


def test_an_input_that_is_read_otherwise_as_well_is_left() -> None:
    text = ROWS.replace("w y\n", "w y z\n") + (
        "op z map i0:64 i1:8192\n  z[i0, i1] <- (x[0, i0, i1] + 1.0)\n"
    )
    text = text.replace("output y", "output z: f16[64, 8192]\noutput y")
    assert with_inputs_near(formed(text), CARD) is None


def test_cores_take_more_rows_where_these_come_on_the_ring() -> None:
    """PT changes weights less often for 128 rows than for 64."""
    near = with_inputs_near(formed(SWIGLU), CARD)
    assert near is not None
    works = Works(near, CARD)
    alone, beside = (divide(near, CARD, works=works, beside=b) for b in (False, True))
    rows = [{p.axis: p.parts for p in k.divisions["s1"].parts}["i0"] for k in (alone, beside)]
    assert rows == [8, 4]
    assert least_beside(beside, works) < least_beside(alone, works)


@cache
def timed() -> Planned:
    return planned(parse_kernel(SWIGLU), CARD, timer=card_timer(CARD))


def test_the_timer_takes_it() -> None:
    found = timed()
    assert found.way.endswith("inputs are fetched")
    first, *others = (tried.cycles or 0.0 for tried in found.tried)
    assert min(others) < 0.95 * first


def test_what_stays_is_offered_room_beside_fetched_rows() -> None:
    """Rows that would fit whole come in parts, so that the product stays as well."""
    again = place(replace(timed().kernel, residency={}), CARD)
    assert {again.residency[t].space for t in ("x_near", "y")} == {Space.LX}


def test_an_estimate_does_not_depend_on_what_was_asked_before() -> None:
    """Whether an operand is loaded whole depends on the room beside what stays."""
    kernel = divide(formed(GATED.replace("M", "512")), CARD)
    small = replace(CARD, lx_usable=CARD.lx_usable // 2)
    split: Split = (4, 8)
    loops: Tiling = ((1, 64),)

    def times(*cards: object) -> list[float]:
        (work,) = whole_works(kernel, Works(kernel, CARD))
        inner = {"a": ((2, 256),), "b": ((2, 256),)}
        return [cycles(work, split, card, loops, inner) for card in (CARD, small) if card in cards]

    assert times(CARD, small)[1:] == times(small)
    assert times(small)[0] > times(CARD)[0]


def test_steps_without_anything_near_keep_their_division() -> None:
    kernel = formed(GATED.replace("M", "512"))
    works = Works(kernel, CARD)
    assert divide(kernel, CARD, works=works, beside=True) == divide(kernel, CARD, works=works)
    assert StepWorks(divide(kernel, CARD), CARD).of(0).alone is None
