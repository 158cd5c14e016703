"""Tile loops worth trying for a step.

A loop over a shared axis walks all ops of the step tile by tile, so that copies of one tile run
beside the work on another. A loop over a reduced dim keeps the result in LX while the operands
stream past it: each is read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, prod

from openspyre.compiler.addressing import STICK_POINTS, rounded_up
from openspyre.compiler.cost import (
    Inner,
    Phase,
    Split,
    Tiling,
    Work,
    cycles_of_each,
    least_of_units,
    local_sizes,
    roughly,
    stands_before,
)
from openspyre.compiler.tiles import Buffering
from openspyre.compiler.work import OpWork
from openspyre.ir.kernel import Kind
from openspyre.spec import CardSpec

BUFFERINGS = (Buffering.COPIES, Buffering.INNER, Buffering.NONE)
_RESULT_SHARE = 4  # a result larger than this part of LX is made in tiles of two axes
_PANEL_SHARE = 8  # a panel of a right operand takes at most this part of LX
_SMALL_PANEL_SHARE = 48  # where larger ones leave too little to others
_UNFIT = 1e15  # cycles: longer than any step takes
_STEPS = 6  # halvings of an axis that is tiled with another


@dataclass(frozen=True, slots=True)
class Tiled:
    """A way to walk a step in tiles, and its estimated cycles.

    Attributes:
        loops, inner: over shared axes, and of single ops.
    """

    cycles: float
    loops: Tiling
    inner: Inner
    buffering: Buffering


def tilings(work: Work, split: Split, card: CardSpec) -> list[Tiled]:
    """All that may fit LX, with every way of buffering, the fastest first."""
    found = [
        Tiled(time, loops, inner, buffering)
        for _, loops, inner in _tilings(work, split, card)
        for time, buffering in timed(work, split, card, loops, inner)
    ]
    return sorted(found, key=lambda tiled: tiled.cycles)


def timed(
    work: Work, split: Split, card: CardSpec, loops: Tiling, inner: Inner
) -> Iterator[tuple[float, Buffering]]:
    """The time of a tiling with each way of buffering that makes a difference."""
    # one whole tile has no neighbour to overlap with
    ways = BUFFERINGS if loops or any(inner.values()) else BUFFERINGS[-1:]
    return zip(cycles_of_each(work, split, card, loops, inner, ways), ways, strict=True)


def least_cycles(work: Work, split: Split, card: CardSpec) -> float:
    """Time of a split with the tile loops that suit it best; more than that of any other split if
    none may fit.
    """
    least = inf
    for _, loops, inner in _tilings(work, split, card):
        if least_of_units(work, split, card, loops, inner) < least:
            times = timed(work, split, card, loops, inner)
            least = min([least, *(time for time, _ in times)])
    return _UNFIT + roughly(work, split, card) if least == inf else least


def smallest_first(work: Work, split: Split, card: CardSpec) -> list[tuple[Tiling, Inner]]:
    """The tile loops with which a split may fit LX: over shared axes, and of single ops."""
    found = sorted(_tilings(work, split, card), key=lambda tiled: tiled[0])
    return [(loops, inner) for _, loops, inner in found]


def panels(work: Work, tiles: Sequence[int], card: CardSpec, share: int = _PANEL_SHARE) -> Inner:
    """Loops of matmuls whose right operand is large, so that loading overlaps with use.

    They cut the columns, or k where that reads device memory in longer runs; sums over k then
    wait in LX. `tiles` are the points of every axis in one trip; a panel takes at most one
    `share`th of LX.
    """
    found = {}
    for phase in work.phases:
        parts = phase.op.matmul
        if parts is None or not parts.n or any(phase.axes[d] >= 0 for d in parts.n):
            continue
        sizes = _sizes(phase, tiles)
        dims = [parts.n[-1], *sorted(parts.k, key=lambda d: -sizes[d])[:1]]
        cut = [(d, t) for d in dims if (t := _panel(phase.op, sizes, d, card, share)) < sizes[d]]
        if cut and cut[0][0] == parts.n[-1]:
            best = min(cut, key=lambda c: _panels_cycles(phase.op, sizes, *c))
            found[phase.op.name] = (best,)
    return found


def _sizes(phase: Phase, tiles: Sequence[int]) -> list[int]:
    """Points of every dim of an op in one trip."""
    return [tiles[a] if a >= 0 else n for a, n in zip(phase.axes, phase.op.sizes, strict=True)]


def _panel(op: OpWork, sizes: Sequence[int], dim: int, card: CardSpec, share: int) -> int:
    """Points of a dim of the right operand that one panel takes, in whole sticks."""
    right = next(f for f in op.flows if f.role == "b")
    each = right.lx_bytes * prod(sizes[d] for d in right.dims if d != dim)
    return max(STICK_POINTS, card.lx_usable // share // max(each, 1) // STICK_POINTS * STICK_POINTS)


def _panels_cycles(op: OpWork, sizes: Sequence[int], dim: int, tile: int) -> float:
    """Cycles of device memory for all panels of the right operand."""
    cut = tuple(min(tile, n) if d == dim else n for d, n in enumerate(sizes))
    number = next(n for n, f in enumerate(op.flows) if f.role == "b")
    return op.cost(cut).moved[number].server * -(-sizes[dim] // tile)


def _tilings(work: Work, split: Split, card: CardSpec) -> Iterator[tuple[int, Tiling, Inner]]:
    """Tile loops, and the bytes of LX that they take at least."""
    local = local_sizes(work, split)
    sizes = {a: list(_tiles(n, work.granules[a])) for a, n in enumerate(local) if n > 1}
    for loops in _loops(work, local, sizes, card):
        tiles = list(local)
        for axis, tile in loops:
            tiles[axis] = min(tile, local[axis])
        own = prod(tiles) * work.point_bytes
        if own > card.lx_usable:
            continue
        ways = list(_streams(work, panels(work, tiles, card)))
        if 2 * own > card.lx_usable and (small := panels(work, tiles, card, _SMALL_PANEL_SHARE)):
            ways.append(small)
        for inner in ways:
            least = _least_lx(work, tiles, loops, inner, card)
            if least <= card.lx_usable:
                yield least, loops, inner


def _tiles(whole: int, granule: int) -> Iterator[int]:
    """Tile sizes below the whole, by halves, in whole granules."""
    unit = granule if whole > granule else 1
    tile = whole
    while (half := rounded_up((tile + 1) // 2, unit)) < tile:
        tile = half
        yield tile


def _loops(
    work: Work, local: list[int], tiles: dict[int, list[int]], card: CardSpec
) -> Iterator[Tiling]:
    yield ()
    for axis, sizes in tiles.items():
        for tile in sizes:
            yield ((axis, tile),)
    matmuls = [phase for phase in work.phases if phase.op.matmul]
    if not matmuls or prod(local) * max(4, work.point_bytes) * _RESULT_SHARE <= card.lx_usable:
        return
    for first, outer in tiles.items():
        for second, inner in tiles.items():
            if first != second:
                pairs = product(outer[:_STEPS], inner[:_STEPS])
                yield from (((first, a), (second, b)) for a, b in pairs)


def _streams(work: Work, panelled: Inner) -> Iterator[Inner]:
    yield panelled
    if panelled:
        yield {}  # whole right operands, loaded before the loops
    heavy = [p.op for p in work.phases if p.op.op.kind in (Kind.CONTRACT, Kind.REDUCE)]
    if len(heavy) > 1 and any(op.matmul is None for op in heavy):
        return
    for loops in zip(*(_reduced_tiles(op) for op in heavy), strict=False):
        yield {op.name: (loop,) for op, loop in zip(heavy, loops, strict=True)}


def _reduced_tiles(op: OpWork) -> Iterator[tuple[int, int]]:
    """Tiles of one of the reduced dims, in whole sticks where it walks them."""
    adjacent = {
        d
        for flow in op.flows
        for d, pitch in zip(flow.dims, flow.pitches, strict=True)
        if pitch == flow.element
    }
    for dim in range(op.parallel, len(op.sizes)):
        unit = STICK_POINTS if dim in adjacent else 1
        yield from ((dim, tile) for tile in _tiles(op.sizes[dim], unit))


def _least_lx(work: Work, tiles: Sequence[int], loops: Tiling, inner: Inner, card: CardSpec) -> int:
    """Bytes that a step needs, at least: of its hungriest op, what loops change double buffered;
    or in single slots what stands before the step's loops, which lives through them all, and
    beside it what any op needs.
    """
    before: dict[object, int] = {}
    most = 0
    single = int(prod(tiles) * work.point_bytes)
    for phase in work.phases:
        own = inner.get(phase.op.name, ())
        whole = _sizes(phase, tiles)
        sizes = list(whole)
        for dim, tile in own:
            sizes[dim] = min(sizes[dim], tile)
        summed = any(d >= phase.op.parallel for d, _ in own)
        total = least = 4 * prod(whole[: phase.op.parallel]) if summed else 0
        for number, axes in (*phase.flows, *phase.beside):
            flow = phase.op.flows[number]
            depth = max((d for d, (a, _) in enumerate(loops, 1) if a in axes), default=0)
            deep = any(d in flow.dims for d, _ in own)
            counts = sizes
            if deep and not flow.store:
                again = [(a, 2) for a, _ in loops[depth:]]
                if stands_before(flow, whole, again, card):
                    deep, counts = False, whole
            each = flow.lx_bytes * prod(counts[d] for d in flow.dims)
            loaded = (number, axes) in phase.flows
            if loaded:
                total += each * (2 if (depth or deep) and not flow.store else 1)
            if not (flow.store or deep or depth == len(loops)):
                part = flow.tensor, flow.origin, axes
                before[part] = max(each, before.get(part, 0))
            elif loaded:
                least += each
        most, single = max(most, total), max(single, least)
    return max(most, single + sum(before.values()))
