"""Stage 3: ops grouped into steps, so that what one op makes the next one takes from LX.

Steps are runs of consecutive ops. The runs are chosen together: the cheapest way through the
kernel, by the estimate of `cost.py` (fusing saves trips through device memory and costs
parallelism where ops share fewer axes).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from openspyre.compiler.agreed import may_be_fetched, may_stay
from openspyre.compiler.capacity import minimal_step
from openspyre.compiler.division import Divided, divided
from openspyre.compiler.groups import Group, Grouping
from openspyre.compiler.joining import NONE_STAY, ON_RING, RunCosts
from openspyre.compiler.rewrite import reads
from openspyre.compiler.segments import REACH, classes
from openspyre.compiler.tiles import lx_peak
from openspyre.compiler.work import Works
from openspyre.errors import Unsupported
from openspyre.ir.kernel import Division, Kernel, Role, Step
from openspyre.spec import CardSpec

_SOONER = 0.97  # of the estimate without, to be worth it
_MUCH_SOONER = 0.9  # large tensors may not find room after all
_HOPELESS = 1.5  # a run that costs this much more than its ops one by one does not recover


def form_steps(kernel: Kernel, card: CardSpec) -> Kernel:
    """Partitions the ops into steps; every step fits LX with the smallest tiles.

    Tensors that could stay in LX from step to step, or be fetched on the ring, are worth a second
    look: steps are chosen as if they were, and taken if they are sooner with the divisions that
    they get.
    """
    works = Works(kernel, card)
    found = list(looks(kernel, works))
    if len(found) == 1:
        return found[0].kernel
    return soonest_look(found, {x.name: divided(x.kernel, works) for x in found}).kernel


@dataclass(frozen=True, slots=True)
class Look:
    """A kernel in steps.

    Attributes:
        name: what was taken to lie in LX between steps.
        sooner: than other looks, to be worth it.
        ring: only for plans for which moves on the ring take time.
    """

    name: str
    kernel: Kernel
    sooner: float
    ring: bool


def looks(kernel: Kernel, works: Works, *, ring: bool = False) -> Iterator[Look]:
    """Steps as they come out of different views of what may stay in LX, each once.

    Args:
        ring: also as they do where fetching on the ring takes time.
    """
    small = may_be_fetched(kernel, works.card)
    views: list[tuple[str, Mapping[str, int], float]] = [
        ("nothing stays", NONE_STAY, 1.0),
        ("rows stay", may_stay(kernel, works.card), _MUCH_SOONER),
        ("small tensors are fetched", small, _SOONER),
    ]
    if ring:
        views.append(("some are fetched", dict.fromkeys(small, ON_RING), _SOONER))
    seen: list[tuple[Step, ...]] = []
    plain: Runs | None = None
    for number, (name, staying, sooner) in enumerate(views):
        if staying or not seen:
            runs = Runs(kernel, works.card, staying, works, plain)
            plain = plain or runs
            found = _partitioned(runs)
            if found.steps not in seen:
                seen.append(found.steps)
                yield Look(name, found, sooner, ring=number == 3)


def soonest_look(found: Sequence[Look], known: Mapping[str, Divided]) -> Look:
    """The one with the least estimate; the first unless others are worth it.

    Args:
        known: what `divided` gives for each, by name.
    """
    best = found[0]
    for look in found[1:]:
        if known[look.name].cycles < known[best.name].cycles * look.sooner:
            best = look
    return best


def _partitioned(runs: Runs) -> Kernel:
    while True:
        steps = [runs.step(first, last, f"s{n}") for n, (first, last) in enumerate(runs.best())]
        broken = [s for s in steps if not runs.fits(s)]
        if not broken:
            return replace(runs.kernel, steps=tuple(steps))
        for step in broken:
            runs.forbid(step)


@dataclass(frozen=True, slots=True)
class Cost:
    """Cycles of the runs that start at one op, by length; ends where no longer run is possible."""

    cycles: tuple[float, ...]


class Runs:
    """The runs of ops that can be steps, and what each costs.

    Runs whose ops are of equal classes (`segments.py`) are looked at once. `planned` counts the
    runs that were, `points` what their costs took: ops put on a timeline. `staying`: see
    `joining.Joined`. `plain`: the runs of the same kernel if nothing stays.
    """

    def __init__(
        self,
        kernel: Kernel,
        card: CardSpec,
        staying: Mapping[str, int] = NONE_STAY,
        works: Works | None = None,
        plain: Runs | None = None,
    ) -> None:
        self.kernel, self.card, self.staying, self.plain = kernel, card, staying, plain
        self.grouping = Grouping(kernel)
        self.works = works or Works(kernel, card)
        self.classes = classes(kernel)
        self.planned = self.points = 0
        self.last_read = {t: n for n, op in enumerate(kernel.ops) for t, _ in reads(op)}
        self.known: dict[int, list[tuple[tuple[int, ...], tuple[float, ...]]]] = {}
        self.alone: dict[int, float] = {}
        self.fitting: dict[tuple[int, ...], bool] = {}
        self.forbidden: set[tuple[int, ...]] = set()
        self.positions = {op.name: n for n, op in enumerate(kernel.ops)}

    def best(self) -> Iterator[tuple[int, int]]:
        """The cheapest partition, as (first, last) runs in order."""
        count = len(self.kernel.ops)
        total = [0.0] + [inf] * count
        start = [0] * (count + 1)
        for first in range(count):
            for length, cycles in enumerate(self.costs(first), start=1):
                if total[first] + cycles < total[first + length]:
                    total[first + length], start[first + length] = total[first] + cycles, first
        ends = [count]
        while ends[-1] > 0:
            ends.append(start[ends[-1]])
        ends.reverse()
        yield from ((a, b - 1) for a, b in pairwise(ends))

    def costs(self, first: int) -> tuple[float, ...]:
        """Cycles of the runs of 1, 2, ... ops from `first` on."""
        known = self._known(first)
        if known is not None:
            return self._allowed(first, known)
        cycles, seen = self._computed(first)
        ids = self.classes[first : first + seen]
        self.known.setdefault(self.classes[first], []).append((ids, cycles))
        return self._allowed(first, cycles)

    def _known(self, first: int) -> tuple[float, ...] | None:
        for ids, cycles in self.known.get(self.classes[first], ()):
            if self.classes[first : first + len(ids)] == ids:
                return cycles
        return None

    def _allowed(self, first: int, cycles: tuple[float, ...]) -> tuple[float, ...]:
        if not self.forbidden:
            return cycles
        return tuple(
            inf if n and self.classes[first : first + n + 1] in self.forbidden else c
            for n, c in enumerate(cycles)
        )

    def _computed(self, first: int) -> tuple[tuple[float, ...], int]:
        """The costs, and how many ops were looked at to know them."""
        group: Group | None = self.grouping.single(first)
        plain = self.plain and self.plain._known(first)
        run = RunCosts(self.works, self.staying, plain or ())
        found: list[float] = []
        apart = 0.0
        last = first
        while group is not None:
            cycles = self._cycles(run, group, last)
            found.append(cycles)
            apart += cycles if last == first else self._alone(last)
            last += 1
            if last >= min(len(self.kernel.ops), first + REACH) or cycles > _HOPELESS * apart:
                break
            group = self.grouping.extended(group, first, last)
        self.points += run.points
        return tuple(found), last - first + (last < len(self.kernel.ops))

    def _alone(self, position: int) -> float:
        number = self.classes[position]
        if number not in self.alone:
            group = self.grouping.single(position)
            self.alone[number] = self._cycles(RunCosts(self.works, self.staying), group, position)
        return self.alone[number]

    def _cycles(self, run: RunCosts, group: Group, last: int) -> float:
        self.planned += 1
        cycles = run.cycles(group, self._leaving(group, last))
        return inf if cycles is None else cycles

    def _leaving(self, group: Group, last: int) -> list[str]:
        tensors = self.kernel.tensors
        return [
            t
            for t in group.inside
            if tensors[t].role is not Role.LOCAL or self.last_read.get(t, -1) > last
        ]

    def group(self, first: int, last: int) -> Group:
        group = self.grouping.single(first)
        for position in range(first + 1, last + 1):
            longer = self.grouping.extended(group, first, position)
            if longer is None:
                raise ValueError(f"ops {first} to {position} cannot share a step")
            group = longer
        return group

    def step(self, first: int, last: int, name: str) -> Step:
        group = self.group(first, last)
        return Step(name, tuple(op.name for op in group.ops), group.axes, group.binding)

    def fits(self, step: Step) -> bool:
        """Whether the step runs in LX at all, with the smallest tiles."""
        key = self._ids(step)
        if key not in self.fitting:
            least = minimal_step(self.kernel, step, self.card)
            peak = lx_peak(self.kernel, least, Division(), self.card)
            self.fitting[key] = peak <= self.card.lx_usable
        return self.fitting[key]

    def forbid(self, step: Step) -> None:
        """Lets no run of these classes be a step again.

        Raises:
            Unsupported: the step is a single op.
        """
        if len(step.ops) == 1:
            op = self.kernel.ops[self.positions[step.ops[0]]]
            raise Unsupported(
                f"{op.name} does not fit the card's scratchpad",
                why=f"one point of it needs more than {self.card.lx_usable} bytes of LX",
                hint="split the tensor along the dim that is scanned or reduced",
                at=op.source,
            )
        self.forbidden.add(self._ids(step))

    def _ids(self, step: Step) -> tuple[int, ...]:
        first = self.positions[step.ops[0]]
        return self.classes[first : first + len(step.ops)]
