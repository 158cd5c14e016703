"""Stage 4: every step split over the cores.

All splits over the step's axes are scored by `cost.py`. Uneven parts are fine; an axis that walks
sticks is split in whole sticks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from openspyre.compiler.agreed import Agreed, agree
from openspyre.compiler.beside import divided_beside
from openspyre.compiler.capacity import fits
from openspyre.compiler.cost import AS_FAST, Split, Work, best_splits
from openspyre.compiler.segments import step_keys
from openspyre.compiler.step_work import whole_works
from openspyre.compiler.tilings import least_cycles
from openspyre.compiler.work import Works, works_of
from openspyre.ir.kernel import Division, Kernel, Part, Step
from openspyre.spec import CardSpec

_MOST_ROUGHLY = 24  # splits that are worth a look
_MOST_TILED = 6  # splits that are compared with their tile loops


def divide(
    kernel: Kernel, card: CardSpec, *, works: Works | None = None, ring: bool = False,
    beside: bool = False,
) -> Kernel:  # fmt: skip
    """Chooses the division of every step.

    Args:
        works: see `work.works_of`.
        ring: whether moves on the ring are taken to cost time.
        beside: whether steps are divided again by what stays in LX beside them.
    """
    works = works_of(kernel, card, works)
    agreed = _agreed(kernel, works, ring=ring).kernel
    if not beside:
        return agreed
    return divided_beside(agreed, works, partial(divisions, kernel, card=card), ring=ring)


@dataclass(frozen=True, slots=True)
class Divided:
    """What divisions lead to.

    Attributes:
        cycles: the estimate of all steps.
        fetches: whether a step fetches something from other cores.
    """

    cycles: float
    fetches: bool


def divided(kernel: Kernel, works: Works) -> Divided:
    """What the divisions lead to that `divide` gives the steps.

    Args:
        works: of the same ops, in steps or not.
    """
    agreed = _agreed(kernel, works, ring=False)
    return Divided(agreed.cycles(), agreed.fetches)


def _agreed(kernel: Kernel, works: Works, *, ring: bool) -> Agreed:
    done: dict[object, Division] = {}
    chosen, all_works, keys = {}, {}, {}
    card = works.card
    for (step, key), work in zip(step_keys(kernel), whole_works(kernel, works), strict=True):
        if key not in done:
            done[key] = soonest_division(kernel, step, work, card)
        chosen[step.name], all_works[step.name], keys[step.name] = done[key], work, key
    choices = partial(divisions, kernel, card=card)
    return agree(replace(kernel, divisions=chosen), all_works, keys, card, choices, ring=ring)


def soonest_division(
    kernel: Kernel, step: Step, work: Work, card: CardSpec, among: Sequence[Split] | None = None
) -> Division:
    """The first of `divisions`."""
    return divisions(kernel, step, work, card, among)[0]


def divisions(
    kernel: Kernel, step: Step, work: Work, card: CardSpec, among: Sequence[Split] | None = None
) -> list[Division]:
    """Those worth a look, each with the tile loops that suit it best: the fastest first, of equal
    ones the best balanced. The first one fits LX, if any does.

    Args:
        among: the splits to choose from, if not from all.
    """
    best = best_splits(work, card, _MOST_ROUGHLY, among)
    tiled = sorted(best, key=lambda way: way[0])[:_MOST_TILED]
    timed = [
        (least_cycles(work, split, card), split) for way, split in best if (way, split) in tiled
    ]
    least = min(time for time, _ in timed) * AS_FAST
    timed.sort(key=lambda way: max(way[0], least))
    rest = [(time, split) for time, split in best if (time, split) not in tiled]
    rest.sort(key=lambda way: way[0])
    found = [division_along(step, work, split) for _, split in (*timed, *rest)]
    first = next((x for x in found if fits(kernel, card, step, work, x)), found[0])
    return [first, *(x for x in found if x is not first)]


def division_along(step: Step, work: Work, split: Split) -> Division:
    """Neighbouring cores share the innermost axis."""
    return Division(
        tuple(
            Part(axis.name, split[at], prod(split[at + 1 :]), work.granules[at])
            for at, axis in enumerate(step.axes)
            if split[at] > 1
        )
    )
