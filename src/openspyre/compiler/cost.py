"""What a step costs, by card.md's rates: PT, SFU and device memory side by side.

A `Work` says what a step does in all, with the axes that each part of it depends on; `cycles` is
its time for one split. It is an estimate for choosing between plans; the card's own clock counts
what a Program really does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import ceil, prod

from openspyre.compiler.axes import largest_part
from openspyre.compiler.bounds import highest
from openspyre.compiler.contraction import contraction
from openspyre.compiler.groups import Group
from openspyre.compiler.rewrite import reads
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Call, DType, Kernel, Kind, Op, Part, Role, walk
from openspyre.ir.ops import TABLE, Cost
from openspyre.spec import CardSpec

Axes = frozenset[int]
Split = tuple[int, ...]  # parts of every axis


@dataclass(frozen=True, slots=True)
class Matmul:
    """PT cycles of all points at full rate; rows of one pass, and the axes that divide them."""

    cycles: float
    rows: int
    row_axes: Axes


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes between device memory and the cores, and the axes that the access depends on."""

    bytes: float
    axes: Axes
    store: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """One step.

    Attributes:
        extents, granules: of the axes, at the largest sizes.
        point_bytes: LX that the step's own tensors take per point of its axes.
    """

    extents: tuple[int, ...]
    granules: tuple[int, ...]
    sfu_cycles: float
    matmuls: tuple[Matmul, ...]
    traffic: tuple[Traffic, ...]
    point_bytes: float


def cycles(work: Work, split: Split, card: CardSpec) -> float:
    """Time of a step when axis n is shared by split[n] cores."""
    local = [_largest(e, g, p) for e, g, p in zip(work.extents, work.granules, split, strict=True)]
    share = [part / max(e, 1) for part, e in zip(local, work.extents, strict=True)]
    own = prod(share)
    busy = work.sfu_cycles * own
    for matmul in work.matmuls:
        rows = matmul.rows * prod(local[a] for a in matmul.row_axes)
        filled = min(1.0, (rows / card.pt_fill_rows) ** card.pt_fill_exponent)
        busy += matmul.cycles * own / filled
    return max(busy, _memory_cycles(work, split, share, local, card)) + _fixed(card)


def _memory_cycles(
    work: Work, split: Split, share: Sequence[float], local: Sequence[int], card: CardSpec
) -> float:
    room = card.lx_usable * 0.5
    trips = max(1, ceil(prod(local) * work.point_bytes / room))
    read = written = port = 0.0
    for flow in work.traffic:
        whole = all(a in flow.axes for a, p in enumerate(local) if p > 1)
        again = 1 if whole else trips
        fan = prod(p for a, p in enumerate(split) if a not in flow.axes)
        slower = max(1.0, (fan / card.multicast_free) ** card.multicast_exponent)
        port += flow.bytes * prod(share[a] for a in flow.axes) * again
        if flow.store:
            written += flow.bytes
        else:
            read += flow.bytes * again * slower
    cores = prod(split)
    rate = min(card.dram_oneway, card.dram_partitioned_per_core * cores)
    ns = (read + written) / rate + card.dram_turnaround * min(read, written)
    return max(ns * card.clock_ghz, port / (card.lx_bytes_per_cycle * card.corelets))


def _fixed(card: CardSpec) -> float:
    """The first load and the last store of a step overlap with nothing."""
    return 2 * card.dram_latency_ns * card.clock_ghz


@lru_cache(maxsize=4096)
def _largest(extent: int, granule: int, parts: int) -> int:
    return max(1, largest_part(extent, Part("", parts, 1, granule)))


