"""Stage 6: tile capacities, as large as LX allows.

A step without loops walks each core's whole part at once. Where that does not fit, loops over the
shared axes cut it into tiles; where a single point does not fit, ops get loops over their private
dims. Right operands of matmuls always come in panels, so that loading one overlaps with using
another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from openspyre.compiler.agreed import staying, without
from openspyre.compiler.axes import largest_part
from openspyre.compiler.bounds import highest
from openspyre.compiler.cost import Inner, Tiling, Work, local_sizes
from openspyre.compiler.division import last_uses, split_of, step_work
from openspyre.compiler.residency import below_weights
from openspyre.compiler.segments import step_keys
from openspyre.compiler.tiles import Buffering, lx_peak
from openspyre.compiler.tilings import panels, soonest
from openspyre.compiler.work import Works
from openspyre.ir.kernel import Dim, Division, Kernel, Kind, Loop, Op, Step
from openspyre.spec import CardSpec

BUFFERINGS = (Buffering.COPIES, Buffering.INNER, Buffering.NONE)
_MOST_TRIED = 32  # tilings that turn out too large, the fastest first
_STICK = 64  # points: tiles of a lane dim are whole sticks of every dtype


def fit_tiles(kernel: Kernel, card: CardSpec) -> Kernel:
    """Gives every step the loops with which it fits LX and is done soonest: beside what may stay
    there, or with all of LX where that is sooner all the same.
    """
    done: dict[object, Step] = {}
    works = Works(kernel, card)
    last_use = last_uses(kernel)
    near = staying(kernel, card)
    card = replace(card, lx_usable=below_weights(kernel, card))
    steps = []
    for number, (step, key) in enumerate(step_keys(kernel)):
        if number < kernel.prologue:
            steps.append(step)
            continue
        # Weights have their place already. Those that are fetched on the ring come whole: tiles
        # of them would cut what is fetched beside them into short runs.
        whole = without(step_work(step, number, last_use, works), kernel.residency)
        work = without(whole, near)
        held = sum(size for size, first, last in near.values() if first <= number <= last)
        key = (key, held, tuple(tuple(n for n, _ in p.flows) for p in work.phases))
        if key not in done:
            division = kernel.divisions[step.name]
            left = replace(card, lx_usable=card.lx_usable - min(held, card.lx_usable // 2))
            beside = _soonest(kernel, step, division, work, left)
            alone = _soonest(kernel, step, division, whole, card) if held else None
            found = [tiled for tiled in (beside, alone) if tiled is not None]
            best = min(found, key=lambda tiled: tiled.cycles, default=None)
            done[key] = best.step if best else _smallest(kernel, step, division, whole, card)
        model = done[key]
        inner = {
            op: model.inner[other]
            for op, other in zip(step.ops, model.ops, strict=True)
            if other in model.inner
        }
        steps.append(replace(step, loops=model.loops, inner=inner))
    return replace(kernel, steps=tuple(steps))


def _soonest(
    kernel: Kernel, step: Step, division: Division, work: Work, card: CardSpec
) -> _Tiled | None:
    """The fastest of the tilings worth trying that fits with its copies double buffered, with
    those of ops' own loops, or with none.
    """
    split = split_of(step, division)
    local = local_sizes(work, split)
    best: _Tiled | None = None
    for buffering in BUFFERINGS:
        tried = [
            _Tiled(cycles, with_loops(step, work, a, b), _Sizes.of(work, local, a, b))
            for cycles, a, b in soonest(work, split, card, buffering)
        ]
        found = _fastest(kernel, division, tried, card, buffering)
        if found is not None and (best is None or found.cycles < best.cycles):
            best = found
    return best


def _smallest(kernel: Kernel, step: Step, division: Division, work: Work, card: CardSpec) -> Step:
    local = local_sizes(work, split_of(step, division))
    whole = with_loops(step, work, (), panels(work, local, card))
    return _fitted(kernel, whole, division, card)


def _fastest(
    kernel: Kernel, division: Division, tried: Sequence[_Tiled], card: CardSpec,
    buffering: Buffering,
) -> _Tiled | None:  # fmt: skip
    """The first that fits."""
    too_large: list[_Sizes] = []
    for found in tried:
        if any(found.sizes.covers(other) for other in too_large):
            continue
        looped = bool(found.step.loops or found.step.inner)
        peak = lx_peak(kernel, found.step, division, card, buffering if looped else None)
        if peak <= card.lx_usable:
            return found
        too_large.append(found.sizes)
        if len(too_large) == _MOST_TRIED:
            break
    return None


@dataclass(frozen=True, slots=True)
class _Tiled:
    """A step with tile loops, and its estimated cycles."""

    cycles: float
    step: Step
    sizes: _Sizes


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


def minimal_step(kernel: Kernel, step: Step, card: CardSpec) -> Step:
    """The step with the smallest tiles that there are."""
    ops = {op.name: op for op in kernel.ops}
    loops = tuple(Loop(a.name, 1) for a in step.axes)
    inner = {n: _inner(ops[n], step, {}, 1) for n in step.ops}
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
    ops = [op for op in kernel.ops if op.name in step.ops]
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
    return tile if tile < _STICK else -(-tile // _STICK) * _STICK
