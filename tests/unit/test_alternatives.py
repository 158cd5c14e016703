"""What explain says a plan could have been: by the estimates that the plan was chosen by."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from openspyre.compiler import capacity
from openspyre.compiler.alternatives import step_choices
from openspyre.compiler.cost import AS_FAST
from openspyre.compiler.early import load_early
from openspyre.compiler.pipeline import STAGES, plan_kernel
from openspyre.compiler.step_work import StepWork
from openspyre.ir.kernel import Kernel
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.hinted_kernels import told
from tests.regions import load_region

LINEAR = """
kernel linear
arguments x w y
input x: f16[512, 4096]
input w: f16[1024, 4096] strides [1, 1024]
output y: f16[512, 1024]
op y contract i0:512 i1:1024 | r0:4096
  y[i0, i1] <- x[i0, r0] * w[i1, r0]
"""
ROWS = """
kernel rows
arguments x y
input x: f16[4000, 5000]
output y: f16[4000, 5000]
op y map i0:4000 i1:5000
  y[i0, i1] <- exp(x[i0, i1])
"""
KERNELS: dict[str, Callable[[], Kernel]] = {
    "linear": lambda: parse_kernel(LINEAR),
    "rows": lambda: parse_kernel(ROWS),
    "two steps": told,
    "minilm": lambda: load_region("minilm_captured"),
}
BEFORE = tuple(stage for stage in STAGES if stage[0] != "load_early")
Estimates = dict[str, float]


@pytest.fixture(scope="module", params=KERNELS)
def found(request: pytest.FixtureRequest) -> tuple[Kernel, Estimates]:
    """A kernel planned but for what is loaded early, and the estimates of its tilings."""
    chosen: Estimates = {}
    fitting = capacity.fitting

    def recorded(kernel: Kernel, seen: StepWork) -> Iterator[capacity.Fitted]:
        for one in fitting(kernel, seen):
            chosen.setdefault(seen.step.name, one.cycles)
            yield one

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capacity, "fitting", recorded)
        planned = plan_kernel(KERNELS[request.param](), SPYRE_CARD_V1, stages=BEFORE)
    assert chosen
    return planned, chosen


def test_explain_prints_what_the_plan_was_chosen_by(found: tuple[Kernel, Estimates]) -> None:
    kernel, chosen = found
    choices = {choice.step.name: choice for choice in step_choices(kernel, SPYRE_CARD_V1)}
    assert choices.keys() == chosen.keys()
    for name, choice in choices.items():
        assert choice.tiling.cycles == choice.division.cycles == chosen[name]


def test_what_is_loaded_early_is_not_in_the_cycles_of_a_step(
    found: tuple[Kernel, Estimates],
) -> None:
    before = {c.step.name: c for c in step_choices(found[0], SPYRE_CARD_V1)}
    kernel = load_early(found[0], SPYRE_CARD_V1)
    after = {c.step.name: c for c in step_choices(kernel, SPYRE_CARD_V1)}
    assert before.keys() <= after.keys()
    assert any(c.early for c in after.values()) == (len(kernel.steps) > 1)
    for name, choice in before.items():
        now = after[name]
        if now.step == choice.step:
            assert (now.tiling.cycles < choice.tiling.cycles) == bool(now.early)


def test_no_tiling_that_fits_is_sooner_than_the_one_taken(
    found: tuple[Kernel, Estimates],
) -> None:
    others = 0
    for choice in step_choices(found[0], SPYRE_CARD_V1):
        assert all(other.cycles >= choice.tiling.cycles for other in choice.tilings)
        others += len(choice.tilings)
    assert others


@pytest.mark.parametrize("text", [LINEAR, ROWS])
def test_no_division_of_a_step_alone_is_sooner_than_the_one_taken(text: str) -> None:
    (choice,) = step_choices(plan_kernel(parse_kernel(text), SPYRE_CARD_V1), SPYRE_CARD_V1)
    assert choice.divisions
    assert min(other.cycles for other in choice.divisions) * AS_FAST >= choice.division.cycles
