"""The stages in order, their checks, and real regions through all of them."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from openspyre.compiler.pipeline import STAGES, compile_kernel, plan_kernel
from openspyre.errors import BrokenInvariant
from openspyre.ir.kernel import Kernel
from openspyre.ir.text import parse_kernel
from openspyre.runtime.clock import card_timer
from openspyre.spec import SPYRE_CARD_V1, CardSpec
from tests.regions import NAMES, load_region

TEXT = """
kernel add
arguments x y
input x: f16[5, 70]
output y: f16[5, 70]
local t: f16[5, 70]
op one map i0:5 i1:70
  t[i0, i1] <- f16(x[i0, i1] + 1.0)
op two map i0:5 i1:70
  y[i0, i1] <- f16(t[i0, i1] * t[i0, i1])
"""


def test_stages_run_in_order_and_are_observed() -> None:
    seen: list[str] = []
    program = compile_kernel(parse_kernel(TEXT), SPYRE_CARD_V1, lambda n, _: seen.append(n))
    assert seen == [name for name, _, _ in STAGES]
    assert len(program.sections) == 1


@pytest.mark.parametrize("name", NAMES)
def test_real_regions_pass_every_check(name: str) -> None:
    kernel = load_region(name)
    assert compile_kernel(kernel, SPYRE_CARD_V1).sections


def test_a_stage_that_breaks_its_promise_is_our_mistake() -> None:
    def lose_an_op(kernel: Kernel, card: CardSpec) -> Kernel:
        return replace(kernel, steps=kernel.steps[1:])

    broken = tuple(
        (name, lose_an_op if name == "form_steps" else run, check) for name, run, check in STAGES
    )
    with pytest.raises(BrokenInvariant, match="stage form_steps is not valid") as caught:
        plan_kernel(parse_kernel(TEXT), SPYRE_CARD_V1, None, broken)
    assert "op one map" in caught.value.text


def test_a_kernel_that_reads_what_nobody_wrote_is_refused() -> None:
    kernel = parse_kernel(TEXT)
    with pytest.raises(BrokenInvariant, match="reads t before anything writes it"):
        plan_kernel(replace(kernel, ops=kernel.ops[1:]), SPYRE_CARD_V1)


@pytest.mark.parametrize("on", [True, False])
def test_planning_leaves_no_cycles_and_the_search_for_them_as_it_was(*, on: bool) -> None:
    kernel = parse_kernel(TEXT)
    plan_kernel(kernel, SPYRE_CARD_V1, timer=card_timer(SPYRE_CARD_V1))  # fills caches
    before = gc.isenabled()
    seen: list[bool] = []
    gc.collect()
    gc.enable() if on else gc.disable()
    try:
        plan_kernel(kernel, SPYRE_CARD_V1, lambda *_: seen.append(gc.isenabled()))
        with pytest.raises(BrokenInvariant):
            plan_kernel(replace(kernel, ops=kernel.ops[1:]), SPYRE_CARD_V1)
        assert gc.isenabled() is on
        assert seen == [False] * len(STAGES)
        gc.disable()
        gc.collect()  # the exception
        plan_kernel(kernel, SPYRE_CARD_V1)
        assert gc.collect() == 0
    finally:
        gc.enable() if before else gc.disable()
