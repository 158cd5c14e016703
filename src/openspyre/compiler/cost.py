"""What a step costs, for choosing between plans: how its ops load, compute and store in turn.

A `Work` is a step's ops with the axes that they walk. `cycles` is the time of one division and its
tile loops: the ops' own costs (`work.py`) put on the timelines of the load unit, of PT and SFU (an
op waits for the one before), of the store unit and of device memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

from openspyre.compiler.axes import largest_part
from openspyre.compiler.resident import kept_whole
from openspyre.compiler.ring_moves import Move, exchange_cycles
from openspyre.compiler.tiles import Buffering
from openspyre.compiler.work import Flow, Moved, OpWork, PhaseCost, memory_share
from openspyre.ir.kernel import Part
from openspyre.spec import CardSpec

Split = tuple[int, ...]  # parts of every axis
Tiling = tuple[tuple[int, int], ...]  # loops over axes: (axis, points of a tile), outermost first
Inner = Mapping[str, tuple[tuple[int, int], ...]]  # op -> loops over its own dims, by position
AS_FAST = 1.02  # estimates closer than this are equal
_OWN_TENSORS = 0.5  # of LX, for what a step writes
_ROUNDED = 1 + 1e-9  # sums of the same numbers in another order
_LOADS_AHEAD = 0.5  # of the LX that the step's own tensors leave: loads that wait for their op


@dataclass(frozen=True, slots=True)
class Phase:
    """One op of a step.

    Attributes:
        axes: for every dim of the op the axis that walks it, or -1.
        flows: numbers of the op's flows that really go to device memory here, and the axes that
            each depends on.
        fetched: numbers of those that come from the LX of other cores instead, the axes that each
            depends on, and the most bytes that lie side by side there.
        beside: numbers of those of tensors that an earlier op loads along the same axes, perhaps
            other parts of them.
        costs: what is known of the op's costs with these axes and flows.
    """

    op: OpWork
    axes: tuple[int, ...]
    flows: tuple[tuple[int, frozenset[int]], ...]
    fetched: tuple[tuple[int, frozenset[int], int], ...] = ()
    beside: tuple[tuple[int, frozenset[int]], ...] = ()
    costs: dict[object, PhaseCost] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        known = self.op.phases.setdefault((self.axes, self.flows, self.fetched), {})
        object.__setattr__(self, "costs", known)


@dataclass(frozen=True, slots=True)
class Work:
    """One step.

    Attributes:
        extents, granules: of the axes, at the largest sizes.
        point_bytes: LX that the step's own tensors take per point of its axes.
        reread: tensors from device memory that several ops read, each loaded by the first.
    """

    extents: tuple[int, ...]
    granules: tuple[int, ...]
    phases: tuple[Phase, ...] = ()
    point_bytes: float = 0.0
    reread: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Loads:
    """Cycles of LOAD and of device memory, and bytes; cycles of RING."""

    unit: float = 0.0
    server: float = 0.0
    read: float = 0.0
    ring: float = 0.0

    def __add__(self, other: Loads) -> Loads:
        return Loads(
            self.unit + other.unit,
            self.server + other.server,
            self.read + other.read,
            self.ring + other.ring,
        )

    def __sub__(self, other: Loads) -> Loads:
        return Loads(
            self.unit - other.unit,
            self.server - other.server,
            self.read - other.read,
            self.ring - other.ring,
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """A step on its own: its time, when LOAD is done with it, its work for device memory.

    Attributes:
        begin: when its first op can begin.
        server, read, written: cycles without those of turning between reads and writes; bytes.
        latency: of a load.
        turning: cycles a byte.
        fetched: when RING is done with it.
    """

    time: float
    begin: float
    done: float
    server: float
    read: float
    written: float
    latency: float
    turning: float
    fetched: float = 0.0

    def cycles_with(self, more: Loads) -> float:
        """Time of the step if loads and moves for later steps stand behind all of its own."""
        time = max(self.time, self.fetched + more.ring) if more.ring else self.time
        if not more.server:
            return time
        server = self.server + more.server
        server += self.turning * min(self.read + more.read, self.written)
        return max(time, max(self.done + more.unit, server) + self.latency)


class Timeline:
    """The ops of a step, put one after the other on the units of its fullest core.

    Args:
        split, loops: how many cores share every axis, and its tile loops.
        buffering: which copies run beside the work on the tile before.
    """

    def __init__(
        self, work: Work, split: Split, card: CardSpec, loops: Tiling = (),
        buffering: Buffering = Buffering.COPIES,
    ) -> None:  # fmt: skip
        self.split, self.loops, self.card, self.buffering = split, loops, card, buffering
        self.axes = work.extents, work.granules
        local = local_sizes(work, split)
        self.tiles = list(local)
        for axis, tile in loops:
            self.tiles[axis] = min(tile, local[axis])
        self.outer = tuple([(axis, -(-local[axis] // self.tiles[axis])) for axis, _ in loops])
        self.own = prod(self.tiles) * work.point_bytes
        self.free = self._free(self.own)
        self.phases = 0
        self.begin = 0.0
        self.loaded = self.computed = self.stored = self.load = self.busy = self.store = 0.0
        self.fetched = self.ring = 0.0
        self.server = self.once = self.read = self.written = 0.0
        # When a tensor is made: without loads, over all trips; in the first trip with them. Of PT
        # and of SFU when the first op begins and the last one ends, and when it does in that trip.
        self.made: dict[str, tuple[float, float]] = {}
        self.units: dict[bool, tuple[float, float, float]] = {}
        self.ahead: deque[tuple[float, float]] = deque()  # (end of the op, LX bytes of its loads)
        self.taken = 0.0
        self.most = 0.0  # LX bytes of loads that were ahead at one time
        self.waited = False  # a load waited for room
        self.idle = 0.0  # of the load unit, for want of room
        self.behind = 0.0  # of PT and SFU in a trip, for first panels that had to wait for room
        self.first: PhaseCost | None = None  # of the first op, if loads are not a trip ahead
        # Where copies take turns with the work: of the longest op in one trip, and of tensors that
        # wait for the last op that reads them.
        self.alone = self.between = 0.0
        self.tail = 0.0  # of PT and SFU in a trip, once everything is loaded
        self.reread = work.reread

    def continues(self, work: Work, loops: Tiling, kept: int) -> bool:
        """Whether `work`, the first `kept` ops of which are as before, only adds to this one."""
        if self.phases > kept or loops != self.loops:
            return False
        if self.axes != (work.extents, work.granules):
            return False
        own = prod(self.tiles) * work.point_bytes
        if own != self.own and (self.waited or self.most > self._free(own)):
            return False
        self.own, self.free = own, self._free(own)
        return True

    def copied(self) -> Timeline:
        """One to go on from here with, while this one stays."""
        new = Timeline.__new__(Timeline)
        vars(new).update(vars(self))
        new.made, new.units, new.ahead = dict(self.made), dict(self.units), deque(self.ahead)
        return new

    def _free(self, own: float) -> float:
        left = max(0.0, self.card.lx_usable - own)
        return left * _LOADS_AHEAD if self.buffering is Buffering.COPIES else left

    def cost(self, phase: Phase, own: Sequence[tuple[int, int]] = ()) -> PhaseCost:
        """What an op costs by itself, however copies are buffered; `own` are its own loops."""
        return _phase(phase, self.split, self.tiles, self.outer, tuple(own), self.card, self.reread)

    def add(
        self, phase: Phase, own: Sequence[tuple[int, int]] = (), cost: PhaseCost | None = None
    ) -> None:
        """The next op, with its cost if that is known.

        No call of `max`: this is what planning does most.
        """
        cost = cost or self.cost(phase, own)
        busy, held = cost.busy, cost.held
        self.phases += 1
        late = self.taken + held > self.free and self._make_room(held)
        if self.taken + held > self.most:
            self.most = self.taken + held
        loaded = self.loaded = self.loaded + cost.load
        fetched = self.fetched = self.fetched + cost.ring
        single = self.buffering is Buffering.NONE or (self.buffering is Buffering.INNER and not own)
        if self.phases == 1 and (own or single):
            self.first = cost
        if single:
            copied = cost.load - cost.once + cost.ring
            self.alone = max(self.alone, copied + busy + cost.store)
            self.between += cost.reread
        # what comes in panels is used from the first one on
        panels = 1 if single else cost.panels
        op, unit = phase.op, phase.op.matmul is not None
        first, free, waited = self.units.get(unit, (-1.0, 0.0, 0.0))
        arrived = loaded if loaded > fetched else fetched
        made = arrived
        if panels > 1:
            later = 1 - 1 / panels
            made = max(loaded - cost.load * later, fetched - cost.ring * later)
        if waited > made:
            made = waited
        for tensor in op.reads:
            if found := self.made.get(tensor):
                if found[0] > free:
                    free = found[0]
                if found[1] > made:
                    made = found[1]
        if self.phases == 1:
            self.begin = made
        end = made + busy
        if arrived + busy / panels > end:
            end = arrived + busy / panels
        if late and own:
            self.behind += max(0.0, made - self.computed)
        done = free + cost.all_busy
        before = self.made.get(op.out)  # several may write it
        self.made[op.out] = (max(before[0], done), max(before[1], end)) if before else (done, end)
        self.units[unit] = free if first < 0 else first, done, end
        if done > self.busy:
            self.busy = done
        if end > self.computed:
            self.computed = end
        if held:
            self.ahead.append((end, held))
            self.taken += held
        if cost.store:
            self.stored = max(self.stored, end) + cost.store
        self.tail = busy / cost.panels + (0.0 if cost.load > cost.once else self.tail)
        self.load += cost.all_load
        self.ring += cost.all_ring
        self.store += cost.all_store
        self.server += cost.server
        self.once += cost.once
        self.read += cost.read
        self.written += cost.written

    def _make_room(self, held: float) -> bool:
        """Whether loads had to wait for it."""
        ahead = len(self.ahead)
        while self.ahead and self.taken + held > self.free:
            end, size = self.ahead.popleft()
            self.idle += max(0.0, end - self.loaded)
            self.loaded, self.taken, self.waited = max(self.loaded, end), self.taken - size, True
        return len(self.ahead) < ahead

    def pace(self) -> Pace:
        """How the step goes with loads for later steps."""
        card = self.card
        latency = card.dram_latency_ns * card.clock_ghz
        time = self.cycles() - _fixed(card)
        done = self.loaded if self.load else 0.0
        if self.load > self.once:
            # LOAD is done when what follows the last load of a trip is all that is left.
            done = max(done, time - max(0.0, max(self.computed, self.stored) - self.loaded))
        share = memory_share(prod(self.split), card)
        time += (latency if self.load else 0.0) + (latency if self.store else 0.0)
        turning = card.dram_turnaround * card.clock_ghz / share
        return Pace(time, self.begin, done, self.server, self.read, self.written, latency, turning)

    def cycles(self) -> float:
        """Time of the step."""
        trips = prod(n for _, n in self.outer)
        card, busy = self.card, self.busy
        turning = card.dram_turnaround * min(self.read, self.written) * card.clock_ghz
        server = self.server + turning / memory_share(prod(self.split), card)
        # With two copies of what ops hand on, a unit begins the next trip when it is done with this
        # one: PT works beside SFU but for where they take turns.
        beside = self.buffering is Buffering.COPIES and self.own < self.free
        if trips > 1 and beside:
            busy = max((end - begin for begin, end, _ in self.units.values()), default=0.0)
        busy += self._behind(trips) * trips
        loading = max(self.load, server) - self.once + self.idle * trips
        each = max(loading, self.ring, busy, self.store, self.alone * trips) + self.between
        serial = max(self.computed, self.stored)
        # device memory has nothing to do between the last load and the last store
        pause = max(0.0, self.tail - self.store / trips) if trips > 1 else 0.0
        return max(serial + each * (trips - 1) / trips, server + pause) + _fixed(card)

    def _behind(self, trips: int) -> float:
        """Cycles of a trip in which PT and SFU wait for loads that are not a trip ahead.

        First panels find no room before; and beside the stores of the trip before, which take half
        of device memory until they are done, loads may be slower than their use.
        """
        first = self.first
        if first is None or trips == 1:
            return self.behind
        again = first.load - first.once
        beside = self.store / trips * max(0.0, 2 - first.busy / again) if again else 0.0
        waits = first.panels > 1 and self.taken + first.held > self.free
        return self.behind + beside + (again / first.panels if waits else 0.0)


def cycles(
    work: Work, split: Split, card: CardSpec, loops: Tiling = (), inner: Inner | None = None,
    buffering: Buffering = Buffering.COPIES,
) -> float:  # fmt: skip
    """Time of a step when axis n is shared by split[n] cores and walked in tiles."""
    return cycles_of_each(work, split, card, loops, inner or {}, (buffering,))[0]


def cycles_of_each(
    work: Work, split: Split, card: CardSpec, loops: Tiling, inner: Inner,
    ways: Sequence[Buffering],
) -> list[float]:  # fmt: skip
    """Times of a step in tiles with each way of buffering."""
    lines = [Timeline(work, split, card, loops, buffering) for buffering in ways]
    for phase in work.phases:
        own = inner.get(phase.op.name, ())
        cost = lines[0].cost(phase, own)
        for line in lines:
            line.add(phase, own, cost)
    return [line.cycles() for line in lines]


def least_of_units(work: Work, split: Split, card: CardSpec, loops: Tiling, inner: Inner) -> float:
    """What device memory, PT or SFU alone take for a step in tiles, however copies are buffered:
    no less than any of its `cycles`.
    """
    line = Timeline(work, split, card, loops)
    server, busy = 0.0, [0.0, 0.0]
    for phase in work.phases:
        cost = line.cost(phase, inner.get(phase.op.name, ()))
        server += cost.server
        busy[phase.op.matmul is not None] += cost.all_busy
    return (max(server, *busy) + _fixed(card)) / _ROUNDED


def _phase(
    phase: Phase,
    split: Split,
    tiles: Sequence[int],
    outer: tuple[tuple[int, int], ...],
    own: tuple[tuple[int, int], ...],
    card: CardSpec,
    reread: frozenset[str],
) -> PhaseCost:
    op = phase.op
    sizes = tuple([tiles[a] if a >= 0 else n for a, n in zip(phase.axes, op.sizes, strict=True)])
    again: tuple[bool, ...] = ()
    if outer and reread:
        again = tuple([op.flows[n].tensor in reread for n, _ in phase.flows])
    room = card.lx_usable if own and outer else 0  # decides what is loaded whole
    key = (split, sizes, outer, own, again, room)
    found = phase.costs.get(key)
    if found is None:
        found = phase.costs[key] = _phase_cost(phase, split, list(sizes), outer, own, card, reread)
    return found


def _phase_cost(
    phase: Phase,
    split: Split,
    sizes: list[int],
    outer: Sequence[tuple[int, int]],
    own: tuple[tuple[int, int], ...],
    card: CardSpec,
    reread: frozenset[str],
) -> PhaseCost:
    op, whole = phase.op, tuple(sizes)
    within = []
    for dim, tile in own:
        within.append((dim, -(-sizes[dim] // tile)))
        sizes[dim] = min(sizes[dim], tile)
    found = op.cost(tuple(sizes))
    trips = prod(n for _, n in outer)
    panels = prod(n for _, n in within)
    panel = 0.0
    load = store = reread_load = all_load = all_store = server = once = read = written = 0.0
    summed = any(dim >= op.parallel for dim, _ in own)
    held = 4.0 * prod(sizes[: op.parallel]) if summed else 0.0  # sums that wait for the next trip
    for number, axes in phase.flows:
        flow, moved = op.flows[number], found.moved[number]
        depth = max((d for d, (a, _) in enumerate(outer, 1) if a in axes), default=0)
        deep = max((d for d, (x, _) in enumerate(within, 1) if x in flow.dims), default=0)
        if flow.store:
            deep = next((d for d, (x, _) in enumerate(within) if x >= op.parallel), deep)
        elif deep and stands_before(flow, whole, outer[depth:], card):
            deep, moved = 0, op.cost(whole).moved[number]
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
        panel += of_unit if deep else 0.0
        read += _bytes(moved, split, axes) * again
        all_load += of_unit * again
        once += of_unit if depth == 0 and trips > 1 else 0.0
        reread_load += of_unit * again if depth and not deep and flow.tensor in reread else 0.0
        load += of_unit * times
        held += moved.held * min(times, 2)
    ring = all_ring = 0.0
    for fetched in phase.fetched:
        each, times, again, size = _fetch(phase, fetched, split, whole, sizes, outer, within, card)
        ring += each * times
        all_ring += each * times * again
        held += size * min(times, 2)
    # A panel's load begins when the panel two before it is used up, and arrives late.
    late = (panel + card.dram_latency_ns * card.clock_ghz + found.busy) / 2
    busy = max(found.busy, late if late > panel > 0 else 0.0) * panels
    return PhaseCost(
        load, busy, store, held, max(panels, 1), all_load, busy * trips, all_store, server, once,
        read, written, reread_load, ring, all_ring,
    )  # fmt: skip


def _fetch(
    phase: Phase, fetched: tuple[int, frozenset[int], int], split: Split, whole: Sequence[int],
    sizes: Sequence[int], outer: Sequence[tuple[int, int]], within: Sequence[tuple[int, int]],
    card: CardSpec,
) -> tuple[float, int, int, int]:  # fmt: skip
    """Cycles of a move on the ring, how often in the first trip and over how many, bytes in LX."""
    number, axes, longest = fetched
    flow = phase.op.flows[number]
    depth = max((d for d, (a, _) in enumerate(outer, 1) if a in axes), default=0)
    deep = max((d for d, (x, _) in enumerate(within, 1) if x in flow.dims), default=0)
    counts = tuple(sizes)
    if deep and stands_before(flow, whole, outer[depth:], card):
        deep, counts = 0, tuple(whole)
    apart = prod(p for a, p in enumerate(split) if a in axes)
    last = max((a for a in axes if split[a] > 1), default=0)
    beside = all(p == 1 or a in axes for a, p in enumerate(split[:last]))
    move = Move(flow.bytes(counts), min(longest, flow.run(counts)), apart, prod(split))
    each = max(exchange_cycles(move, card, beside=beside), phase.op.cost(counts).moved[number].each)
    again = prod(n for _, n in outer[: len(outer) if deep else depth])
    return each, prod(n for _, n in within[:deep]), again, move.bytes


def stands_before(
    flow: Flow, sizes: Sequence[int], again: Sequence[tuple[int, int]], card: CardSpec
) -> bool:
    """Whether an operand that an op's own loops walk is loaded whole before other loops.

    Args:
        sizes: points of the op's dims in one trip of the loops that change the operand.
        again: the loops within these: (axis, trips).
    """
    each = flow.lx_bytes * prod(sizes[d] for d in flow.dims)
    return flow.shared and prod(n for _, n in again) > 1 and kept_whole(each, card)


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


def best_splits(
    work: Work, card: CardSpec, most: int, among: Sequence[Split] | None = None
) -> list[tuple[float, Split]]:
    """The `most` fastest splits, tile loops left open, the best balanced first.

    Args:
        among: the splits to choose from, if not from all.
    """
    every = splits(work, card) if among is None else among
    timed = [(roughly(work, split, card), n, split) for n, split in enumerate(every)]
    chosen = sorted(sorted(timed)[:most], key=lambda x: x[1])
    return [(time, split) for time, _, split in chosen]


def roughly(work: Work, split: Split, card: CardSpec) -> float:
    """Time of a step with the fewest tile loops."""
    return cycles(work, split, card, fewest_loops(work, split, card))


def fewest_loops(work: Work, split: Split, card: CardSpec) -> Tiling:
    """No more tile loops than the step's own tensors need to fit LX."""
    local = local_sizes(work, split)
    room = card.lx_usable * _OWN_TENSORS
    trips = -(-int(prod(local) * work.point_bytes) // int(room))
    loops: list[tuple[int, int]] = []
    for axis, points in enumerate(local):
        if trips > 1 and points > 1:
            tile = max(1, points // trips)
            loops.append((axis, tile))
            trips = -(-trips * tile // points)
    return tuple(loops)


def local_sizes(work: Work, split: Split) -> list[int]:
    """The most points of every axis that a core gets."""
    axes = zip(work.extents, work.granules, split, strict=True)
    return [_largest(extent, granule, parts) for extent, granule, parts in axes]