def work_of(group: Group, kernel: Kernel, leaving: Iterable[str], card: CardSpec) -> Work:
    """The work of a group; `leaving` are tensors written in it that must reach device memory."""
    top = _Sizes(kernel)
    numbers = {axis.name: n for n, axis in enumerate(group.axes)}
    extents = tuple(top.of(a.extent) for a in group.axes)
    sfu, matmuls = 0.0, list[Matmul]()
    flows: dict[tuple[str, Axes], float] = {}
    leaving = set(leaving)
    stores: dict[str, Traffic] = {}
    lives: dict[str, tuple[float, int, int]] = {}
    for position, op in enumerate(group.ops):
        bound = {d: numbers[a] for d, a in group.binding[op.name].items()}
        sizes = {d.name: top.of(d.extent) for d in (*op.dims, *op.rdims)}
        if op.kind is Kind.CONTRACT:
            matmuls.append(_matmul(op, bound, sizes, kernel, card))
        else:
            sfu += _sfu_cycles(op, sizes, card)
        for tensor, index in _device_reads(op, group, kernel):
            names = frozenset().union(*(e.names for e in index)) & sizes.keys()
            size = kernel.tensors[tensor].dtype.bytes * prod(sizes[n] for n in names)
            axes = frozenset(bound[n] for n in names if n in bound)
            flows[tensor, axes] = max(flows.get((tensor, axes), 0.0), size)
        target = kernel.tensors[op.out.tensor]
        size = target.dtype.bytes * prod(sizes[d.name] for d in op.dims)
        if op.out.tensor in leaving:
            before = stores.get(op.out.tensor)
            total = size + (before.bytes if before else 0)
            stores[op.out.tensor] = Traffic(total, frozenset(bound.values()), store=True)
        kept, first, _ = lives.get(op.out.tensor, (0.0, position, position))
        lives[op.out.tensor] = (kept + size, first, position)
        for tensor in {t for t, _ in reads(op)} & lives.keys():
            lives[tensor] = (*lives[tensor][:2], position)
    points = max(1, prod(extents))
    traffic = [Traffic(size, axes) for (_, axes), size in flows.items()]
    return Work(
        extents, granules(group, kernel, card), sfu, tuple(matmuls),
        (*traffic, *stores.values()), _peak(lives.values()) / points,
    )  # fmt: skip


def _peak(lives: Collection[tuple[float, int, int]]) -> float:
    """The most bytes live at once, of (bytes, first op, last op)."""
    changes: dict[int, float] = {}
    for size, first, last in lives:
        changes[first] = changes.get(first, 0.0) + size
        changes[last + 1] = changes.get(last + 1, 0.0) - size
    return max(accumulate(changes[at] for at in sorted(changes)), default=0.0)


class _Sizes:
    def __init__(self, kernel: Kernel) -> None:
        self._limits = kernel.limits

    def of(self, expr: Expr) -> int:
        constant = expr.constant
        return max(1, highest(expr, self._limits) if constant is None else constant)


def _device_reads(op: Op, group: Group, kernel: Kernel) -> Iterable[tuple[str, tuple[Expr, ...]]]:
    for tensor, index in dict.fromkeys(reads(op)):
        if tensor not in group.inside and kernel.tensors[tensor].role is not Role.SCALAR:
            yield tensor, index


def _matmul(
    op: Op, bound: Mapping[str, int], sizes: Mapping[str, int], kernel: Kernel, card: CardSpec
) -> Matmul:
    parts = contraction(kernel, op)
    a, m = parts.a, parts.m
    rate = card.mac_per_core_cycle * card.pt_sustain
    if kernel.tensors[a.tensor].dtype is DType.F32:
        rate *= card.pt_f32_rate
    rows = prod(sizes[d] for d in m if d not in bound)
    return Matmul(prod(sizes.values()) / rate, rows, frozenset(bound[d] for d in m if d in bound))


def _sfu_cycles(op: Op, sizes: Mapping[str, int], card: CardSpec) -> float:
    simple = hard = 0
    for node in dict.fromkeys(walk(op.body)):
        if isinstance(node, Call):
            if TABLE[node.op].cost is Cost.TRANSCENDENTAL:
                hard += 1
            else:
                simple += 1
    per_point = (simple + 1) / (card.sfu_lanes * card.corelets)
    per_point += hard * card.clock_ghz / card.sfu_transcendental_rate
    if op.reduce is not None or op.kind is Kind.SCAN:
        per_point += card.clock_ghz / card.sfu_reduce_rate
    return prod(sizes.values()) * per_point


