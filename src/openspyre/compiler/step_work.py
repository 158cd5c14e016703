"""The work of a kernel's steps, as divisions and tiles are chosen by it.

What may stay in LX from step to step is not moved between LX and device memory, and takes room.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from openspyre.compiler.addressing import rounded_up
from openspyre.compiler.axes import step_ops
from openspyre.compiler.cost import Phase, Split, Work
from openspyre.compiler.groups import Group
from openspyre.compiler.joining import work_of
from openspyre.compiler.residency import (
    Use,
    axes_of,
    below_weights,
    crosses,
    far_steps,
    gathered_form,
    kept_form,
    local_uses,
    longest_run,
)
from openspyre.compiler.resident import kept_weights
from openspyre.compiler.rewrite import reads
from openspyre.compiler.segments import step_keys
from openspyre.compiler.work import Works, works_of
from openspyre.ir.kernel import Division, Kernel, Role, Step
from openspyre.spec import CardSpec

STAYS = 0.5
"""Of LX: what a tensor may take that stays there while other steps work."""


_ROOMS = 64  # parts of LX in which the room for tiles is counted


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step has to do.

    Attributes:
        step: without tile loops.
        work: without copies of what may stay in LX; moves on the ring instead, where it stays in
            that of other cores.
        card: with the LX that these leave.
        key: equal for steps that are equal up to names, with equal work and room.
        alone: the same step with all of LX, everything on its way through device memory; None if
            nothing stays beside it.
    """

    step: Step
    division: Division
    work: Work
    card: CardSpec
    key: object
    alone: StepWork | None = None


