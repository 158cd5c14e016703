"""Stage 6: tile capacities, as large as LX allows.

A step without loops walks each core's whole part at once. Where that does not fit, loops over the
shared axes cut it into tiles; where a single point does not fit, ops get loops over their private
dims. Right operands of matmuls always come in panels, so that loading one overlaps with using
another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import islice

from openspyre.compiler.addressing import STICK_POINTS
from openspyre.compiler.axes import largest_part, step_ops
from openspyre.compiler.between import work_between_products
from openspyre.compiler.bounds import highest
from openspyre.compiler.cost import Inner, Tiling, Work, local_sizes
from openspyre.compiler.step_work import StepWork, StepWorks, split_of
from openspyre.compiler.tiles import Buffering, lx_peak
from openspyre.compiler.tilings import BUFFERINGS, panels, smallest_first, tilings, timed
from openspyre.compiler.work import Works
from openspyre.ir.kernel import Dim, Division, Kernel, Kind, Loop, Op, Step
from openspyre.spec import CardSpec

_MOST_TRIED = 32  # tilings of a way of buffering that turn out too large, the fastest first


def fit_tiles(
    kernel: Kernel, card: CardSpec, *, works: Works | None = None, ring: bool = False
) -> Kernel:
    """Gives every step the loops with which it fits LX and is done soonest: beside what may stay
    there, or with all of LX where that is sooner all the same.

    Maps are cut first where PT would wait for them (`between.py`).

    Args:
        works: see `work.works_of`.
        ring: whether moves on the ring are taken to cost time.
    """
    kernel = work_between_products(kernel)
    done: dict[object, Step] = {}
    step_works = StepWorks(kernel, card, works, ring=ring)
    steps = list(kernel.steps[: kernel.prologue])
    for number, step in enumerate(kernel.steps[kernel.prologue :], kernel.prologue):
        seen = step_works.of(number)
        if seen.key not in done:
            done[seen.key] = _soonest(kernel, seen)
        model = done[seen.key]
        inner = {
            op: model.inner[other]
            for op, other in zip(step.ops, model.ops, strict=True)
            if other in model.inner
        }
        steps.append(replace(step, loops=model.loops, inner=inner))
    return replace(kernel, steps=tuple(steps))


def _soonest(kernel: Kernel, seen: StepWork) -> Step:
    found = next(fitting(kernel, seen), None)
    if found is not None:
        return found.step
    every = seen.alone or seen
    local = local_sizes(every.work, split_of(every.step, every.division))
    whole = with_loops(every.step, every.work, (), panels(every.work, local, every.card))
    return _fitted(kernel, whole, every.division, every.card)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A step with tile loops, and its estimated cycles."""

    cycles: float
    step: Step


def fitting(kernel: Kernel, seen: StepWork) -> Iterator[Fitted]:
    """The ways to walk a step with which it fits LX, the fastest first.

    Each is timed with what it gets: all copies double buffered, those of ops' own loops, or none,
    whichever fits first; beside what may stay in LX, and with all of it.
    """
    ways = (_fitting(kernel, one) for one in (seen, seen.alone) if one is not None)
    yield from merge(*ways, key=lambda found: found.cycles)


def fits(kernel: Kernel, card: CardSpec, step: Step, work: Work, division: Division) -> bool:
    """Whether tile loops let a step fit LX with a division."""
    seen = StepWork(step, division, work, card, None)
    tried = islice(smallest_first(work, split_of(step, division), card), _MOST_TRIED)
    return any(
        _fits(kernel, with_loops(step, work, *loops), seen, Buffering.NONE) for loops in tried
    )


def _fitting(kernel: Kernel, seen: StepWork) -> Iterator[Fitted]:
    work, split = seen.work, split_of(seen.step, seen.division)
    local = local_sizes(work, split)
    too_large: dict[Buffering, list[_Sizes]] = {buffering: [] for buffering in BUFFERINGS}
    for found in tilings(work, split, seen.card):
        larger, sizes = too_large[found.buffering], _Sizes.of(work, local, found.loops, found.inner)
        if len(larger) == _MOST_TRIED or any(sizes.covers(other) for other in larger):
            continue
        step = with_loops(seen.step, work, found.loops, found.inner)
        if not _fits(kernel, step, seen, found.buffering):
            larger.append(sizes)
        elif _buffering(kernel, step, seen) is found.buffering:
            yield Fitted(found.cycles, step)


