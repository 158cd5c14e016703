"""What a plan could have been: other divisions and tilings of its steps, by the cost model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from openspyre.compiler.cost import Inner, Split, Tiling, Work, best_splits, cycles
from openspyre.compiler.division import last_uses, split_of, step_work
from openspyre.compiler.residency import why_not_kept
from openspyre.compiler.segments import step_keys
from openspyre.compiler.tilings import soonest
from openspyre.compiler.work import Works
from openspyre.ir.kernel import Kernel, Loop, Residency, Space, Step
from openspyre.spec import CardSpec

_SPLITS = 8  # that are timed with the tile loops that suit each


@dataclass(frozen=True, slots=True)
class Choice:
    """One way of a step, as text, and the cycles that the cost model gives it."""

    text: str
    cycles: float


@dataclass(frozen=True, slots=True)
class StepChoices:
    """What was decided for a step, and what else there was, the fastest first.

    Attributes:
        like: the steps that are equal up to names, planned alike.
        divisions: others, each with the tile loops that suit it best, whether or not these fit LX.
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
    works, last_use = Works(kernel, card), last_uses(kernel)
    like: dict[object, list[str]] = {}
    first: dict[object, tuple[int, Step]] = {}
    for number, (step, key) in enumerate(step_keys(kernel)):
        like.setdefault(key, []).append(step.name)
        first.setdefault(key, (number, step))
    for key, (number, step) in first.items():
        work = step_work(step, number, last_use, works)
        yield _choices(kernel, step, tuple(like[key][1:]), work, card, most)


def places(kernel: Kernel, card: CardSpec) -> Iterator[Place]:
    """Where the local tensors of a planned kernel lie that cross steps."""
    for name, row in kernel.residency.items():
        if name in kernel.tensors:
            kept = row.space is Space.LX
            yield Place(name, row, "" if kept else why_not_kept(kernel, name, card))


def _choices(
    kernel: Kernel, step: Step, like: tuple[str, ...], work: Work, card: CardSpec, most: int
) -> StepChoices:
    division = kernel.divisions[step.name]
    split = split_of(step, division)
    loops, inner = _own(step, work)
    taken = cycles(work, split, card, loops, inner)
    other_splits = [
        Choice(_division_text(step, s), min((t for t, *_ in soonest(work, s, card)), default=rough))
        for rough, s in best_splits(work, card, _SPLITS)
        if s != split
    ]
    other_loops = [
        Choice(_tiling_text(step, work, a, b), time)
        for time, a, b in soonest(work, split, card)
        if (a, b) != (loops, inner)
    ]
    return StepChoices(
        step, like, division.cores,
        Choice(_division_text(step, split), taken), _best(other_splits, most),
        Choice(_tiling_text(step, work, loops, inner), taken), _best(other_loops, most),
    )  # fmt: skip


def _best(choices: list[Choice], most: int) -> tuple[Choice, ...]:
    found = {choice.text: choice for choice in sorted(choices, key=lambda c: -c.cycles)}
    return tuple(sorted(found.values(), key=lambda c: (c.cycles, c.text))[:most])


def _own(step: Step, work: Work) -> tuple[Tiling, Inner]:
    """The loops of a planned step as the cost model takes them."""
    axes = {axis.name: at for at, axis in enumerate(step.axes)}
    inner: dict[str, tuple[tuple[int, int], ...]] = {}
    for phase in work.phases:
        dims = {name: at for at, name in enumerate(phase.op.names)}
        if own := step.inner.get(phase.op.name):
            inner[phase.op.name] = tuple((dims[loop.axis], loop.tile) for loop in own)
    return tuple((axes[loop.axis], loop.tile) for loop in step.loops), inner


def _division_text(step: Step, split: Split) -> str:
    parts = [f"{a.name} x {n}" for a, n in zip(step.axes, split, strict=True) if n > 1]
    return ", ".join(parts) or "one core"


def _tiling_text(step: Step, work: Work, loops: Tiling, inner: Inner) -> str:
    names: Mapping[str, tuple[str, ...]] = {p.op.name: tuple(p.op.names) for p in work.phases}
    shown = [Loop(step.axes[axis].name, tile) for axis, tile in loops]
    shown += [Loop(f"{op}.{names[op][d]}", tile) for op, own in inner.items() for d, tile in own]
    return " ".join(f"{loop.axis}/{loop.tile}" for loop in shown) or "whole"
