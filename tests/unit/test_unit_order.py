"""PT and SFU at a time: which ops, in what order, and in which bytes of LX."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openspyre.compiler.canonical import canonicalize
from openspyre.compiler.cost import Timeline
from openspyre.compiler.emit import emit
from openspyre.compiler.residency import place
from openspyre.compiler.step_work import whole_works
from openspyre.compiler.tiles import Content, free_to_write, step_tiles
from openspyre.compiler.unit_order import units_begin
from openspyre.compiler.work import Works
from openspyre.ir.kernel import Division, Kernel, Loop
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.card_runner import check_interpreted, check_on_card

# The scores of two blocks of rows, their exponentials and the products of these, as attention has
# them: PT makes s1 beside p0, and o0 beside p1.
TWO_BLOCKS = """
kernel two
arguments q k v o0 o1
input q: f16[2, 40, 64]
input k: f16[2, 192, 64]
input v: f16[2, 192, 64]
output o0: f16[2, 40, 64]
output o1: f16[2, 40, 64]
local s0: f32[2, 40, 192]
local s1: f32[2, 40, 128]
local m0: f32[2, 40]
local m1: f32[2, 40]
local p0: f16[2, 40, 192]
local p1: f16[2, 40, 128]
op s0 contract i0:2 i1:40 i2:192 | r0:64
  s0[i0, i1, i2] <- (q[i0, i1, r0] * k[i0, i2, r0])
op s1 contract i0:2 i1:40 i2:128 | r0:64
  s1[i0, i1, i2] <- (q[i0, i1, r0] * k[i0, i2, r0])
op m0 reduce i0:2 i1:40 | r0:192
  m0[i0, i1] <- max: s0[i0, i1, r0]
op p0 map i0:2 i1:40 i2:192
  p0[i0, i1, i2] <- f16(exp(s0[i0, i1, i2] - m0[i0, i1]))
op o0 contract i0:2 i1:40 i2:64 | r0:192
  o0[i0, i1, i2] <- (p0[i0, i1, r0] * v[i0, r0, i2])
op m1 reduce i0:2 i1:40 | r0:128
  m1[i0, i1] <- max: s1[i0, i1, r0]
op p1 map i0:2 i1:40 i2:128
  p1[i0, i1, i2] <- f16(exp(s1[i0, i1, i2] - m1[i0, i1]))
op o1 contract i0:2 i1:40 i2:64 | r0:128
  o1[i0, i1, i2] <- (p1[i0, i1, r0] * v[i0, r0, i2])
"""
STEP = """
step s0: s0 s1 m0 p0 o0 m1 p1 o1
  axes i0:2 i1:40
  bind s0: i0=i0 i1=i1
  bind s1: i0=i0 i1=i1
  bind m0: i0=i0 i1=i1
  bind p0: i0=i0 i1=i1
  bind o0: i0=i0 i1=i1
  bind m1: i0=i0 i1=i1
  bind p1: i0=i0 i1=i1
  bind o1: i0=i0 i1=i1
"""


def planned() -> Kernel:
    """One step on one core, a head after the other."""
    kernel = parse_kernel(TWO_BLOCKS + STEP)
    (step,) = kernel.steps
    return replace(kernel, steps=(replace(step, loops=(Loop("i0", 1),)),))


def test_ops_that_may_still_run_when_one_begins() -> None:
    names = [op.name for op in planned().ops]
    begins = dict(zip(names, units_begin(planned().ops), strict=True))
    assert {name: names[at] for name, at in begins.items()} == {
        "s0": "s0",
        "s1": "s1",
        "m0": "s1",  # PT makes the scores of the next block
        "p0": "s1",
        "o0": "o0",
        "m1": "o0",
        "p1": "o0",
        "o1": "o1",  # o0 is done, and so is all of SFU
    }


@pytest.mark.parametrize("tight", [False, True])
def test_sfu_writes_beside_what_pt_reads_if_lx_has_room(tight: bool) -> None:
    kernel, card = planned(), SPYRE_CARD_V1
    (step,) = kernel.steps
    if tight:  # as little as the plan with the least LX takes
        sizes = range(1 << 12, 1 << 20, 1 << 10)
        peaks = (
            step_tiles(kernel, step, Division(), replace(card, lx_usable=n)).peak for n in sizes
        )
        least = min(peaks)
        card = replace(card, lx_usable=least)
    found = place(kernel, card)
    check_interpreted(found, card=card)
    check_on_card(found, card=card)
    program = emit(found, card)
    by_name = {b.name.split(".")[-1]: b for b in program.buffers}
    first, second = by_name["p0"], by_name["p1"]
    apart = first.offset + first.bytes <= second.offset or (
        second.offset + second.bytes <= first.offset
    )
    assert apart or tight


def test_a_smaller_buffering_that_lets_both_work_comes_first() -> None:
    kernel = planned()
    (step,) = kernel.steps
    begins = units_begin(kernel.ops)
    whole = step_tiles(kernel, step, Division(), SPYRE_CARD_V1)
    assert max(t.slots for t in whole.tiles if t.content is Content.OPERAND) == 2
    for room in range(whole.peak, 0, -1024):
        plan = step_tiles(kernel, step, Division(), replace(SPYRE_CARD_V1, lx_usable=room))
        if plan.peak > room:
            break
        free = free_to_write(plan.tiles, begins)
        assert [t.last for t in free] == [t.last for t in plan.tiles]
        assert all(a.first <= b.first for a, b in zip(free, plan.tiles, strict=True))


def test_the_estimate_knows_that_units_work_at_a_time() -> None:
    kernel = planned()
    (work,) = whole_works(kernel, Works(kernel, SPYRE_CARD_V1))
    line = Timeline(work, (1, 1), SPYRE_CARD_V1)
    for phase in work.phases:
        line.add(phase)
    busy = {p.op.name: p.op.cost(p.op.sizes).busy for p in work.phases}
    hidden = min(busy["s1"], busy["m0"] + busy["p0"]) + min(busy["o0"], busy["m1"] + busy["p1"])
    assert line.busy == pytest.approx(sum(busy.values()) - hidden)


def test_what_waits_for_pt_is_not_moved_before_what_sfu_can_do() -> None:
    """Both maxima walk alike: the second one would wait for s1 and keep SFU from p0."""
    names = [op.name for op in canonicalize(parse_kernel(TWO_BLOCKS), SPYRE_CARD_V1).ops]
    place_of = {name.split("_")[0]: n for n, name in reversed(list(enumerate(names)))}
    assert place_of["p0"] < place_of["m1"] < place_of["p1"]
    assert place_of["s1"] < place_of["p0"]
