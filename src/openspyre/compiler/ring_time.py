"""How long the ring is busy with what a step fetches from the LX of other cores.

Closer than `ring_moves.py`, which compares two ways of the same bytes: here the time counts, and
whether a step fetches a tensor whole before its loops or in parts beside its work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from openspyre.compiler.addressing import layout_order
from openspyre.compiler.axes import StepAxes, step_ops
from openspyre.compiler.bounds import highest
from openspyre.compiler.exchange import Exchange, Reach, busiest_link
from openspyre.compiler.residency import Holders
from openspyre.compiler.tiles import Content, Read, StepTiles, Tile
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Kernel, Op, Step
from openspyre.spec import CardSpec


@dataclass(frozen=True, slots=True)
class RingTime:
    """Cycles before the first op of a step can begin, and in all; in how many trips at most."""

    before: float = 0.0
    all: float = 0.0
    trips: int = 1

    def __add__(self, other: RingTime) -> RingTime:
        trips = max(self.trips, other.trips)
        return RingTime(self.before + other.before, self.all + other.all, trips)

    def done(self, time: float) -> float:
        """When all is fetched in a step of some time: the last trip's part begins two trips before
        the step ends.
        """
        return max(self.all, time * (1 - 2 / self.trips) + self.all / self.trips)


def ring_times(
    kernel: Kernel,
    step: Step,
    plan: StepTiles,
    cores: int,
    holders: Mapping[str, Holders],
    card: CardSpec,
) -> dict[str, RingTime]:
    """The time of the ring in a step, by what it fetches.

    Args:
        cores: of the step.
        holders: of the tensors that it fetches.
    """
    ops = {op.name: op for op in step_ops(kernel, step)}
    found: dict[str, RingTime] = {}
    for name, read, tile in _fetched(plan, holders):
        loops = plan.axes.loops[name][: tile.depth]
        trips = prod(-(-plan.axes.axes[x.axis].part // x.tile) for x in loops)
        one = _exchange(kernel, ops[name], read, tile, plan.axes, cores, holders[read.tensor])
        cycles = busiest_link(one, card)
        # nothing works beside the first one
        time = RingTime(cycles if name == step.ops[0] else 0.0, cycles * trips, trips)
        found[read.tensor] = found.get(read.tensor, RingTime()) + time
    return found


def _fetched(plan: StepTiles, holders: Mapping[str, Holders]) -> Iterator[tuple[str, Read, Tile]]:
    """The tiles that come from other cores, with the first op that reads them."""
    seen: set[int] = set()
    for (name, _, read), number in plan.operands.items():
        tile = plan.tiles[number]
        if read.tensor in holders and tile.content is Content.OPERAND and number not in seen:
            seen.add(number)
            yield name, read, tile


def _exchange(
    kernel: Kernel, op: Op, read: Read, tile: Tile, axes: StepAxes, cores: int, held: Holders
) -> Exchange:
    """What one trip fetches."""
    tensor, numbers = kernel.tensors[read.tensor], axes.numbers(op)
    points = {d.axis: d.capacity for d in tile.dims}
    shape = tuple(highest(extent, kernel.limits) for extent in tensor.shape)
    wanted = tuple(_reach(index, axes, numbers, points) for index in read.index)
    order = layout_order(kernel, tensor)
    return Exchange(shape, order, tensor.dtype.bytes, held.parts, held.cores, wanted, cores)


def _reach(
    index: Expr, axes: StepAxes, numbers: Mapping[str, int], points: Mapping[int, int]
) -> Reach:
    """The indices of a tensor's dim that a core needs in one trip."""
    span, part = 1, None
    for dim in index.names & numbers.keys():
        axis, by = numbers[dim], index.coefficient(dim).constant or 0
        if by <= 0:
            continue
        span += by * (points.get(axis, 1) - 1)
        split = axes.axes[axis].split
        if split and split.parts > 1:
            part = replace(split, granule=split.granule * by)
    return Reach(part, span)
