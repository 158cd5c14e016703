"""Tile loops worth trying for a step.

A loop over a shared axis walks all ops of the step tile by tile, so that copies of one tile run
beside the work on another. A loop over a reduced dim keeps the result in LX while the operands
stream past it: each is read once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from openspyre.compiler.addressing import rounded_up
from openspyre.compiler.axes import largest_part
from openspyre.compiler.cost import Inner, Split, Tiling, Work, cycles
from openspyre.compiler.work import OpWork
from openspyre.ir.kernel import Kind, Part
from openspyre.spec import CardSpec

_RESULT_SHARE = 4  # a result larger than this part of LX is made in tiles of two axes
_PANEL_SHARE = 8  # a panel of a right operand takes at most this part of LX
_STICK = 64  # points: tiles of a lane dim are whole sticks of every dtype
_STEPS = 6  # halvings of an axis that is tiled with another


def soonest(work: Work, split: Split, card: CardSpec) -> list[tuple[float, Tiling, Inner]]:
    """(cycles, loops over shared axes, loops of single ops) that may fit LX, the fastest first."""
    found = [(cycles(work, split, card, a, b), a, b) for a, b in _tilings(work, split, card)]
    return sorted(found, key=lambda x: x[0])


def panels(work: Work, card: CardSpec) -> Inner:
    """Loops over n of matmuls whose right operand is large, so that loading overlaps with use."""
    found = {}
    room = card.lx_usable // _PANEL_SHARE
    for phase in work.phases:
        parts, sizes = phase.op.matmul, phase.op.sizes
        if parts is None or not parts.n or any(phase.axes[d] >= 0 for d in parts.n):
            continue
        right = next(f for f in phase.op.flows if f.role == "b")
        column = right.element * prod(sizes[d] for d in (*parts.k, *parts.n[:-1]))
        tile = max(_STICK, room // max(column, 1) // _STICK * _STICK)
        if tile < sizes[parts.n[-1]]:
            found[phase.op.name] = ((parts.n[-1], tile),)
    return found


def _tilings(work: Work, split: Split, card: CardSpec) -> Iterator[tuple[Tiling, Inner]]:
    local = [
        largest_part(e, Part("", p, 1, g))
        for e, g, p in zip(work.extents, work.granules, split, strict=True)
    ]
    tiles = {a: list(_tiles(n, work.granules[a])) for a, n in enumerate(local) if n > 1}
    within = list(_streams(work, panels(work, card)))
    for loops in _loops(work, local, tiles, card):
        for inner in within:
            if _least_lx(work, local, loops, inner) <= card.lx_usable:
                yield loops, inner


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
    if not matmuls or prod(local) * 4 * _RESULT_SHARE <= card.lx_usable:
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
    if len(heavy) == 1:
        for dim, tile in _reduced_tiles(heavy[0]):
            yield {heavy[0].name: ((dim, tile),)}


def _reduced_tiles(op: OpWork) -> Iterator[tuple[int, int]]:
    """Tiles of the largest reduced dim, in whole sticks where it walks them."""
    reduced = range(op.parallel, len(op.sizes))
    dim = max(reduced, key=lambda d: op.sizes[d])
    adjacent = any(
        pitch == flow.element
        for flow in op.flows
        for d, pitch in zip(flow.dims, flow.pitches, strict=True)
        if d == dim
    )
    yield from ((dim, tile) for tile in _tiles(op.sizes[dim], _STICK if adjacent else 1))


def _least_lx(work: Work, local: list[int], loops: Tiling, inner: Inner) -> int:
    """Bytes that the hungriest op of a step needs, at least."""
    tiles = list(local)
    for axis, tile in loops:
        tiles[axis] = min(tile, local[axis])
    most = 0
    for phase in work.phases:
        sizes = [tiles[a] if a >= 0 else n for a, n in zip(phase.axes, phase.op.sizes, strict=True)]
        result = prod(sizes[: phase.op.parallel])
        own = inner.get(phase.op.name, ())
        looped = {axis for axis, _ in loops}
        total = 4 * result if any(d >= phase.op.parallel for d, _ in own) else 0
        for dim, tile in own:
            sizes[dim] = min(sizes[dim], tile)
        for number, axes in phase.flows:
            flow = phase.op.flows[number]
            again = axes & looped or any(d in flow.dims for d, _ in own)
            points = prod(sizes[d] for d in flow.dims)
            total += flow.element * points * (2 if again and not flow.store else 1)
        most = max(most, total)
    return most
