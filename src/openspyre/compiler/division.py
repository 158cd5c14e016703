"""Stage 4: every step split over the cores.

All splits over the step's axes are scored by `cost.py`. Uneven parts are fine; an axis that walks
sticks is split in whole sticks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

from openspyre.compiler.agreed import Agreed, agree
from openspyre.compiler.cost import AS_FAST, Split, Work, best_splits
from openspyre.compiler.segments import step_keys
from openspyre.compiler.step_work import whole_works
from openspyre.compiler.tilings import least_cycles
from openspyre.compiler.work import Works
from openspyre.ir.kernel import Division, Kernel, Part, Step
from openspyre.spec import CardSpec

_MOST_TILED = 6  # splits that are compared with their tile loops


def divide(kernel: Kernel, card: CardSpec) -> Kernel:
    """Chooses the division of every step."""
    return _agreed(kernel, Works(kernel, card)).kernel


def divided_cycles(kernel: Kernel, works: Works) -> float:
    """The estimate of all steps with the divisions that `divide` gives them.

    Args:
        works: of the same ops, in steps or not.
    """
    return _agreed(kernel, works).cycles()


def _agreed(kernel: Kernel, works: Works) -> Agreed:
    done: dict[object, Division] = {}
    divisions, all_works, keys = {}, {}, {}
    card = works.card
    for (step, key), work in zip(step_keys(kernel), whole_works(kernel, works), strict=True):
        if key not in done:
            done[key] = soonest_division(step, work, card)
        divisions[step.name], all_works[step.name], keys[step.name] = done[key], work, key
    again = partial(soonest_division, card=card)
    return agree(replace(kernel, divisions=divisions), all_works, keys, card, again)


def soonest_division(
    step: Step, work: Work, card: CardSpec, among: Sequence[Split] | None = None
) -> Division:
    """The fastest division, each with the tile loops that suit it best.

    Args:
        among: the splits to choose from, if not from all.
    """
    best = best_splits(work, card, _MOST_TILED, among)
    timed = [(least_cycles(work, split, card), split) for _, split in best]
    least = min(time for time, _ in timed) * AS_FAST
    return division_along(step, work, next(split for time, split in timed if time <= least))


def division_along(step: Step, work: Work, split: Split) -> Division:
    """Neighbouring cores share the innermost axis."""
    return Division(
        tuple(
            Part(axis.name, split[at], prod(split[at + 1 :]), work.granules[at])
            for at, axis in enumerate(step.axes)
            if split[at] > 1
        )
    )