def estimated(kernel: Kernel, step: Step, seen: StepWork) -> float:
    """Cycles of a step with the tile loops that it has."""
    rooms = [one for one in (seen, seen.alone) if one is not None]
    fitting = [one for one in rooms if _buffering(kernel, step, one) is not None]
    return min(_estimated(kernel, step, one) for one in fitting or rooms[-1:])


def _estimated(kernel: Kernel, step: Step, seen: StepWork) -> float:
    loops, inner = loops_of(step, seen.work)
    buffering = _buffering(kernel, step, seen) or BUFFERINGS[-1]
    split = split_of(step, seen.division)
    ways = timed(seen.work, split, seen.card, loops, inner)
    return next(time for time, way in ways if way is buffering)


def _buffering(kernel: Kernel, step: Step, seen: StepWork) -> Buffering | None:
    """What is double buffered, if the step fits at all."""
    ways = BUFFERINGS if step.loops or step.inner else BUFFERINGS[-1:]
    return next((way for way in ways if _fits(kernel, step, seen, way)), None)


def _fits(kernel: Kernel, step: Step, seen: StepWork, buffering: Buffering) -> bool:
    return lx_peak(kernel, step, seen.division, seen.card, buffering) <= seen.card.lx_usable


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Points of one trip: of the axes, then of the dims of every op that has loops of its own."""

    points: tuple[int, ...]

    @staticmethod
    def of(work: Work, local: Sequence[int], outer: Tiling, within: Inner) -> _Sizes:
        tiles = dict(enumerate(local)) | {axis: min(tile, local[axis]) for axis, tile in outer}
        points = [tiles[axis] for axis in range(len(local))]
        for phase in work.phases:
            own = dict(within.get(phase.op.name, ()))
            points += [min(own.get(d, n), n) for d, n in enumerate(phase.op.sizes)]
        return _Sizes(tuple(points))

    def covers(self, other: _Sizes) -> bool:
        """Whether it is nowhere smaller, so that it takes no less of LX."""
        return all(a >= b for a, b in zip(self.points, other.points, strict=True))


def with_loops(step: Step, work: Work, outer: Tiling, within: Inner) -> Step:
    inner = {
        phase.op.name: tuple(Loop(phase.op.names[d], t) for d, t in within[phase.op.name])
        for phase in work.phases
        if within.get(phase.op.name)
    }
    loops = tuple(Loop(step.axes[a].name, tile) for a, tile in outer)
    return replace(step, loops=loops, inner=inner)


def loops_of(step: Step, work: Work) -> tuple[Tiling, Inner]:
    """The loops of a step as the cost model takes them."""
    axes = {axis.name: at for at, axis in enumerate(step.axes)}
    inner: dict[str, tuple[tuple[int, int], ...]] = {}
    for phase in work.phases:
        dims = {name: at for at, name in enumerate(phase.op.names)}
        if own := step.inner.get(phase.op.name):
            inner[phase.op.name] = tuple((dims[loop.axis], loop.tile) for loop in own)
    return tuple((axes[loop.axis], loop.tile) for loop in step.loops), inner


def minimal_step(kernel: Kernel, step: Step, card: CardSpec) -> Step:
    """The step with the smallest tiles that there are."""
    loops = tuple(Loop(a.name, 1) for a in step.axes)
    inner = {n: _inner(kernel.by_name[n], step, {}, 1) for n in step.ops}
    return replace(step, loops=loops, inner={n: v for n, v in inner.items() if v})


def _fitted(kernel: Kernel, step: Step, division: Division, card: CardSpec) -> Step:
    parts = {p.axis: p for p in division.parts}
    tops = {a.name: max(1, highest(a.extent, kernel.limits)) for a in step.axes}
    whole = {a: largest_part(top, parts.get(a)) for a, top in tops.items()}
    grains = {a: parts[a].granule if a in parts else 1 for a in whole}

    def attempt(tiles: Mapping[str, int], base: Step) -> Step:
        cut = (a.name for a in step.axes if tiles[a.name] < whole[a.name])
        return replace(base, loops=tuple(Loop(a, tiles[a]) for a in cut))

    def fits(candidate: Step, *, doubled: bool) -> bool:
        buffering = Buffering.COPIES if doubled else None
        return lx_peak(kernel, candidate, division, card, buffering) <= card.lx_usable

    for doubled in (True, False):
        tiles = dict(whole)
        while True:
            candidate = attempt(tiles, step)
            # one whole tile has no neighbour to overlap with
            if fits(candidate, doubled=doubled and bool(candidate.loops or candidate.inner)):
                return candidate
            axis = _largest_tile(tiles, grains)
            if axis is None:
                break
            tiles[axis] = _smaller_tile(tiles[axis], whole[axis], grains[axis])
    return _with_private_loops(kernel, attempt(dict.fromkeys(whole, 1), step), division, card)


def _largest_tile(tiles: Mapping[str, int], grains: Mapping[str, int]) -> str | None:
    """The axis to cut next: the first one that still holds several granules."""
    for axis, tile in tiles.items():
        if tile > grains[axis]:
            return axis
    return next((a for a, t in tiles.items() if t > 1), None)


def _smaller_tile(tile: int, whole: int, grain: int) -> int:
    """A tile for about twice as many trips, all of about the same size."""
    unit = grain if tile > grain else 1
    trips = -(-whole // tile) * 2
    even = -(-whole // trips)
    rounded = -(-even // unit) * unit
    return max(1, min(rounded, max(tile - unit, 1)))


def _inner(
    op: Op, step: Step, panels: Mapping[str, tuple[Loop, ...]], tile: int
) -> tuple[Loop, ...]:
    """Loops of an op over all its private dims, for the smallest tiles."""
    bound = step.binding[op.name]
    dims = (*op.dims, *(op.rdims if op.kind is not Kind.SCAN else ()))
    return tuple(Loop(d.name, tile) for d in dims if d.name not in bound)


def _with_private_loops(kernel: Kernel, step: Step, division: Division, card: CardSpec) -> Step:
    """Cuts private dims, of all ops alike, until the step fits."""
    ops = step_ops(kernel, step)
    tile = max(
        (max(1, highest(d.extent, kernel.limits)) for op in ops for d in _private(op, step)),
        default=1,
    )
    candidate = step
    while tile > 1:
        tile = -(-tile // 2)
        found = {op.name: _cut(kernel, op, step, _aligned(tile)) for op in ops}
        inner = {name: loops for name, loops in found.items() if loops}
        candidate = replace(step, inner=inner)
        if lx_peak(kernel, candidate, division, card) <= card.lx_usable:
            return candidate
    return candidate


def _cut(kernel: Kernel, op: Op, step: Step, tile: int) -> tuple[Loop, ...]:
    """Loops that leave no more than `tile` points of any private dim, in the op's order.

    Points that a scatter stores to one element keep it: the last one wins.
    """
    dims = [(d.name, highest(d.extent, kernel.limits)) for d in _private(op, step)]
    if op.kind is not Kind.SCATTER:
        return tuple(Loop(name, tile) for name, points in dims if points > tile)
    last = max((n for n, (_, points) in enumerate(dims) if points > tile), default=-1)
    outer = tuple(Loop(name, 1) for name, points in dims[: max(last, 0)] if points > 1)
    return (*outer, *(Loop(name, tile) for name, _ in dims[last : last + 1] if last >= 0))


def _private(op: Op, step: Step) -> list[Dim]:
    bound = step.binding[op.name]
    dims = (*op.dims, *(op.rdims if op.kind is not Kind.SCAN else ()))
    return [d for d in dims if d.name not in bound]


def _aligned(tile: int) -> int:
    return tile if tile < STICK_POINTS else -(-tile // STICK_POINTS) * STICK_POINTS
