"""What a plan could have been: other divisions and tilings of its steps, by the cost model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from openspyre.compiler.capacity import estimated, fitting
from openspyre.compiler.choices import division_along
from openspyre.compiler.cost import best_splits
from openspyre.compiler.residency import early_operands, why_not_kept
from openspyre.compiler.segments import step_tensors
from openspyre.compiler.step_work import StepWork, StepWorks, split_of, without
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
        early: operands that an earlier step loads, and its name.
    """

    step: Step
    like: tuple[str, ...]
    cores: int
    division: Choice
    divisions: tuple[Choice, ...]
    tiling: Choice
    tilings: tuple[Choice, ...]
    early: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a local tensor lies that crosses steps, and why if it does not stay in LX."""

    tensor: str
    row: Residency
    why: str


def step_choices(
    kernel: Kernel, card: CardSpec, most: int = 3, *, ring: bool = False
) -> Iterator[StepChoices]:
    """The choices of a planned kernel; steps that are planned alike are told once.

    Args:
        ring: whether it was planned as if moves on the ring took time.
    """
    works = StepWorks(kernel, card, ring=ring)
    like: dict[object, list[int]] = {}
    for number, step in enumerate(kernel.steps):
        own = tuple(step.inner.get(op, ()) for op in step.ops)
        key = works.of(number).key, step.loops, own, _early_key(kernel, number)
        like.setdefault(key, []).append(number)
    for first, *others in like.values():
        names = tuple(kernel.steps[n].name for n in others)
        yield _choices(kernel, first, names, works, most)


def _early_key(kernel: Kernel, number: int) -> object:
    """What a step finds in LX, alike for steps that are equal up to names."""
    early, names = early_operands(kernel, number), step_tensors(kernel, kernel.steps[number])
    return tuple((names.index(tensor), number - during) for tensor, during in early.items())


def places(kernel: Kernel, card: CardSpec) -> Iterator[Place]:
    """Where the local tensors of a planned kernel lie that cross steps."""
    for name, row in kernel.residency.items():
        if name in kernel.tensors:
            kept = row.space is Space.LX
            yield Place(name, row, "" if kept else why_not_kept(kernel, name, card))


def _choices(
    kernel: Kernel, number: int, like: tuple[str, ...], works: StepWorks, most: int
) -> StepChoices:
    step, early = kernel.steps[number], early_operands(kernel, number)
    seen = _relieved(works.of(number), early)
    taken = estimated(kernel, step, seen)
    other_loops = [
        Choice(_tiling_text(found.step), found.cycles, found.step, seen.division)
        for found in islice(fitting(kernel, seen), most + 1)
        if found.step != step
    ]
    return StepChoices(
        step, like, seen.division.cores,
        Choice(_division_text(seen.division), taken, step, seen.division),
        _best(list(_divisions(kernel, number, works, early)), most),
        Choice(_tiling_text(step), taken, step, seen.division), _best(other_loops, most),
        {tensor: kernel.steps[during].name for tensor, during in early.items()},
    )  # fmt: skip


def _relieved(seen: StepWork, early: Collection[str]) -> StepWork:
    """A step that finds some operands in LX, because earlier ones have loaded them."""
    alone = _relieved(seen.alone, early) if seen.alone else None
    return replace(seen, work=without(seen.work, early), alone=alone)


def _divisions(
    kernel: Kernel, number: int, works: StepWorks, early: Collection[str]
) -> Iterator[Choice]:
    """Other divisions, with the tile loops that suit each best and what then stays in LX."""
    seen = _relieved(works.of(number), early)
    for _, split in best_splits(seen.work, works.card, _SPLITS):
        if split != split_of(seen.step, seen.division):
            division = division_along(seen.step, seen.work, split)
            found = next(fitting(kernel, _relieved(works.divided(number, division), early)), None)
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