class StepWorks:
    """The work of every step of a divided kernel, whether or not it has tile loops yet.

    Weights that stay in LX have their place already. Those that are fetched on the ring come whole:
    tiles of them would cut what is fetched beside them into short runs.

    Args:
        works: see `work.works_of`.
        ring: whether moves on the ring take time, or are taken to hide behind other work.
    """

    def __init__(
        self, kernel: Kernel, card: CardSpec, works: Works | None = None, *, ring: bool = False
    ) -> None:
        bare = (replace(step, loops=(), inner={}) for step in kernel.steps)
        self.kernel, self.ring = replace(kernel, steps=tuple(bare)), ring
        self.card = replace(card, lx_usable=below_weights(kernel, card))
        weights = kept_weights(kernel)
        every = whole_works(self.kernel, works_of(kernel, card, works))
        self.whole = tuple(without(work, weights) for work in every)
        self.keys = tuple(key for _, key in step_keys(self.kernel))
        self.uses = {
            name: uses
            for name, uses in local_uses(kernel).items()
            if crosses(uses) and name not in weights
        }
        self.near = staying(self.kernel, self.uses, self.card)

    def of(self, number: int) -> StepWork:
        """The work of step `number`."""
        return self._of(number, self.kernel, self.near)

    def divided(self, number: int, division: Division) -> StepWork:
        """The same, were this one step divided otherwise."""
        kernel = self._with(number, division)
        return self._of(number, kernel, self.staying_if(number, division))

    def staying_if(self, number: int, division: Division) -> dict[str, Stay]:
        """What may stay in LX, were this one step divided otherwise."""
        own = {n: uses for n, uses in self.uses.items() if any(u.step == number for u in uses)}
        near = {n: stay for n, stay in self.near.items() if n not in own}
        return near | staying(self._with(number, division), own, self.card)

    def _with(self, number: int, division: Division) -> Kernel:
        step = self.kernel.steps[number]
        return replace(self.kernel, divisions={**self.kernel.divisions, step.name: division})

    def _of(self, number: int, kernel: Kernel, near: Mapping[str, Stay]) -> StepWork:
        step, card, whole = kernel.steps[number], self.card, self.whole[number]
        runs = {name: stay.run(number) if self.ring else 0 for name, stay in near.items()}
        division, work = kernel.divisions[step.name], with_near(whole, runs)
        held = sum(stay.bytes for stay in near.values() if stay.first <= number <= stay.last)
        # What few bytes of one layer's stay through others must not make each a case of its own.
        held = rounded_up(held, card.lx_usable // _ROOMS)
        left = replace(card, lx_usable=card.lx_usable - min(held, card.lx_usable // 2))
        key = self.keys[number], held, flows_of(work)
        alone = StepWork(step, division, whole, card, key) if held else None
        return StepWork(step, division, work, left, key, alone)


# --- what stays ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stay:
    """A tensor that may stay in LX.

    Attributes:
        bytes: of a core.
        first, last: steps.
        far: steps that fetch it from other cores.
        longest: bytes that lie side by side.
    """

    bytes: int
    first: int
    last: int
    far: frozenset[int]
    longest: int

    def run(self, step: int) -> int:
        """The longest run that a step fetches; 0 if it has all it needs."""
        return self.longest if step in self.far else 0


def staying(
    kernel: Kernel, crossing: Mapping[str, Sequence[Use]], card: CardSpec
) -> dict[str, Stay]:
    """The tensors that may stay in LX from step to step with the divisions as they are."""
    found = {}
    for name, uses in crossing.items():
        axes = axes_of(kernel, uses)
        lies = kept_form(kernel, axes, name, uses)
        lies = lies or gathered_form(kernel, axes, name, uses, card)
        if lies is not None and lies.bytes <= card.lx_usable * STAYS:
            far = far_steps(kernel, axes, name, uses)
            longest = longest_run(kernel, axes, name, uses)
            found[name] = Stay(lies.bytes, uses[0].step, uses[-1].step, far, longest)
    return found


def without(work: Work, tensors: Collection[str]) -> Work:
    """The work of a step that need not copy some tensors."""
    return with_near(work, dict.fromkeys(tensors, 0))


def with_near(work: Work, runs: Mapping[str, int]) -> Work:
    """The work of a step with tensors in LX.

    Args:
        runs: with every tensor the most bytes of it that lie side by side in the LX of other cores,
            0 where the step has them at hand.
    """
    return replace(work, phases=tuple(_with_near(phase, runs) for phase in work.phases))


def _with_near(phase: Phase, runs: Mapping[str, int]) -> Phase:
    left, fetched = [], []
    for number, axes, run in phase.fetched:
        fetched.append((number, axes, runs.get(phase.op.flows[number].tensor, run)))
    for number, axes in phase.flows:
        flow = phase.op.flows[number]
        if flow.tensor not in runs:
            left.append((number, axes))
        elif runs[flow.tensor] and not flow.store:
            fetched.append((number, axes, runs[flow.tensor]))
    beside = tuple(x for x in phase.beside if phase.op.flows[x[0]].tensor not in runs)
    return replace(phase, flows=tuple(left), fetched=tuple(fetched), beside=beside)


def flows_of(work: Work) -> object:
    """Which flows of its ops reach device memory, and which the LX of other cores."""
    return tuple((tuple(n for n, _ in p.flows), p.fetched) for p in work.phases)


# --- all of it ----------------------------------------------------------------------------------


def whole_works(kernel: Kernel, works: Works) -> list[Work]:
    """The work of every step if nothing stays in LX.

    Args:
        works: of the same ops, in steps or not.
    """
    last_use: dict[str, int] = {}
    for number, step in enumerate(kernel.steps):
        for op in step_ops(kernel, step):
            last_use.update({tensor: number for tensor, _ in reads(op)})
    found = []
    for number, step in enumerate(kernel.steps):
        ops = step_ops(kernel, step)
        inside = {op.out.tensor: () for op in ops}
        leaving = [
            t
            for t in inside
            if kernel.tensors[t].role is not Role.LOCAL or last_use.get(t, -1) > number
        ]
        group = Group(ops, step.axes, step.binding, inside, frozenset(), frozenset())
        found.append(work_of(group, leaving, works))
    return found


def split_of(step: Step, division: Division) -> Split:
    """How many cores share each axis of a step."""
    parts = {p.axis: p.parts for p in division.parts}
    return tuple(parts.get(a.name, 1) for a in step.axes)
