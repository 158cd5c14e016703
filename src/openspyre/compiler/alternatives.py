"""What a plan could have been: other divisions and tilings of its steps, by the cost model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from openspyre.compiler.capacity import estimated, fitting
from openspyre.compiler.cost import best_splits
from openspyre.compiler.division import division_along
from openspyre.compiler.residency import why_not_kept
from openspyre.compiler.step_work import StepWorks, split_of
from openspyre.ir.kernel import Division, Kernel, Residency, Space, Step
from openspyre.spec import CardSpec

_SPLITS = 8  # that are timed with the tile loops that suit each


@dataclass(frozen=True, slots=True)
class Choice:
    """One way of a step, as text, and the cycles that the cost model gives it."""

    text: str
    cycles: float
    step: Step
    division: Division


@dataclass(frozen=True, slots=True)
class StepChoices:
    """What was decided for a step, and what else there was, the fastest first.

    Attributes:
        like: the steps that are equal up to names, planned alike.
        divisions: others, each with the tile loops that suit it best; what other steps gain or lose
            is not in the cycles.
        tilings: others for the division that was taken.
    """

    step: Step
    like: tuple[str, ...]
    cores: int
    division: Choice
    divisions: tuple[Choice, ...]
    tiling: Choice
    tilings: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a local tensor lies that crosses steps, and why if it does not stay in LX."""

    tensor: str
    row: Residency
    why: str


def step_choices(kernel: Kernel, card: CardSpec, most: int = 3) -> Iterator[StepChoices]:
    """The choices of a planned kernel; steps that are planned alike are told once."""
    works = StepWorks(kernel, card)
    like: dict[object, list[int]] = {}
    for number in range(len(kernel.steps)):
        like.setdefault(works.of(number).key, []).append(number)
    for first, *others in like.values():
        names = tuple(kernel.steps[n].name for n in others)
        yield _choices(kernel, first, names, works, most)


def places(kernel: Kernel, card: CardSpec) -> Iterator[Place]:
    """Where the local tensors of a planned kernel lie that cross steps."""
    for name, row in kernel.residency.items():
        if name in kernel.tensors:
            kept = row.space is Space.LX
            yield Place(name, row, "" if kept else why_not_kept(kernel, name, card))


def _choices(
    kernel: Kernel, number: int, like: tuple[str, ...], works: StepWorks, most: int
) -> StepChoices:
    step, seen = kernel.steps[number], works.of(number)
    taken = estimated(kernel, step, seen)
    other_loops = [
        Choice(_tiling_text(found.step), found.cycles, found.step, seen.division)
        for found in islice(fitting(kernel, seen), most + 1)
        if found.step != step
    ]
    return StepChoices(
        step, like, seen.division.cores,
        Choice(_division_text(seen.division), taken, step, seen.division),
        _best(list(_divisions(kernel, number, works)), most),
        Choice(_tiling_text(step), taken, step, seen.division), _best(other_loops, most),
    )  # fmt: skip


def _divisions(kernel: Kernel, number: int, works: StepWorks) -> Iterator[Choice]:
    """Other divisions, with the tile loops that suit each best and what then stays in LX."""
    seen = works.of(number)
    for _, split in best_splits(seen.work, works.card, _SPLITS):
        if split != split_of(seen.step, seen.division):
            division = division_along(seen.step, seen.work, split)
            found = next(fitting(kernel, works.divided(number, division)), None)
            if found is not None:
                text = _division_text(division)
                yield Choice(text, found.cycles, found.step, division)


def _best(choices: list[Choice], most: int) -> tuple[Choice, ...]:
    found = {choice.text: choice for choice in sorted(choices, key=lambda c: -c.cycles)}
    return tuple(sorted(found.values(), key=lambda c: (c.cycles, c.text))[:most])


def _division_text(division: Division) -> str:
    return ", ".join(f"{p.axis} x {p.parts}" for p in division.parts) or "one core"


def _tiling_text(step: Step) -> str:
    shown = [f"{loop.axis}/{loop.tile}" for loop in step.loops]
    shown += [f"{op}.{x.axis}/{x.tile}" for op, own in step.inner.items() for x in own]
    return " ".join(shown) or "whole"
