"""Steps that agree on a split, so that what one makes stays in LX for the others.

Every step's own best division comes first. Where later steps can take over the split of the one
that made a tensor, the tensor needs no trip through device memory; they do if all of them together
are then done sooner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

from openspyre.compiler.axes import step_axes
from openspyre.compiler.bounds import highest
from openspyre.compiler.choices import Choices
from openspyre.compiler.cost import Work
from openspyre.compiler.groups import Group, Grouping
from openspyre.compiler.residency import (
    Use,
    axes_of,
    crosses,
    gathered_form,
    kept_form,
    local_uses,
    longest_run,
)
from openspyre.compiler.rewrite import reads, sole_name, writes_whole
from openspyre.compiler.segments import REACH
from openspyre.compiler.step_work import STAYS, split_of, with_near
from openspyre.ir.kernel import Division, Kernel, Kind, Op, Part, Role, Step, loads
from openspyre.spec import CardSpec

_SOONER = 0.98  # of the time apart: estimates closer than this are equal
_SMALL = 1 / 16  # of LX: what fits beside anything else


def agree(
    kernel: Kernel,
    works: Mapping[str, Work],
    choices: Choices,
    *,
    ring: bool,
) -> Agreed:
    """The divisions that let tensors stay in LX where that is sooner.

    Args:
        works: the work of every step, by name.
        choices: of the steps.
        ring: whether moves on the ring are taken to cost time.
    """
    agreed = Agreed(kernel, works, choices, ring=ring)
    crossing = {
        name: uses
        for name, uses in local_uses(kernel).items()
        if crosses(uses) and not any(u.writes and u.step != uses[0].step for u in uses)
    }
    for name, uses in crossing.items():
        agreed.offer(name, uses)
    agreed.gather(crossing)
    return agreed


def may_stay(kernel: Kernel, card: CardSpec) -> Mapping[str, int]:
    """Local tensors that steps could leave in LX, where to share one step would cost parallelism:
    all ops walk them dim by dim, and one step would leave cores little but the stick dim to share.

    With each, how many axes one step would leave.
    """
    grouping = Grouping(kernel)
    last: dict[str, int] = {}
    readers: dict[str, list[Op]] = defaultdict(list)
    for position, op in enumerate(kernel.ops):
        for tensor in dict.fromkeys(t for t, _ in reads(op)):
            last[tensor] = position
            readers[tensor].append(op)
    found = {}
    for position, op in enumerate(kernel.ops):
        name = op.out.tensor
        if op.kind is not Kind.MAP or len(grouping.writers[name]) > 1:
            continue
        if last.get(name, 0) - position not in range(1, REACH) or not _walked_alike(
            kernel, op, readers[name]
        ):
            continue
        axes = _starving(grouping, position, last[name], card)
        if axes is not None:
            found[name] = axes
    return found


def may_be_fetched(kernel: Kernel, card: CardSpec) -> Mapping[str, int]:
    """Small local tensors that any step can fetch on the ring.

    None where sizes are symbols: estimates are of the largest ones, which hardly ever come.
    """
    found: dict[str, int] = {}
    if kernel.symbols:
        return found
    for tensor in kernel.tensors.values():
        size = tensor.dtype.bytes * prod(highest(e, kernel.limits) for e in tensor.shape)
        if tensor.role is Role.LOCAL and size <= card.cores * card.lx_usable * _SMALL:
            found[tensor.name] = -1
    for op in kernel.ops:
        looked = {x.name for x in op.lookups}
        for load in loads(op):
            if load.guarded or any(looked & e.names for e in load.index):
                found.pop(load.tensor, None)
        if op.accumulate or any(looked & e.names for e in op.out.index):
            found.pop(op.out.tensor, None)
    return found


def _walked_alike(kernel: Kernel, writer: Op, readers: Sequence[Op]) -> bool:
    """Whether an op writes, and all ops read, a local tensor dim by dim, whole, and it fits LX."""
    tensor = kernel.tensors[writer.out.tensor]
    if tensor.role is not Role.LOCAL or not writes_whole(writer, tensor):
        return False
    for op in readers:
        extents = {d.name: d.extent for d in (*op.dims, *op.rdims)}
        for name, index in reads(op):
            if name == tensor.name and any(
                extents.get(sole_name(e) or "") != size and e.constant is None
                for e, size in zip(index, tensor.shape, strict=True)
            ):
                return False
    return True


def _starving(grouping: Grouping, first: int, last: int, card: CardSpec) -> int | None:
    """How many axes one step of some ops has to share, if fewer than the first op, and too few."""
    kernel = grouping.kernel
    group: Group | None = grouping.single(first)
    whole = group.axes if group else ()
    for position in range(first + 1, last + 1):
        group = grouping.extended(group, first, position) if group else None
    axes = group.axes if group else ()
    stick = kernel.ops[first].dims[-1:]
    kept = [d for d in axes if d not in stick]
    fewer = len(kept) < len([d for d in whole if d not in stick])
    rows = prod(highest(d.extent, kernel.limits) for d in kept)
    return len(axes) if fewer and rows < card.cores else None


class Agreed:
    """The divisions of a kernel, tensor by tensor brought to agree."""

    def __init__(
        self,
        kernel: Kernel,
        works: Mapping[str, Work],
        choices: Choices,
        *,
        ring: bool,
    ) -> None:
        self.kernel, self.works, self.choices, self.ring = kernel, dict(works), choices, ring
        self.card = choices.works.card
        self.settled: set[str] = set()  # steps on whose division a tensor in LX relies
        self.near: set[str] = set()
        self.fetches = False  # a step fetches something from other cores

    def cycles(self) -> float:
        """The estimate of all steps."""
        return sum(
            self._time(s, self.kernel.divisions[s.name], self.works[s.name])
            for s in self.kernel.steps
        )

    def offer(self, name: str, uses: Sequence[Use]) -> None:
        """Takes over the split of the step that makes a tensor in those that read it."""
        steps = [self.kernel.steps[n] for n in sorted({use.step for use in uses})]
        before = {s.name: self.kernel.divisions[s.name] for s in steps}
        after = self._taken_over(uses)
        changed = {s for s in before if after is not None and after[s] != before[s]}
        if after is None or changed & self.settled:
            return
        kernel = replace(self.kernel, divisions={**self.kernel.divisions, **after})
        if not self._stays(kernel, name, uses):
            return
        left = {s.name: with_near(self.works[s.name], {name: 0}) for s in steps}
        if changed:
            apart = sum(self._time(s, before[s.name], self.works[s.name]) for s in steps)
            together = sum(self._time(s, after[s.name], left[s.name]) for s in steps)
            if together > apart * _SOONER:
                return
        self.kernel, self.works = kernel, self.works | left
        self.settled |= after.keys()
        self.near.add(name)

    def gather(self, crossing: Mapping[str, Sequence[Use]]) -> None:
        """Lets steps fetch small tensors from the LX of those that made them."""
        small = {
            name: uses
            for name, uses in crossing.items()
            if name not in self.near and self._gathered(self.kernel, name, uses)
        }
        while small:
            kernel, works = self._fetching(small)
            kept = {n: uses for n, uses in small.items() if self._gathered(kernel, n, uses)}
            if len(kept) == len(small):
                self.kernel, self.works, self.fetches = kernel, works, True
                if self.ring:
                    self._make(small)
                return
            small = kept

    def _fetching(self, small: Mapping[str, Sequence[Use]]) -> tuple[Kernel, dict[str, Work]]:
        """Readers of the tensors divided without regard to runs in device memory."""
        runs = self._runs(self.kernel, small)
        works = {step: with_near(work, runs) for step, work in self.works.items()}
        readers = {use.step for uses in small.values() for use in uses if use.step > uses[0].step}
        again = dict(self.kernel.divisions)
        for step in (self.kernel.steps[n] for n in sorted(readers)):
            if step.name not in self.settled:
                again[step.name] = self.choices.of(step, works[step.name])[0]
        return replace(self.kernel, divisions=again), works

    def _make(self, small: Mapping[str, Sequence[Use]]) -> None:
        """Lets steps make tensors as those that fetch them are done soonest."""
        made: dict[int, dict[str, Sequence[Use]]] = {}
        for name, uses in small.items():
            made.setdefault(uses[0].step, {})[name] = uses
        for number, own in sorted(made.items()):
            step = self.kernel.steps[number]
            if step.name in self.settled:
                continue
            touched = {n: u for n, u in small.items() if any(use.step == number for use in u)}
            best = self.kernel, self._including_readers(self.kernel, step, own)
            for division in self._by_runs(step, own):
                kernel = self._divided(step, division)
                time = self._including_readers(kernel, step, own)
                sooner = time < best[1] * _SOONER
                if sooner and all(self._gathered(kernel, n, u) for n, u in touched.items()):
                    best = kernel, time
            self.kernel = best[0]
            runs = self._runs(self.kernel, own)
            self.works = {s: with_near(work, runs) for s, work in self.works.items()}

    def _divided(self, step: Step, division: Division) -> Kernel:
        return replace(self.kernel, divisions={**self.kernel.divisions, step.name: division})

    def _by_runs(self, step: Step, made: Mapping[str, Sequence[Use]]) -> Iterable[Division]:
        """The fastest of those divisions of a step that leave runs of the same lengths."""
        found: dict[object, Division] = {}
        for division in self.choices.of(step, self.works[step.name]):
            runs = self._runs(self._divided(step, division), made)
            found.setdefault(tuple(runs.values()), division)
        return found.values()

    def _including_readers(
        self, kernel: Kernel, step: Step, made: Mapping[str, Sequence[Use]]
    ) -> float:
        """The estimate of a step and of those that fetch what it makes."""
        runs = self._runs(kernel, made)
        steps = {use.step for uses in made.values() for use in uses}
        return sum(
            self._time(s, kernel.divisions[s.name], with_near(self.works[s.name], runs))
            for s in (kernel.steps[n] for n in sorted(steps))
        )

    def _runs(self, kernel: Kernel, tensors: Mapping[str, Sequence[Use]]) -> dict[str, int]:
        """The longest runs of tensors that are fetched; 0 where that is taken to cost nothing."""
        if not self.ring:
            return dict.fromkeys(tensors, 0)
        return {
            name: longest_run(kernel, axes_of(kernel, uses), name, uses)
            for name, uses in tensors.items()
        }

    def _gathered(self, kernel: Kernel, name: str, uses: Sequence[Use]) -> bool:
        axes = axes_of(kernel, uses)
        lies = gathered_form(kernel, axes, name, uses, self.card)
        return lies is not None and lies.bytes <= self.card.lx_usable * _SMALL

    def _taken_over(self, uses: Sequence[Use]) -> dict[str, Division] | None:
        """Divisions of all steps like that of the first, along the dims of the tensor."""
        first = self.kernel.steps[uses[0].step]
        made = self.kernel.divisions[first.name]
        axes = step_axes(self.kernel, first, made)
        parts: dict[int, Part] = {}  # of the tensor's dims
        for dim, index in enumerate(uses[0].index or ()):
            axis = axes.exact(uses[0].op, index)
            if axis >= 0 and (split := axes.axes[axis].split):
                parts[dim] = split
        if len(parts) < len(made.parts):
            return None
        found = {first.name: made}
        for use in uses[1:]:
            step = self.kernel.steps[use.step]
            division = self._like(parts, step, use)
            if division is None or found.setdefault(step.name, division) != division:
                return None
        return found

    def _like(self, parts: Mapping[int, Part], step: Step, use: Use) -> Division | None:
        """The division of a step that splits the dims of a tensor so as it reads it."""
        if use.index is None:
            return None
        axes = step_axes(self.kernel, step, Division())
        found: dict[int, Part] = {}
        for dim, part in parts.items():
            axis = axes.exact(use.op, use.index[dim])
            if axis < 0 or axis in found:
                return None
            found[axis] = replace(part, axis=axes.axes[axis].name)
        return Division(tuple(found[axis] for axis in sorted(found)))

    def _stays(self, kernel: Kernel, name: str, uses: Sequence[Use]) -> bool:
        lies = kept_form(kernel, axes_of(kernel, uses), name, uses)
        return lies is not None and lies.bytes <= self.card.lx_usable * STAYS

    def _time(self, step: Step, division: Division, work: Work) -> float:
        return self.choices.time(step, work, split_of(step, division))
