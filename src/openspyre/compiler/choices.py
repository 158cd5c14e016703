"""The divisions of one step that are worth a look, and what its splits cost.

Steps that are equal up to names have equal ones: they are looked at once, whichever view of the
kernel they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from openspyre.compiler.capacity import fits
from openspyre.compiler.cost import AS_FAST, Split, Work, best_splits
from openspyre.compiler.segments import step_keys
from openspyre.compiler.step_work import flows_of
from openspyre.compiler.tilings import least_cycles
from openspyre.compiler.work import Works
from openspyre.ir.kernel import Division, Kernel, Part, Step
from openspyre.spec import CardSpec

_MOST_ROUGHLY = 24  # splits that are worth a look
_MOST_TILED = 6  # splits that are compared with their tile loops


Time = Callable[[Work, Split, CardSpec], float]


class Choices:
    """The choices of the steps of a kernel; `works` remembers them.

    Args:
        works: of the same ops, in steps or not.
    """

    def __init__(self, kernel: Kernel, works: Works) -> None:
        self.kernel, self.works = kernel, works
        self.keys = {step.name: key for step, key in step_keys(kernel)}

    def of(self, step: Step, work: Work) -> Sequence[Division]:
        """The `divisions` of a step with some work."""
        key, known = self._key(step, work), self.works.divisions
        if key not in known:
            time = partial(self._time, key)
            known[key] = divisions(self.kernel, step, work, self.works.card, time=time)
        return known[key]

    def time(self, step: Step, work: Work, split: Split) -> float:
        """The `least_cycles` of a split of a step with some work."""
        return self._time(self._key(step, work), work, split, self.works.card)

    def _key(self, step: Step, work: Work) -> object:
        return self.keys[step.name], flows_of(work)

    def _time(self, key: object, work: Work, split: Split, card: CardSpec) -> float:
        known = self.works.times
        if (key, split) not in known:
            known[key, split] = least_cycles(work, split, card)
        return known[key, split]


def soonest_division(
    kernel: Kernel, step: Step, work: Work, card: CardSpec, among: Sequence[Split] | None = None
) -> Division:
    """The first of `divisions`."""
    return divisions(kernel, step, work, card, among)[0]


def divisions(
    kernel: Kernel, step: Step, work: Work, card: CardSpec, among: Sequence[Split] | None = None,
    *, time: Time = least_cycles,
) -> list[Division]:  # fmt: skip
    """Those worth a look, each with the tile loops that suit it best: the fastest first, of equal
    ones the best balanced. The first one fits LX, if any does.

    Args:
        among: the splits to choose from, if not from all.
        time: what a split takes with the tile loops that suit it best.
    """
    best = best_splits(work, card, _MOST_ROUGHLY, among)
    tiled = sorted(best, key=lambda way: way[0])[:_MOST_TILED]
    timed = [(time(work, split, card), split) for way, split in best if (way, split) in tiled]
    least = min(cycles for cycles, _ in timed) * AS_FAST
    timed.sort(key=lambda way: max(way[0], least))
    rest = [way for way in best if way not in tiled]
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
