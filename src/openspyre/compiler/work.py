"""What one op does for a rectangle of its points: cycles of PT and SFU, and copies.

The rates and mechanisms are card.md's. It is an estimate for choosing between plans; the card's own
clock counts what a Program really does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from openspyre.compiler.addressing import address, lane_dim, unit_dims
from openspyre.compiler.bounds import highest
from openspyre.compiler.contraction import Contraction, contraction
from openspyre.compiler.lanes import Lanes, lanes_of
from openspyre.compiler.rewrite import reads
from openspyre.ir.index import Expr
from openspyre.ir.kernel import (
    Access,
    Call,
    Division,
    DType,
    Kernel,
    Kind,
    Load,
    Lookup,
    Op,
    Role,
    loads,
    walk,
)
from openspyre.spec import CardSpec

Counts = tuple[int, ...]  # points along every dim of an op
_APART = 1 << 50  # bytes between rows that an index from memory picks


@dataclass(frozen=True, slots=True)
class Flow:
    """What an op moves between device memory and LX, unless it finds it in LX.

    Attributes:
        dims: positions (among the op's dims) of those it depends on, as they lie in LX.
        origin: the element of the tensor where it begins.
        pitches: bytes from one point to the next in device memory, for each of `dims`.
        shared: cores that need the same bytes can share one request.
        role: "a" or "b" for operands of PT.
        widened: bytes of an element after it is widened in LX for PT, 0 if it is not.
    """

    tensor: str
    origin: Expr
    element: int
    dims: tuple[int, ...]
    pitches: tuple[int, ...]
    shared: bool
    store: bool
    role: str
    widened: int = 0

    @property
    def lx_bytes(self) -> int:
        """What an element takes in LX."""
        return self.element + self.widened

    def bytes(self, counts: Counts) -> int:
        """Of a rectangle of the op's points, in LX."""
        return self.element * prod(counts[d] for d in self.dims)

    def run(self, counts: Counts) -> int:
        """Bytes of it that lie side by side where they come from, and in LX unless it is turned."""
        span = self.element
        here = [dim for dim in reversed(self.dims) if counts[dim] > 1]
        there = sorted(
            (p, d) for p, d in zip(self.pitches, self.dims, strict=True) if counts[d] > 1
        )
        turned = bool(here) and here[0] != there[0][1]
        for dim, (pitch, source) in zip(here, there, strict=True):
            if pitch != span or (dim != source and not turned):
                break
            span *= counts[source]
        return span


@dataclass(frozen=True, slots=True)
class Moved:
    """One copy: cycles of device memory, of one core's share of it, and of LX; bytes; LX bytes."""

    server: float
    core: float
    each: float
    bytes: float
    held: int


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """Cycles of one op of a step on its fullest core.

    Attributes:
        load, busy, store: of the first trip.
        held: LX bytes of its loads.
        panels: in how many parts the operands come.
        all_load, all_busy, all_store, server: over all trips; `server` of device memory, for all
            cores.
        once: the part of `all_load` that stands before the loops.
        read, written: bytes, of all cores and trips.
        reread: the part of `all_load` that changes with the tile and is for later ops too.
        ring, all_ring: of moves between the LX of cores, in the first trip and over all.
    """

    load: float
    busy: float
    store: float
    held: float
    panels: int
    all_load: float
    all_busy: float
    all_store: float
    server: float
    once: float
    read: float
    written: float
    reread: float
    ring: float
    all_ring: float


@dataclass(frozen=True, slots=True)
class Matmul:
    """Positions of the dims of a contraction."""

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """A rectangle of an op: PT or SFU cycles, and a copy per flow."""

    busy: float
    moved: tuple[Moved, ...]


class OpWork:
    """The work of one op; costs of rectangles are remembered.

    Attributes:
        names, sizes: of the dims, parallel ones first, at the largest sizes.
        sticks: dims whose neighbours are neighbours in the result.
        panel: the dim that fills sticks of a right operand of PT, or -1; `panel_runs`: it does so
            in device memory as well.
        flows: in the op's order of reading, the store last.
    """

    def __init__(self, op: Op, kernel: Kernel, card: CardSpec) -> None:
        self.op, self.card, self.name, self.out = op, card, op.name, op.out.tensor
        dims = (*op.dims, *op.rdims)
        self.names = tuple(d.name for d in dims)
        self.places = {name: n for n, name in enumerate(self.names)}
        self.sizes = tuple(max(1, highest(d.extent, kernel.limits)) for d in dims)
        self.parallel = len(op.dims)
        self.element = kernel.tensors[op.out.tensor].dtype.bytes
        self.result_bytes = self.element * prod(self.sizes[: self.parallel])
        self.reads = frozenset(t for t, _ in reads(op))
        self.sticks = tuple(self.places[d] for d in _stick_dims(op, kernel))
        self.panel, self.panel_runs = -1, False
        self.matmul: Matmul | None = None
        self.lanes: Lanes | None = None
        self.rate = 0.0
        self.computed = 0  # ops per element of an operand of PT
        self.stick = 1
        self.flows: tuple[Flow, ...] = tuple(self._flows(kernel))
        self._known: dict[Counts, Cost] = {}
        self.phases: dict[object, dict[object, PhaseCost]] = {}  # see `cost.Phase`

    def store_granule(self, dim: int, element: int) -> int:
        """Whole sticks of a dim, or the part of one that gives more cores work.

        Not less than a quarter, unless the points reduced for one result are as much to read as
        what a store of less touches in vain.
        """
        stick = self.card.elements_per_stick(element)
        top = self.sizes[dim]
        if prod(self.sizes[self.parallel :]) >= stick:
            return min(stick, -(-top // self.card.cores))
        each = max(1, top // self.card.cores)
        return min(stick, max(stick // 4, 1 << (each.bit_length() - 1)))

    def cost(self, counts: Counts) -> Cost:
        """What a rectangle with so many points along every dim costs."""
        found = self._known.get(counts)
        if found is None:
            moved = tuple(self._moved(flow, counts) for flow in self.flows)
            found = self._known[counts] = Cost(self._busy(counts), moved)
        return found

    # --- flows ------------------------------------------------------------------------------

    def _flows(self, kernel: Kernel) -> list[Flow]:
        op = self.op
        found = []
        if op.kind is Kind.CONTRACT:
            parts = contraction(kernel, op)
            found = [self._flow(kernel, x, list(self.names), None, "") for x in op.lookups]
            found += self._operands(kernel, parts)
            order = [*parts.batch, *parts.m, *parts.n]
        else:
            self.lanes = lanes_of(kernel, op, self.card)
            lane = lane_dim(kernel, op)
            for lookup in op.lookups:
                found.append(self._flow(kernel, lookup, list(self.names), lane, ""))
            for load in loads(op):
                if self._is_loaded(kernel, load):
                    found.append(self._flow(kernel, load, list(self.names), lane, ""))
            order = [*(d.name for d in op.dims)]
            order.sort(key=lambda d: d == lane)
            if op.kind is Kind.SCAN:
                order += [d.name for d in op.rdims]
        return [*found, self._flow(kernel, op.out, order, None, "")]

    def _operands(self, kernel: Kernel, parts: Contraction) -> list[Flow]:
        def at(dims: Sequence[str]) -> tuple[int, ...]:
            return tuple(self.places[d] for d in dims)

        self.matmul = Matmul(at(parts.batch), at(parts.m), at(parts.n), at(parts.k))
        if parts.n:
            tensor = kernel.tensors[parts.b.tensor]
            runs = unit_dims(kernel, tensor, parts.b.index, self.op)
            self.panel = self.places[parts.n[-1]]
            self.panel_runs = tensor.role is not Role.LOCAL and bool(runs & set(parts.n))
        self.rate = self.card.mac_per_core_cycle * self.card.pt_sustain
        dtype = parts.dtypes(kernel)[0]
        if dtype is DType.F32:
            self.rate *= self.card.pt_f32_rate
        elif dtype.is_fp8:
            self.rate *= self.card.pt_fp8_rate
        self.stick = self.card.elements_per_stick(min(dtype.bytes, 2))
        left = [*parts.batch, *parts.m, *parts.k]
        right = [*parts.batch, *parts.k, *parts.n]
        flows = []
        for load, order, role, taken in zip(
            (parts.a, parts.b), (left, right), "ab", parts.dtypes(kernel), strict=True
        ):
            flow = self._flow(kernel, load, order, None, role)
            if not parts.computed(kernel, load):
                flows.append(flow)
                continue
            self.computed += sum(isinstance(n, Call) for n in walk(parts.value(load)))
            flows.append(replace(flow, widened=taken.bytes))
            beside = [x for x in parts.beside(load) if self._is_loaded(kernel, x)]
            flows += [self._flow(kernel, x, list(self.names), None, "") for x in beside]
        return flows

    def _is_loaded(self, kernel: Kernel, load: Load) -> bool:
        return kernel.tensors[load.tensor].role is not Role.SCALAR

    def _flow(
        self,
        kernel: Kernel,
        access: Load | Lookup | Access,
        order: list[str],
        lane: str | None,
        role: str,
    ) -> Flow:
        op = self.op
        tensor = kernel.tensors[access.tensor]
        element = tensor.dtype.bytes
        looked = [x for x in op.lookups if any(x.name in e.names for e in access.index)]
        at = address(kernel, tensor, access.index, op.dims + op.rdims, looked)
        pitches = {d: abs(_size(c, kernel)) * element for d, c in at.terms}
        for lookup in looked:
            pitches |= {n: _APART for e in lookup.index for n in e.names if n in self.places}
        dims = sorted((d for d in order if d in pitches), key=lambda d: d == lane)
        return Flow(
            access.tensor,
            at.offset,
            element,
            tuple(self.places[d] for d in dims),
            tuple(pitches[d] for d in dims),
            not looked,
            access is op.out,
            role,
        )

    # --- costs ------------------------------------------------------------------------------

    def _busy(self, counts: Counts) -> float:
        card, parts = self.card, self.matmul
        if self.lanes:
            place = self.places.get(self.lanes.dim or "")
            extent = 1 if place is None else counts[place]
            return self.lanes.cycles(prod(counts), extent, card)
        if parts is None:
            return 0.0
        rows = prod(counts[d] for d in parts.m)
        passes = max(1.0, rows / card.pt_rows_per_pass)
        steady = 1 - card.pt_weight_passes / (card.pt_sustain_rows / card.pt_rows_per_pass)
        streamed = (passes * steady + card.pt_weight_passes) * card.pt_rows_per_pass
        columns = prod(counts[d] for d in parts.batch)
        columns *= _padded([counts[d] for d in parts.n], self.stick)
        columns *= _padded([counts[d] for d in parts.k], self.stick)
        widened = sum(prod(counts[d] for d in f.dims) for f in self.flows if f.widened)
        widened *= max(1, self.computed)
        return max(columns * streamed / self.rate, widened / (card.sfu_lanes * card.corelets))

    def _moved(self, flow: Flow, counts: Counts) -> Moved:
        card = self.card
        stick = card.stick_bytes
        walked = [(p, counts[d]) for d, p in zip(flow.dims, flow.pitches, strict=True)]
        walked = [(p, n) for p, n in walked if n > 1]
        span, runs, growing = flow.element, 1, True
        for pitch, count in sorted(walked):
            if growing and pitch - span < stick:
                span = max(span, pitch * (count - 1) + span)
            else:
                growing = False
                runs *= count
        span = -(-span // stick) * stick
        full, rest = divmod(span, card.dram_burst)
        request = full * max(card.dram_burst / card.dram_oneway, card.dram_request_ns)
        if rest:
            request += max(rest / card.dram_oneway, card.dram_request_ns)
        points = prod(n for _, n in walked)
        rate = card.lx_bytes_per_cycle * card.corelets / card.clock_ghz
        turned = bool(walked) and walked[-1][0] != min(walked)[0]
        if turned:
            rate = card.transpose_rate
        clock = card.clock_ghz
        return Moved(
            runs * request * clock,
            runs * span / card.dram_per_core * clock,
            points * flow.element / rate * clock,
            float(runs * span),
            points * flow.element,
        )


def memory_share(cores: int, card: CardSpec) -> float:
    """The part of device memory's rate that work divided over so many cores can draw."""
    many = max(card.dram_few_cores, card.dram_partitioned_per_core * cores)
    return min(1.0, min(card.dram_per_core * cores, many) / card.dram_oneway)


def _stick_dims(op: Op, kernel: Kernel) -> list[str]:
    tensor = kernel.tensors[op.out.tensor]
    if tensor.name in kernel.layouts:
        order = kernel.layouts[tensor.name].order
    else:
        unit = [i for i, s in enumerate(tensor.strides) if s.constant == 1]
        order = tuple([i for i in unit if tensor.shape[i].constant != 1] or unit)
    if not order:
        return []
    names = op.out.index[order[-1]].names
    return [d.name for d in op.dims[-1:] if d.name in names]  # others are turned in any case


def _padded(counts: Sequence[int], lanes: int) -> int:
    if not counts:
        return lanes
    return prod(counts[:-1]) * ceil(counts[-1] / lanes) * lanes


def _size(expr: Expr, kernel: Kernel) -> int:
    constant = expr.constant
    return highest(expr, kernel.limits) if constant is None else constant


class Works:
    """The work of the ops of a kernel by name.

    Attributes:
        times, divisions: what `choices.Choices` knows of steps of these ops.
    """

    def __init__(self, kernel: Kernel, card: CardSpec) -> None:
        self.kernel, self.card = kernel, card
        self.times: dict[object, float] = {}
        self.divisions: dict[object, Sequence[Division]] = {}
        self._known: dict[str, OpWork] = {}

    def of(self, op: str) -> OpWork:
        if op not in self._known:
            self._known[op] = OpWork(self.kernel.by_name[op], self.kernel, self.card)
        return self._known[op]


def works_of(kernel: Kernel, card: CardSpec, known: Works | None) -> Works:
    """The work of a kernel's ops: what is known, unless a stage has changed them since."""
    return known if known and known.kernel.ops is kernel.ops else Works(kernel, card)
