"""Which dim fills the lanes of the SFU, and what an op then costs per point.

A reduction across lanes runs at its own, low rate, and adds up 64 partial sums in a tree; over any
other dim it is an op like any other, one point after the other, even where the lanes then step
through LX by more than an element. What rounds is therefore added across lanes (`partials.py` cuts
it so that this is little); what does not, such as a maximum, along them. The choice depends on
whole extents alone, so that results do not depend on tiles and divisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from openspyre.compiler.addressing import lane_dim, unit_dims
from openspyre.compiler.bounds import highest
from openspyre.ir.kernel import Access, Call, Kernel, Kind, Load, Op, Role, loads, walk
from openspyre.ir.ops import TABLE, Cost
from openspyre.spec import CardSpec


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes of a vector instruction: the dim they walk, and what points then cost.

    Attributes:
        passes: ops at full width, per point.
        rest: cycles per point of transcendentals and of a reduction across lanes.
        port: cycles per point that operands take to and from LX.
    """

    dim: str | None
    passes: int
    rest: float
    port: float

    def cycles(self, points: int, extent: int, card: CardSpec) -> float:
        """SFU cycles of so many points, of which `extent` lie along the lanes."""
        lanes = card.sfu_lanes
        wide = -(-extent // lanes) * lanes / max(extent, 1)
        passes = self.passes / (lanes * card.corelets) * wide
        return points * max(self.rest + passes, self.port)


def lanes_of(kernel: Kernel, op: Op, card: CardSpec) -> Lanes:
    """How a vector instruction walks an op."""
    default = lane_dim(kernel, op)
    sizes = {d.name: highest(d.extent, kernel.limits) for d in (*op.dims, *op.rdims)}
    near = list(_neighbours(kernel, op, default, sizes))
    choices: list[str | None] = [default]
    if op.kind is Kind.REDUCE and not rounds(op) and default in {d.name for d in op.rdims}:
        choices += [d.name for d in op.dims if sizes[d.name] > 1]
    points = prod(sizes.values())
    found = [_lanes(op, lane, sizes, near, card) for lane in choices]

    def rank(lanes: Lanes) -> tuple[float, int]:  # a long dim keeps its lanes full in tiles too
        extent = sizes.get(lanes.dim or "", 1)
        return lanes.cycles(points, extent, card), -extent

    return min(found, key=rank)


def rounds(op: Op) -> bool:
    """Whether the order in which a reduction combines its points changes the result."""
    return op.reduce in ("sum", "prod") and op.body.dtype.is_float


def _lanes(
    op: Op,
    lane: str | None,
    sizes: Mapping[str, int],
    near: list[tuple[bool, int, frozenset[str], str | None]],
    card: CardSpec,
) -> Lanes:
    calls = [n for n in dict.fromkeys(walk(op.body)) if isinstance(n, Call)]
    hard = sum(TABLE[n.op].cost is Cost.TRANSCENDENTAL for n in calls)
    across = op.kind is Kind.SCAN or (op.reduce and lane in {d.name for d in op.rdims})
    passes = len(calls) - hard + (op.reduce is not None and not across)
    rest = hard * card.clock_ghz / card.sfu_transcendental_rate
    if across:
        rest += card.clock_ghz / card.sfu_reduce_rate
    points = max(1, prod(sizes.values()))
    port = {True: 0.0, False: 0.0}
    for writes, element, dims, unit in near:
        moved = element * prod(max(1, sizes[d]) for d in dims) / points
        strided = lane in dims and lane != unit and sizes[lane or ""] > 1
        rate = card.transpose_rate / card.clock_ghz if strided else _port(card)
        port[writes] += moved / rate
    return Lanes(lane, max(passes, 1), rest, max(port.values()))


def _port(card: CardSpec) -> float:
    return card.lx_bytes_per_cycle * card.corelets


def _neighbours(
    kernel: Kernel, op: Op, default: str | None, sizes: Mapping[str, int]
) -> Iterator[tuple[bool, int, frozenset[str], str | None]]:
    """(is the store, bytes of an element, dims walked, the dim whose neighbours are adjacent)."""
    accesses: tuple[Access | Load, ...] = (op.out, *loads(op))
    for access in accesses:
        tensor = kernel.tensors[access.tensor]
        if tensor.role is Role.SCALAR:
            continue
        dims = [d for d in sizes if any(d in e.names for e in access.index)]
        adjacent = unit_dims(kernel, tensor, access.index, op)
        unit = default if default in dims else dims[-1] if dims else None
        if tensor.role is Role.LOCAL and adjacent:
            unit = next(iter(adjacent))
        yield access is op.out, tensor.dtype.bytes, frozenset(dims), unit
