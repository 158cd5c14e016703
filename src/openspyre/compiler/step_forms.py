"""Ways to tile a step that finds some of its operands in LX, and how long each takes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from openspyre.compiler.axes import step_ops
from openspyre.compiler.capacity import loops_of, with_loops
from openspyre.compiler.cost import Inner, Loads, Pace, Tiling, Timeline, Work
from openspyre.compiler.residency import (
    below_weights,
    division_of,
    far_tensors,
    holders_of,
    kept_tensors,
    planned_tiles,
)
from openspyre.compiler.resident import kept_weights
from openspyre.compiler.ring_time import RingTime, ring_times
from openspyre.compiler.segments import step_keys, step_tensors
from openspyre.compiler.step_work import split_of, whole_works, without
from openspyre.compiler.tiles import (
    Buffering,
    Content,
    StepTiles,
    Tile,
    lx_peak,
    tile_name,
    used_lookups,
)
from openspyre.compiler.tilings import tilings
from openspyre.compiler.work import Works, works_of
from openspyre.ir.kernel import Kernel, Load, Step
from openspyre.spec import CardSpec

_OTHERS = 3  # other loops of a step that are looked at
# Copies run beside the work; one whole tile has none beside it.
_BUFFERED = {True: (Buffering.COPIES,), False: tuple(Buffering)}


@dataclass(frozen=True, slots=True)
class Form:
    """One way to tile a step.

    Attributes:
        whole: the tensors that it loads whole and first of all, and that it does not write.
        peak: bytes of LX, kept tensors included.
        ring: the time of what it fetches from other cores, by tensor.
    """

    step: Step
    tiles: tuple[Tile, ...]
    whole: tuple[str, ...]
    peak: int
    ring: Mapping[str, RingTime]


class Forms:
    """The forms of the steps of a placed kernel, and their times.

    Args:
        fixed: steps whose loops stay.
        works: see `work.works_of`.
    """

    def __init__(
        self,
        kernel: Kernel,
        card: CardSpec,
        fixed: Collection[str],
        works: Works | None = None,
    ) -> None:
        self.kernel, self.card, self.fixed = kernel, card, fixed
        self.below = replace(card, lx_usable=below_weights(kernel, card))
        self.kept, self.far = kept_tensors(kernel), far_tensors(kernel)
        self.holders, self.weights = holders_of(kernel), kept_weights(kernel)
        self.keys = [key for _, key in step_keys(kernel)]
        every = whole_works(kernel, works_of(kernel, card, works))
        self.works = [without(work, self.kept) for work in every]
        self.loops: dict[object, list[tuple[Tiling, tuple[Tiling, ...]]]] = {}
        self.times: dict[object, tuple[Pace, Loads]] = {}
        self.known: dict[object, tuple[int, list[Form]]] = {}

    # --- forms ------------------------------------------------------------------------------

    def of(self, number: int) -> list[Form]:
        """The step as it is, then with other loops, before which it loads its operands whole."""
        key = self._key(number)
        if key not in self.known:
            self.known[key] = number, list(self._forms(number))
        model, forms = self.known[key]
        return forms if model == number else [self._renamed(f, model, number) for f in forms]

    def _key(self, number: int) -> object:
        """Equal for steps that are equal up to names, in LX too."""
        step, kernel = self.kernel.steps[number], self.kernel
        rows = kernel.residency
        live = [n for n in self.kept if rows[n].first <= number <= rows[n].last]
        lies = [
            (x.pitches, x.origins, self.holders[n] if number in self.far[n] else None)
            if (x := self.kept.get(n))
            else None
            for n in step_tensors(kernel, step)
        ]
        inner = tuple(step.inner.get(op, ()) for op in step.ops)
        taken = sum(rows[n].bytes for n in live)
        fixed = step.name in self.fixed
        copies = number < kernel.prologue
        return self.keys[number], step.loops, inner, tuple(lies), taken, fixed, copies

    def _renamed(self, form: Form, model: int, number: int) -> Form:
        """A form of a step as one of another that is equal up to names."""
        old, new = self.kernel.steps[model], self.kernel.steps[number]
        before, after = (step_tensors(self.kernel, step) for step in (old, new))
        names = dict(zip(before, after, strict=True))
        ops = dict(zip(old.ops, new.ops, strict=True))
        inner = {ops[op]: loops for op, loops in form.step.inner.items()}
        tiles = (
            replace(t, tensor=names[t.tensor], name=tile_name(new, n, names[t.tensor]))
            for n, t in enumerate(form.tiles)
        )
        return replace(
            form,
            step=replace(new, loops=form.step.loops, inner=inner),
            tiles=tuple(tiles),
            whole=tuple(names[tensor] for tensor in form.whole),
            ring={names[tensor]: time for tensor, time in form.ring.items()},
        )

    def _forms(self, number: int) -> Iterator[Form]:
        step = self.kernel.steps[number]
        plan = self._plan(number, step)
        wanted = self._plain(number, plan)
        yield self._form(number, step, plan, wanted)
        if not wanted or step.name in self.fixed:
            return
        for other in self._other_loops(number, frozenset(wanted)):
            if other != step and self._fits(other):
                form = self._form(number, other, self._plan(number, other), wanted)
                if form.whole == wanted:
                    yield form

    def _plan(self, number: int, step: Step) -> StepTiles:
        steps = (*self.kernel.steps[:number], step, *self.kernel.steps[number + 1 :])
        kernel = replace(self.kernel, steps=steps)
        return planned_tiles(kernel, number, self.kept, self.far, self.card)

    def _form(self, number: int, step: Step, plan: StepTiles, wanted: tuple[str, ...]) -> Form:
        rows = (self.kernel.residency[n] for n in self.kept)
        kept = sum(r.bytes for r in rows if r.first <= number <= r.last)
        cores = division_of(self.kernel, step.name).cores
        fetched = {n: self.holders[n] for n in self.kept if number in self.far[n]}
        ring = ring_times(self.kernel, step, plan, cores, fetched, self.card)
        apart = kept + sum(t.bytes * t.slots for t in plan.tiles)  # no two tiles share bytes
        peak = apart if apart <= self.card.lx_usable else kept + plan.peak
        return Form(step, plan.tiles, _whole(plan, wanted), peak, ring)

    def _fits(self, step: Step) -> bool:
        """Whether its copies run beside its work."""
        division = division_of(self.kernel, step.name)
        peak = lx_peak(self.kernel, step, division, self.below, Buffering.COPIES)
        return peak <= self.below.lx_usable

    def _plain(self, number: int, plan: StepTiles) -> tuple[str, ...]:
        """The tensors that a step only loads, no index of which is looked up, the first first."""
        ops = {op.name: op for op in step_ops(self.kernel, self.kernel.steps[number])}
        found: dict[str, bool] = {}
        for (op, _, read), tile in plan.operands.items():
            looked_up = isinstance(read, Load) and used_lookups(ops[op], read)
            loaded = plan.tiles[tile].content is Content.OPERAND and not looked_up
            found[read.tensor] = found.get(read.tensor, True) and loaded
        at_hand = {t for t in self.kept if t not in self.weights or number not in self.far[t]}
        away = {op.out.tensor for op in ops.values()} | at_hand
        return tuple(t for t, plain in found.items() if plain and t not in away)

    def _other_loops(self, number: int, tensors: frozenset[str]) -> Iterator[Step]:
        """The step with the loops that suit it best when it need not load some tensors."""
        step, work = self.kernel.steps[number], self.works[number]
        flows = tuple(
            tuple(n for n, _ in p.flows if p.op.flows[n].tensor in tensors) for p in work.phases
        )
        key = (self.keys[number], flows)
        if key not in self.loops:
            split = split_of(step, division_of(self.kernel, step.name))
            left = without(work, tensors)
            ways = (
                (one.loops, tuple(tuple(one.inner.get(p.op.name, ())) for p in work.phases))
                for one in tilings(left, split, self.below)
                if one.buffering in _BUFFERED[bool(one.loops or any(one.inner.values()))]
                and not _change(work, flows, one.loops, one.inner)
            )
            self.loops[key] = list(islice(ways, _OTHERS))
        for outer, own in self.loops[key]:
            inner = {p.op.name: loops for p, loops in zip(work.phases, own, strict=True)}
            yield with_loops(step, work, outer, inner)

    # --- times ------------------------------------------------------------------------------

    def pace(self, number: int, form: Form, gone: tuple[str, ...] = ()) -> Pace:
        """How a form of a step goes without the loads of some tensors."""
        pace = self.time(number, form.step, gone)[0]
        ring = sum((t for name, t in form.ring.items() if name not in gone), RingTime())
        late = max(0.0, ring.before - pace.begin)
        if not form.step.loops:  # stores come behind all loads
            late += pace.turning * min(pace.read, pace.written)
        time = max(pace.time + late, ring.all)
        return replace(pace, time=time, fetched=ring.done(time))

    def time(self, number: int, step: Step, gone: tuple[str, ...] = ()) -> tuple[Pace, Loads]:
        """The same but for the ring, and all loads that are left."""
        work = without(self.works[number], gone)
        flows = tuple(tuple(n for n, _ in p.flows) for p in work.phases)
        inner = tuple(step.inner.get(name, ()) for name in step.ops)
        key = (self.keys[number], flows, step.loops, inner)
        if key not in self.times:
            tiling, own = loops_of(step, work)
            split = split_of(step, division_of(self.kernel, step.name))
            line = Timeline(work, split, self.below, tiling)
            for phase in work.phases:
                line.add(phase, own.get(phase.op.name, ()))
            self.times[key] = line.pace(), Loads(line.load, line.server, line.read)
        return self.times[key]

    def loads(self, number: int, form: Form, tensors: tuple[str, ...]) -> Loads:
        """What it takes to load some tensors for a form of a step."""
        ring = sum(form.ring[name].all for name in tensors if name in form.ring)
        loads = self.time(number, form.step)[1] - self.time(number, form.step, tensors)[1]
        return replace(loads, ring=ring)


def _whole(plan: StepTiles, tensors: tuple[str, ...]) -> tuple[str, ...]:
    """Those that are loaded before all loops."""
    inside = {t.tensor for t in plan.tiles if t.content is Content.OPERAND and t.depth > 0}
    return tuple(t for t in tensors if t not in inside)


def _change(work: Work, flows: tuple[tuple[int, ...], ...], outer: Tiling, inner: Inner) -> bool:
    """Whether tile loops change an operand, among some flows of every op."""
    looped = {axis for axis, _ in outer}
    for phase, numbers in zip(work.phases, flows, strict=True):
        own = {dim for dim, _ in inner.get(phase.op.name, ())}
        axes = dict(phase.flows)
        if any(axes[n] & looped or own.intersection(phase.op.flows[n].dims) for n in numbers):
            return True
    return False
