"""The work of a step whose ops join it one by one, and what each longer run of them costs.

Looking at all runs from one op on takes time in proportion to their number: a longer run keeps
what is known of the shorter one as far as the new op leaves it as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType

from openspyre.compiler.bounds import highest
from openspyre.compiler.cost import (
    AS_FAST,
    Phase,
    Split,
    Tiling,
    Timeline,
    Work,
    fewest_loops,
    splits,
)
from openspyre.compiler.groups import Group
from openspyre.compiler.work import OpWork, Works
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Dim, Kernel, Op
from openspyre.spec import CardSpec

ON_RING = -2
_SMALL = 16  # a result this much smaller than another of its step is
_SPLITS_TRIED = 8
_SAVED_EVERY = 3  # ops of a run
NONE_STAY: Mapping[str, int] = MappingProxyType({})
_STAYING = 4  # an operand whose smallest tile is a larger part of LX comes anew for every op


def work_of(group: Group, leaving: Collection[str], works: Works) -> Work:
    """The work of a group; `leaving` are tensors written in it that must reach device memory."""
    joined = Joined(works)
    joined.extend(group, leaving)
    return joined.work()


class Joined:
    """The work of a group, which may get longer.

    Args:
        staying: tensors that are taken to lie in LX between groups that share more than so many
            of the axes which walk them.

    Attributes:
        differs: whether that makes a difference, for the group as it is now.
    """

    def __init__(self, works: Works, staying: Mapping[str, int] = NONE_STAY) -> None:
        self.works, self.staying = works, staying
        self._begin(())

    def _begin(self, axes: tuple[Dim, ...]) -> None:
        self.axes = axes
        self.numbers = {axis.name: n for n, axis in enumerate(axes)}
        self.extents = tuple(_top(a.extent, self.works.kernel) for a in axes)
        self.granules = [1] * len(axes)
        self.phases: list[Phase] = []
        self.leaving: frozenset[str] = frozenset()
        self.loaded: set[tuple[str, frozenset[int]]] = set()
        self.reread: set[str] = set()
        self.differs = False
        self.writers: dict[str, list[int]] = {}
        self.lives: dict[str, tuple[int, int, int]] = {}  # bytes, first op, last op
        self.live: list[int] = []  # bytes during every op
        self.most = 0

    def extend(self, group: Group, leaving: Collection[str]) -> int:
        """Lets the ops join that the group has more; returns how many phases are as before."""
        if group.axes != self.axes:
            self._begin(group.axes)
        kept = len(self.phases)
        for tensor in self.leaving.difference(leaving):
            for position in self.writers[tensor]:
                if self._keep_inside(position):
                    kept = min(kept, position)
        self.leaving = frozenset(leaving)
        for op in group.ops[len(self.phases) :]:
            self._join(op, group)
        return kept

    def _keep_inside(self, position: int) -> bool:
        """Lets an op store nothing; whether it did."""
        phase = self.phases[position]
        flows = tuple((n, walked) for n, walked in phase.flows if not phase.op.flows[n].store)
        if flows == phase.flows:
            return False
        self.phases[position] = replace(phase, flows=flows)
        return True

    def _join(self, op: Op, group: Group) -> None:
        work, bound, position = self.works.of(op.name), group.binding[op.name], len(self.phases)
        axes = tuple(self.numbers[bound[n]] if n in bound else -1 for n in work.names)
        flows, fetched, beside = [], [], []
        for number, flow in enumerate(work.flows):
            walked = frozenset(axes[d] for d in flow.dims if axes[d] >= 0)
            least = self.staying.get(flow.tensor, len(walked))
            if len(walked) > least and (flow.store or least > ON_RING):
                self.differs |= not flow.store or flow.tensor in self.leaving
                continue
            self.differs |= least == ON_RING
            if flow.store:
                if flow.tensor in self.leaving:
                    flows.append((number, walked))
            elif flow.tensor not in group.inside and (flow.tensor, walked) not in self.loaded:
                own = prod(work.sizes[d] for d in flow.dims if axes[d] < 0) * flow.element
                if own * _STAYING <= self.works.card.lx_usable:
                    self.loaded.add((flow.tensor, walked))
                if least == ON_RING:
                    fetched.append((number, walked, self.works.card.lx_usable))
                else:
                    flows.append((number, walked))
            elif flow.tensor not in group.inside and least != ON_RING:
                self.reread.add(flow.tensor)
                beside.append((number, walked))
        self.phases.append(Phase(work, axes, tuple(flows), tuple(fetched), tuple(beside)))
        self.writers.setdefault(op.out.tensor, []).append(position)
        self._grow(op.out.tensor, work, position)
        self._keep_whole(work)

    def _grow(self, out: str, work: OpWork, position: int) -> None:
        """What lives in LX while the op runs."""
        self.live.append(0)
        kept, first, last = self.lives.get(out, (0, position, position - 1))
        self.lives[out] = (kept + work.result_bytes, first, position)
        for at in range(first, last + 1):
            self.live[at] += work.result_bytes
        for at in range(last + 1, position + 1):
            self.live[at] += kept + work.result_bytes
        for tensor in work.reads & self.lives.keys():
            size, first, last = self.lives[tensor]
            self.lives[tensor] = (size, first, position)
            for at in range(last + 1, position + 1):
                self.live[at] += size

    def _keep_whole(self, work: OpWork) -> None:
        """Points of every axis that should stay on one core: a stick where it walks one."""
        if work.result_bytes > self.most:
            self.most = work.result_bytes
            self.granules = [1] * len(self.axes)
            renewed = self.phases
        else:
            renewed = self.phases[-1:]
        for phase in renewed:
            for axis, points in _granules(phase, self.extents, self.most, self.works.card):
                self.granules[axis] = max(self.granules[axis], points)

    def work(self) -> Work:
        """The work as it is now."""
        each = max(self.live, default=0) / max(1, prod(self.extents))
        reread = frozenset(self.reread)
        return Work(self.extents, tuple(self.granules), tuple(self.phases), each, reread)


def _granules(
    phase: Phase, extents: tuple[int, ...], most: int, card: CardSpec
) -> list[tuple[int, int]]:
    """(axis, points that should stay on one core) of one op; `most`: bytes of a result."""
    op, found = phase.op, []
    axis = phase.axes[op.panel] if op.panel >= 0 else -1
    if axis >= 0:
        # whole panels, if there is more to split
        others = prod(extents) // extents[axis]
        wide = op.panel_runs or others * 4 >= card.cores
        points = card.elements_per_stick(2) if wide else op.store_granule(op.panel, 2)
        found.append((axis, points))
    if op.result_bytes * _SMALL < most:
        return found  # row statistics: their short runs are few
    for dim in op.sticks:
        if phase.axes[dim] >= 0:
            found.append((phase.axes[dim], op.store_granule(dim, op.element)))
    return found


def _top(expr: Expr, kernel: Kernel) -> int:
    constant = expr.constant
    return max(1, highest(expr, kernel.limits) if constant is None else constant)


class RunCosts:
    """The cycles of a run of ops that gets longer.

    `points` counts the ops that were put on a timeline, over all runs and splits.

    Args:
        plain: what runs of 1, 2, ... ops cost if nothing stays, as far as that is known.
    """

    def __init__(
        self,
        works: Works,
        staying: Mapping[str, int] = NONE_STAY,
        plain: Sequence[float] = (),
    ) -> None:
        self.card, self.plain = works.card, plain
        self.joined = Joined(works, staying)
        self.lines: dict[Split, _Line] = {}
        self.points = 0

    def cycles(self, group: Group, leaving: Collection[str]) -> float | None:
        """Of the run that `group` is now, or None if it does not fit LX with any tiles."""
        kept = self.joined.extend(group, leaving)
        if not self.joined.differs and len(group.ops) <= len(self.plain):
            self.lines = {}
            return self.plain[len(group.ops) - 1]
        work = self.joined.work()
        if len(group.ops) > 1 and work.point_bytes > self.card.lx_usable:
            self.lines = {}
            return None
        before, self.lines = self.lines, {}
        for split in splits(work, self.card)[:_SPLITS_TRIED]:
            self.lines[split] = self._line(work, split, before.get(split), kept)
        timed = [line.now.cycles() for line in self.lines.values()]
        least = min(timed) * AS_FAST
        return next(time for time in timed if time <= least)

    def _line(self, work: Work, split: Split, before: _Line | None, kept: int) -> _Line:
        loops = fewest_loops(work, split, self.card)
        line = before and before.going_on(work, loops, kept)
        if line is None:
            line = _Line(Timeline(work, split, self.card, loops), [])
        for phase in work.phases[line.now.phases :]:
            line.now.add(phase)
            self.points += 1
            if line.now.phases % _SAVED_EVERY == 0:
                line.saved.append(line.now.copied())
        return line


@dataclass(frozen=True, slots=True)
class _Line:
    """A run's timeline with one split, and as it was after some of its ops: a longer run often
    changes one of the last ops (its result needs no store any more), and no earlier one.
    """

    now: Timeline
    saved: list[Timeline]

    def going_on(self, work: Work, loops: Tiling, kept: int) -> _Line | None:
        """For `work`, the first `kept` ops of which are as before, or None to begin anew."""
        saved = [line for line in self.saved if line.phases <= kept]
        if self.now.continues(work, loops, kept):
            return _Line(self.now, saved)
        while saved:
            if saved[-1].reread == work.reread and saved[-1].continues(work, loops, kept):
                return _Line(saved[-1].copied(), saved)
            saved.pop()
        return None
