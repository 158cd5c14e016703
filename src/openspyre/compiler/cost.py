"""What a step costs, for choosing between plans: how its ops load, compute and store in turn.

A `Work` is a step's ops with the axes that they walk. `cycles` is the time of one division and its
tile loops: the ops' own costs (`work.py`) put on the timelines of the load unit, of PT and SFU (an
op waits for the one before), of the store unit and of device memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import prod

from openspyre.compiler.axes import largest_part
from openspyre.compiler.bounds import highest
from openspyre.compiler.groups import Group
from openspyre.compiler.work import Moved, OpWork, PhaseCost, Works, memory_share
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Kernel, Part
from openspyre.spec import CardSpec

Split = tuple[int, ...]  # parts of every axis
Tiling = tuple[tuple[int, int], ...]  # loops over axes: (axis, points of a tile), outermost first
Inner = Mapping[str, tuple[tuple[int, int], ...]]  # op -> loops over its own dims, by position
AS_FAST = 1.02  # estimates closer than this are equal
_SMALL = 16  # a result this much smaller than another of its step is
_OWN_TENSORS = 0.5  # of LX, for what a step writes
_LOADS_AHEAD = 0.5  # of the LX that the step's own tensors leave: loads that wait for their op


@dataclass(frozen=True, slots=True)
class Phase:
    """One op of a step.

    Attributes:
        axes: for every dim of the op the axis that walks it, or -1.
        flows: numbers of the op's flows that really go to device memory here, and the axes that
            each depends on.
    """

    op: OpWork
    axes: tuple[int, ...]
    flows: tuple[tuple[int, frozenset[int]], ...]


@dataclass(frozen=True, slots=True)
class Work:
    """One step.

    Attributes:
        extents, granules: of the axes, at the largest sizes.
        point_bytes: LX that the step's own tensors take per point of its axes.
    """

    extents: tuple[int, ...]
    granules: tuple[int, ...]
    phases: tuple[Phase, ...] = ()
    point_bytes: float = 0.0


def cycles(
    work: Work, split: Split, card: CardSpec, loops: Tiling = (), inner: Inner | None = None
) -> float:
    """Time of a step when axis n is shared by split[n] cores and walked in tiles."""
    local = [_largest(e, g, p) for e, g, p in zip(work.extents, work.granules, split, strict=True)]
    tiles = list(local)
    for axis, tile in loops:
        tiles[axis] = min(tile, local[axis])
    outer = [(axis, -(-local[axis] // tiles[axis])) for axis, _ in loops]
    trips = prod(n for _, n in outer)
    free = max(0.0, card.lx_usable - prod(tiles) * work.point_bytes) * _LOADS_AHEAD
    loaded = computed = stored = load = busy = store = server = once = read = written = 0.0
    spans: dict[bool, tuple[float, float]] = {}  # of PT, of SFU: first begin, last end
    ahead: list[tuple[float, float]] = []  # (end of the op, LX bytes of its loads)
    taken = 0.0
    for phase in work.phases:
        cost = _phase(phase, split, tiles, outer, (inner or {}).get(phase.op.name, ()), card)
        while ahead and taken + cost.held > free:
            end, size = ahead.pop(0)
            loaded, taken = max(loaded, end), taken - size
        loaded += cost.load
        # what comes in panels is used from the first one on
        begin = max(computed, loaded - cost.load * (1 - 1 / cost.panels))
        computed = max(begin + cost.busy, loaded + cost.busy / cost.panels)
        if cost.held:
            ahead.append((computed, cost.held))
            taken += cost.held
        if cost.store:
            stored = max(stored, computed) + cost.store
        load, busy, store = load + cost.all_load, busy + cost.all_busy, store + cost.all_store
        server, once = server + cost.server, once + cost.once
        unit = phase.op.matmul is not None
        spans[unit] = (spans.get(unit, (busy - cost.all_busy,))[0], busy)
        read, written = read + cost.read, written + cost.written
    turning = card.dram_turnaround * min(read, written) * card.clock_ghz
    server += turning / memory_share(prod(split), card)
    # With two copies of what ops hand on, a unit begins the next trip when it is done with this
    # one: PT works beside SFU but for where they take turns.
    if trips > 1 and prod(tiles) * work.point_bytes < free:
        busy = max((end - begin for begin, end in spans.values()), default=0.0)
    each = max(load - once, busy, store, server - once)
    serial = max(computed, stored)
    return max(serial + each * (trips - 1) / trips, server) + _fixed(card)


def _phase(
    phase: Phase,
    split: Split,
    tiles: Sequence[int],
    outer: Sequence[tuple[int, int]],
    own: tuple[tuple[int, int], ...],
    card: CardSpec,
) -> PhaseCost:
    sizes = tuple(
        tiles[a] if a >= 0 else n for a, n in zip(phase.axes, phase.op.sizes, strict=True)
    )
    if outer or own:
        return _phase_cost(phase, split, list(sizes), outer, own, card)
    key = (phase.axes, phase.flows, split, sizes)
    if key not in phase.op.phases:
        phase.op.phases[key] = _phase_cost(phase, split, list(sizes), outer, own, card)
    return phase.op.phases[key]


def _phase_cost(
    phase: Phase,
    split: Split,
    sizes: list[int],
    outer: Sequence[tuple[int, int]],
    own: tuple[tuple[int, int], ...],
    card: CardSpec,
) -> PhaseCost:
    op = phase.op
    within = []
    for dim, tile in own:
        within.append((dim, -(-sizes[dim] // tile)))
        sizes[dim] = min(sizes[dim], tile)
    found = op.cost(tuple(sizes))
    trips = prod(n for _, n in outer)
    panels = prod(n for _, n in within)
    busy = found.busy * panels
    load = store = held = all_load = all_store = server = once = read = written = 0.0
    for number, axes in phase.flows:
        flow, moved = op.flows[number], found.moved[number]
        depth = max((d for d, (a, _) in enumerate(outer, 1) if a in axes), default=0)
        deep = max((d for d, (x, _) in enumerate(within, 1) if x in flow.dims), default=0)
        if flow.store:
            deep = next((d for d, (x, _) in enumerate(within) if x >= op.parallel), deep)
        if deep:
            depth = len(outer)
        times = prod(n for _, n in within[:deep])
        again = times * prod(n for _, n in outer[:depth])
        of_all, of_unit = _shared(flow.shared and not flow.store, moved, split, axes, card)
        server += of_all * again
        if flow.store:
            written += _bytes(moved, split, axes) * again
            all_store += of_unit * again
            store += of_unit * times
            continue
        read += _bytes(moved, split, axes) * again
        all_load += of_unit * again
        once += of_unit if depth == 0 and trips > 1 else 0.0
        load += of_unit * times
        held += moved.held * min(times, 2)
    return PhaseCost(
        load, busy, store, held, max(panels, 1), all_load, busy * trips, all_store, server, once,
        read, written,
    )  # fmt: skip


def _shared(
    together: bool, moved: Moved, split: Split, axes: frozenset[int], card: CardSpec
) -> tuple[float, float]:
    """Cycles of device memory and of a load unit when cores that need the same bytes share."""
    cores = prod(split)
    fan = prod(p for a, p in enumerate(split) if a not in axes) if together else 1
    slower = max(1.0, (fan / card.multicast_free) ** card.multicast_exponent)
    server = moved.server * slower * (cores / fan) / memory_share(cores, card)
    return server, max(server, moved.core * slower / fan, moved.each)


def _bytes(moved: Moved, split: Split, axes: frozenset[int]) -> float:
    return moved.bytes * prod(p for a, p in enumerate(split) if a in axes)


def _fixed(card: CardSpec) -> float:
    """The first load and the last store of a step overlap with nothing."""
    return 2 * card.dram_latency_ns * card.clock_ghz


@lru_cache(maxsize=4096)
def _largest(extent: int, granule: int, parts: int) -> int:
    return max(1, largest_part(extent, Part("", parts, 1, granule)))


def work_of(group: Group, leaving: Iterable[str], works: Works) -> Work:
    """The work of a group; `leaving` are tensors written in it that must reach device memory."""
    kernel, card = works.kernel, works.card
    numbers = {axis.name: n for n, axis in enumerate(group.axes)}
    extents = tuple(_top(a.extent, kernel) for a in group.axes)
    leaving = set(leaving)
    loaded: set[tuple[str, frozenset[int]]] = set()
    lives: dict[str, tuple[float, int, int]] = {}
    phases = []
    for position, op in enumerate(group.ops):
        work = works.of(op.name)
        bound = group.binding[op.name]
        axes = tuple(numbers[bound[n]] if n in bound else -1 for n in work.names)
        flows = []
        for number, flow in enumerate(work.flows):
            walked = frozenset(axes[d] for d in flow.dims if axes[d] >= 0)
            if flow.store:
                if flow.tensor in leaving:
                    flows.append((number, walked))
            elif flow.tensor not in group.inside and (flow.tensor, walked) not in loaded:
                loaded.add((flow.tensor, walked))
                flows.append((number, walked))
        phases.append(Phase(work, axes, tuple(flows)))
        size = float(work.result_bytes)
        kept, first, _ = lives.get(op.out.tensor, (0.0, position, position))
        lives[op.out.tensor] = (kept + size, first, position)
        for tensor in work.reads & lives.keys():
            lives[tensor] = (*lives[tensor][:2], position)
    points = max(1, prod(extents))
    grains = _granules(phases, extents, card)
    return Work(extents, grains, tuple(phases), _peak(lives.values()) / points)


def _top(expr: Expr, kernel: Kernel) -> int:
    constant = expr.constant
    return max(1, highest(expr, kernel.limits) if constant is None else constant)


def _peak(lives: Collection[tuple[float, int, int]]) -> float:
    """The most bytes live at once, of (bytes, first op, last op)."""
    changes: dict[int, float] = {}
    for size, first, last in lives:
        changes[first] = changes.get(first, 0.0) + size
        changes[last + 1] = changes.get(last + 1, 0.0) - size
    return max(accumulate(changes[at] for at in sorted(changes)), default=0.0)


def _granules(phases: Sequence[Phase], extents: Sequence[int], card: CardSpec) -> tuple[int, ...]:
    """Points of every axis that should stay on one core: a stick where it walks one."""
    found = [1] * len(extents)
    most = max((p.op.result_bytes for p in phases), default=0)
    for phase in phases:
        op = phase.op
        axis = phase.axes[op.panel] if op.panel >= 0 else -1
        if axis >= 0:
            # whole panels, if there is more to split
            others = prod(extents) // extents[axis]
            wide = op.panel_runs or others * 4 >= card.cores
            wanted = card.elements_per_stick(2) if wide else op.store_granule(op.panel, 2)
            found[axis] = max(found[axis], wanted)
        if op.result_bytes * _SMALL < most:
            continue  # row statistics: their short runs are few
        for dim in op.sticks:
            axis = phase.axes[dim]
            if axis >= 0:
                found[axis] = max(found[axis], op.store_granule(dim, op.element))
    return tuple(found)


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
    """The best balanced of the fastest splits, and its cycles.

    Args:
        most: how many of the best balanced ones to look at.
    """
    candidates = splits(work, card)[:most]
    timed = [_roughly(work, split, card) for split in candidates]
    least = min(timed) * AS_FAST
    number = next(n for n, time in enumerate(timed) if time <= least)
    return timed[number], candidates[number]


def best_splits(work: Work, card: CardSpec, most: int) -> list[tuple[float, Split]]:
    """The `most` fastest splits, tile loops left open, the best balanced first."""
    timed = [(_roughly(work, s, card), n, s) for n, s in enumerate(splits(work, card))]
    chosen = sorted(sorted(timed)[:most], key=lambda x: x[1])
    return [(time, split) for time, _, split in chosen]


def _roughly(work: Work, split: Split, card: CardSpec) -> float:
    """Cycles with no more tile loops than the step's own tensors need to fit LX."""
    local = [_largest(e, g, p) for e, g, p in zip(work.extents, work.granules, split, strict=True)]
    room = card.lx_usable * _OWN_TENSORS
    trips = -(-int(prod(local) * work.point_bytes) // int(room))
    loops: list[tuple[int, int]] = []
    for axis, points in enumerate(local):
        if trips > 1 and points > 1:
            tile = max(1, points // trips)
            loops.append((axis, tile))
            trips = -(-trips * tile // points)
    return cycles(work, split, card, tuple(loops))
