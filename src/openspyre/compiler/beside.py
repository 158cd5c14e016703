"""The end of stage 4: steps divided again, by what then lies in LX beside them.

A step is first divided as if it loaded and stored everything. What stays in LX takes room and needs
no loads, so another split may be the soonest: more rows for each core, so that PT changes weights
less often, where cores fetch the rows from each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from openspyre.compiler.capacity import fitting
from openspyre.compiler.choices import Choices
from openspyre.compiler.step_work import StepWork, StepWorks
from openspyre.compiler.work import Works
from openspyre.ir.kernel import Division, Kernel

_SOONER = 0.97  # of the time before, to be worth it
_MOST = 4  # other divisions of a step that are compared


def divided_beside(kernel: Kernel, works: Works, choices: Choices, *, ring: bool) -> Kernel:
    """The kernel with other divisions of single steps where these are sooner beside what stays.

    Whatever a step touches that stayed in LX stays there, and no step fetches what it had at hand.

    Args:
        choices: of the steps.
        ring: whether moves on the ring are taken to cost time.
    """
    seen = StepWorks(kernel, works.card, works, ring=ring)
    known: dict[object, Division] = {}
    for number in range(kernel.prologue, len(kernel.steps)):
        before = seen.of(number)
        if not any(phase.op.matmul for phase in before.work.phases) or before.alone is None:
            continue
        key = before.key, before.division
        if key not in known:
            known[key] = _soonest(seen, number, before, choices)
        if known[key] != before.division:
            divisions = {**kernel.divisions, before.step.name: known[key]}
            kernel = replace(kernel, divisions=divisions)
            seen = StepWorks(kernel, works.card, works, ring=ring)
    return kernel


def _soonest(seen: StepWorks, number: int, before: StepWork, choices: Choices) -> Division:
    best, least = before.division, _time(seen.kernel, before) * _SOONER
    for division in _others(before, choices):
        if (
            _stay(seen, number, division)
            and (time := _time(seen.kernel, seen.divided(number, division))) < least
        ):
            best, least = division, time
    return best


def _others(before: StepWork, choices: Choices) -> Iterator[Division]:
    found = [d for d in choices.of(before.step, before.work) if d != before.division]
    yield from found[:_MOST]


def _stay(seen: StepWorks, number: int, division: Division) -> bool:
    """Whether what the step touches stays in LX all the same, and as near."""
    after = seen.staying_if(number, division)
    return all(
        name in after and after[name].far <= seen.near[name].far
        for name, uses in seen.uses.items()
        if name in seen.near and any(use.step == number for use in uses)
    )


def _time(kernel: Kernel, step: StepWork) -> float:
    """Of the soonest tiling that fits."""
    return next((found.cycles for found in fitting(kernel, step)), inf)


def least_beside(kernel: Kernel, works: Works) -> float:
    """The estimate of all steps of a divided kernel, if all stays in LX that may."""
    seen = StepWorks(kernel, works.card, works)
    times: dict[object, float] = {}
    total = 0.0
    for number in range(len(kernel.steps)):
        step = seen.of(number)
        key = step.key, step.division
        if key not in times:
            times[key] = _time(seen.kernel, step)
        total += times[key]
    return total
