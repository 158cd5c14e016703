"""How long the ring is busy with what a step fetches from the LX of other cores.

Closer than `ring_moves.py`, which compares two ways of the same bytes: here the time counts, and
whether a step fetches a tensor whole before its loops or in parts beside its work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, prod

from openspyre.compiler.addressing import layout_order
from openspyre.compiler.axes import step_ops
from openspyre.compiler.residency import Holders
from openspyre.compiler.tiles import Content, Read, StepTiles, Tile
from openspyre.ir.kernel import Kernel, Op, Step
from openspyre.spec import CardSpec


@dataclass(frozen=True, slots=True)
class RingTime:
    """Cycles before the first op of a step can begin, and in all."""

    before: float
    all: float


@dataclass(frozen=True, slots=True)
class _Fetch:
    """An operand that cores fetch.

    Attributes:
        runs, run: of a core in one trip; contiguous bytes.
        trips: how often it is fetched.
        apart: how many different parts there are.
        fan, stride: cores that fetch the same, and how far they stand apart.
        block: neighbours that hold all that is fetched in one trip; 0 if all cores do.
    """

    runs: int
    run: int
    trips: int
    apart: int
    fan: int
    stride: int
    block: int


def ring_time(
    kernel: Kernel,
    step: Step,
    plan: StepTiles,
    cores: int,
    holders: Mapping[str, Holders],
    card: CardSpec,
) -> RingTime:
    """The time of the ring in a step.

    Args:
        cores: of the step.
        holders: of the tensors that it fetches.
    """
    before = whole = 0.0
    for op, fetch in _fetches(kernel, step, plan, cores, holders):
        cycles = _cycles(fetch, card)
        whole += cycles
        if op == step.ops[0]:
            before += cycles / fetch.trips  # nothing works beside the first one
    return RingTime(before, whole)


def _cycles(fetch: _Fetch, card: CardSpec) -> float:
    """A quarter of the way round on average, and past all that fetch the same."""
    way = min(card.cores / 4 + (fetch.fan - 1) * fetch.stride, card.cores - 1)
    each = card.lx_latency_cycles + ceil(fetch.run / card.ring_bytes_per_cycle)
    runs = fetch.runs * fetch.apart * each
    links = runs * way / (2 * card.cores)
    if fetch.block:  # all leaves by the two links at its ends
        links = max(links, runs * (1 - fetch.block / card.cores) / 2)
    slower: float = max(1.0, (fetch.fan / card.multicast_free) ** card.multicast_exponent)
    return fetch.trips * (links * slower + card.lx_latency_cycles + way * card.ring_hop_cycles)


def _fetches(
    kernel: Kernel, step: Step, plan: StepTiles, cores: int, holders: Mapping[str, Holders]
) -> Iterator[tuple[str, _Fetch]]:
    ops = {op.name: op for op in step_ops(kernel, step)}
    seen: set[int] = set()
    for (name, _, read), number in plan.operands.items():
        tile = plan.tiles[number]
        if read.tensor in holders and tile.content is Content.OPERAND and number not in seen:
            seen.add(number)
            yield name, _fetch(kernel, ops[name], read, tile, plan, cores, holders[read.tensor])


def _fetch(
    kernel: Kernel, op: Op, read: Read, tile: Tile, plan: StepTiles, cores: int, held: Holders
) -> _Fetch:
    axes, numbers = plan.axes, plan.axes.numbers(op)
    points = {d.axis: d.capacity for d in tile.dims}
    loops = axes.loops[op.name][: tile.depth]
    trips = prod(-(-axes.axes[x.axis].part // x.tile) for x in loops)
    splits = [a.split for a in axes.axes if a.split and a.split.parts > 1]
    walked = [a.split for n, a in enumerate(axes.axes) if n in points and a.split]
    apart = prod(s.parts for s in walked)
    alike = [s.stride for s in splits if s not in walked]
    stick = layout_order(kernel, kernel.tensors[read.tensor])[-1:]
    run = 1
    for dim in stick:
        steps = {
            by: points.get(numbers[d], 1)
            for d in numbers
            if (by := read.index[dim].coefficient(d).constant or 0) > 0
        }
        while run in steps and steps[run] > 1:
            run *= steps[run]
        part, extent = held.parts[dim], kernel.tensors[read.tensor].shape[dim].constant
        if part and extent:
            run = max(1, min(run, -(-extent // part.parts)))
    block = 0
    for index, part in zip(read.index, held.parts, strict=True):
        looped = {x.axis for x in loops} & {numbers[d] for d in index.names if d in numbers}
        if part and looped and part.stride * part.parts >= held.cores:
            block = part.stride
    size = tile.dtype.bytes
    each = -(-prod(points.values()) // run)
    fan = max(1, cores // max(apart, 1))
    return _Fetch(each, run * size, trips, apart, fan, min(alike, default=1), block)