def granules(group: Group, kernel: Kernel, card: CardSpec) -> tuple[int, ...]:
    """Points of every axis that should stay on one core: a stick where it walks one."""
    found = {a.name: 1 for a in group.axes}
    axes = {a.name: a.extent for a in group.axes}
    for op in group.ops:
        bound = group.binding[op.name]
        if op.kind is Kind.CONTRACT:
            for dim in contraction(kernel, op).n[-1:]:
                if dim in bound:
                    panel = _panel_granule(bound[dim], axes, kernel, card)
                    found[bound[dim]] = max(found[bound[dim]], panel)
        position = _stick_position(op.out.tensor, kernel)
        if position is None:
            continue
        element = kernel.tensors[op.out.tensor].dtype.bytes
        lanes = {d.name for d in op.dims[-1:]}  # a transposing store has no whole sticks anyway
        for dim in op.out.index[position].names & bound.keys() & lanes:
            wanted = _store_granule(element, axes[bound[dim]], kernel, card)
            found[bound[dim]] = max(found[bound[dim]], wanted)
    return tuple(found[a.name] for a in group.axes)


def _panel_granule(axis: str, axes: Mapping[str, Expr], kernel: Kernel, card: CardSpec) -> int:
    """Columns of a matmul that stay together: whole panels, if there is more to split."""
    others = prod(max(1, highest(e, kernel.limits)) for a, e in axes.items() if a != axis)
    if others * 4 < card.cores:
        return _store_granule(2, axes[axis], kernel, card)
    return card.elements_per_stick(2)


def _store_granule(element: int, extent: Expr, kernel: Kernel, card: CardSpec) -> int:
    """Whole sticks, or the part of one (not less than a quarter) that gives more cores work."""
    stick = card.elements_per_stick(element)
    each = max(1, highest(extent, kernel.limits) // card.cores)
    return min(stick, max(stick // 4, 1 << (each.bit_length() - 1)))


def _stick_position(name: str, kernel: Kernel) -> int | None:
    tensor = kernel.tensors[name]
    if name in kernel.layouts:
        order = kernel.layouts[name].order
        return order[-1] if order else None
    unit = [i for i, s in enumerate(tensor.strides) if s.constant == 1]
    unit = [i for i in unit if tensor.shape[i].constant != 1] or unit
    return unit[-1] if unit else None


def splits(work: Work, card: CardSpec) -> tuple[Split, ...]:
    """Every split worth looking at, the best balanced first."""
    return _splits(work.extents, work.granules, card.cores)


@lru_cache(maxsize=2048)
def _splits(extents: tuple[int, ...], grains: tuple[int, ...], cores: int) -> tuple[Split, ...]:
    found: list[Split] = [()]
    for extent, granule in zip(extents, grains, strict=True):
        parts = _useful_parts(max(1, -(-extent // granule)), cores)
        found = [(*s, p) for s in found for p in parts if prod(s) * p <= cores]
    shares = {
        s: prod(_largest(e, g, p) for e, g, p in zip(extents, grains, s, strict=True))
        for s in found
    }
    return tuple(sorted(found, key=lambda s: (shares[s], prod(s), *(-p for p in s))))


def _useful_parts(grains: int, cores: int) -> list[int]:
    """Part counts that change the largest part: the smallest for each."""
    best: dict[int, int] = {}
    for parts in range(1, min(grains, cores) + 1):
        best.setdefault(-(-grains // parts), parts)
    return sorted(best.values())


def best_split(work: Work, card: CardSpec, most: int | None = None) -> tuple[float, Split]:
    """The fastest split (of the `most` best balanced ones) and its cycles."""
    candidates = splits(work, card)[:most]
    timed = ((cycles(work, split, card), number) for number, split in enumerate(candidates))
    time, number = min(timed)
    return time, candidates[number]
