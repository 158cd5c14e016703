"""Runs a program with names for values: what `meaning.py` compares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from openspyre.ir.interpret import symbol_block
from openspyre.ir.kernel import DType, Kernel, Role, Space, Tensor
from openspyre.ir.program import (
    Axis,
    Bound,
    Copy,
    Holding,
    Node,
    Origin,
    Place,
    Program,
    Pt,
    Ring,
    Section,
    Slot,
    Term,
    TileLoop,
    Value,
    Vec,
    VecOut,
)
from tests.card.byte_sets import NONE, Array, Bytes, Dims, Memory, Piece, box, name_of, points, run
from tests.card.order import (
    LOAD,
    PT,
    RING,
    SFU,
    STORE,
    UNITS,
    Clock,
    NotEqual,
    Order,
    Shared,
    Use,
    join,
)

POOL = -1  # as an argument's number
Layout = tuple[int, Dims, DType]  # of an operand: its first point's place, its axes
_SPACING = 1 << 40  # between the addresses of arguments
State = tuple[list[list[Piece]], dict[int, list[Piece]]]  # of device memory, of each core's LX
BytesByCore = dict[int, Bytes]  # by core


@dataclass
class Uses:
    """Bytes of LX that a section reads before it writes them, and that it writes, by core."""

    read: BytesByCore = field(default_factory=dict)
    written: BytesByCore = field(default_factory=dict)

    def note_read(self, core: int, where: Bytes) -> None:
        new = where.without(self.written.get(core, NONE))
        self.read[core] = self.read.get(core, NONE).joined(new)

    def note_write(self, core: int, where: Bytes) -> None:
        self.written[core] = self.written.get(core, NONE).joined(where)


class Machine:
    def __init__(self, program: Program, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        self.program = program
        tensors = [kernel.tensors[name] for name in kernel.arguments]
        device = [tensor for tensor in tensors if tensor.role is not Role.SCALAR]
        self.addresses = {n: _SPACING * (n + 1) for n in range(len(device))}
        self.addresses[POOL] = _SPACING * (len(device) + 1)
        numbers = [sizes[s] for s in kernel.symbols]
        scalars = [1.0] * program.arguments[2]
        addresses = [self.addresses[n] for n in range(len(device))]
        self.slots = symbol_block(program, addresses, numbers, scalars, self.addresses[POOL])
        self.memories = {POOL: Memory(name_of("pool"), 0, program.pool_bytes)}
        for number, tensor in enumerate(device):
            self.memories[number] = Memory(name_of("argument", number), *_span(tensor, sizes))
        self.left = [n for n, t in enumerate(device) if t.role in (Role.OUTPUT, Role.MUTATED)]
        peak = max((b.offset + b.bytes * b.slots for b in program.buffers), default=0)
        self.lx = {core: Memory(name_of("LX", core), 0, peak) for core in range(cores(program))}
        self.overlap = _Overlaps(program)
        self.uses: Uses | None = None  # of the last section, where somebody asks

    def run(self, numbers: Iterable[int]) -> None:
        """Some sections, one by one."""
        for number in numbers:
            section = self.program.sections[number]
            shared = Shared(section)
            for core in range(cores_of(section)):
                shared.begin_core()
                Core(self, section, core, shared).run()
            shared.end()

    def digest(self) -> bytes:
        left = [self.memories[number] for number in self.left]
        return name_of(*(memory.content(memory.whole, 0) for memory in left))

    def state(self) -> State:
        memories = [memory.pieces for memory in self.memories.values()]
        return memories, {core: memory.pieces for core, memory in self.lx.items()}

    def restore(self, state: State) -> None:
        memories, lx = state
        for memory, pieces in zip(self.memories.values(), memories, strict=True):
            memory.pieces = pieces
        for core, pieces in lx.items():
            low, high = max(piece.where.high for piece in pieces), self.lx[core].high
            beyond = [Piece(run(low, high), self.lx[core].name, 0)] if low < high else []
            self.lx[core].pieces = [*pieces, *beyond]


def _span(tensor: Tensor, sizes: Mapping[str, int]) -> tuple[int, int]:
    """The bytes of a tensor, from its address on."""
    shape = [extent.evaluate(sizes) for extent in tensor.shape]
    strides = [stride.evaluate(sizes) for stride in tensor.strides]
    if min(shape, default=1) <= 0:
        return 0, 0
    reach = [(e - 1) * s for e, s in zip(shape, strides, strict=True)]
    low, high = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + 1
    return low * tensor.dtype.bytes, high * tensor.dtype.bytes


class _Overlaps(dict[int, list[int]]):
    """For every buffer, the others that share bytes of LX with it."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.ends = [(b.offset, b.offset + b.bytes * b.slots) for b in program.buffers]

    def __missing__(self, number: int) -> list[int]:
        low, high = self.ends[number]
        self[number] = [
            n for n, (a, b) in enumerate(self.ends) if n != number and a < high and low < b
        ]
        return self[number]


def cores_of(section: Section) -> int:
    return int(np.prod([axis.parts for axis in section.axes], dtype=int))


def cores(program: Program) -> int:
    return max((cores_of(section) for section in program.sections), default=0)


@dataclass
class _Range:
    low: int
    high: int
    start: int
    end: int

    @property
    def count(self) -> int:
        return max(self.end - self.start, 0)

    def origin(self, origin: Origin) -> int:
        return {Origin.ABSOLUTE: 0, Origin.CORE: self.low, Origin.TILE: self.start}[origin]


class Core:
    """One core in one section."""

    def __init__(self, machine: Machine, section: Section, core: int, shared: Shared) -> None:
        self.machine, self.section, self.core, self.shared = machine, section, core, shared
        self.program, self.slots = machine.program, machine.slots
        self.lx = machine.lx[core]
        self.lx_order = Order()
        self.device_order = {argument: Order() for argument in shared.stored}
        self.ranges = [self.part(axis, core) for axis in section.axes]
        self.trip = 0
        count = len(self.program.buffers)
        self.uses = [[Use(), Use()] for _ in range(count)]
        self.current = [0] * count
        self.last: list[Clock] = [[0] * UNITS for _ in range(UNITS)]
        self.operands: list[tuple[Bytes, object]] = []  # that the instruction has touched

    def run(self) -> None:
        self.body(self.section.body, 0)

    def value(self, value: Value) -> int:
        return self.slots[value.index] if isinstance(value, Slot) else value

    def part(self, axis: Axis | Holding, core: int) -> _Range:
        extent = max(self.value(axis.extent), 0)
        granules = -(-extent // axis.granule)
        p = core // axis.stride % axis.parts
        low, high = (min(q * granules // axis.parts * axis.granule, extent) for q in (p, p + 1))
        return _Range(low, high, low, high)

    def body(self, nodes: Sequence[Node], trip: int) -> None:
        for node in nodes:
            if isinstance(node, TileLoop):
                axis = self.ranges[node.axis]
                whole = axis.start, axis.end
                starts = range(axis.low, axis.high, node.tile) or [axis.low]
                for number, start in enumerate(starts):
                    axis.start, axis.end = start, min(start + node.tile, axis.high)
                    self.body(node.body, number)
                axis.start, axis.end = whole
                continue
            self.trip = trip
            match node:
                case Copy():
                    self.copy(node)
                case Pt():
                    self.pt(node)
                case Vec():
                    self.vec(node)
                case Ring():
                    self.ring(node)

    def empty(self, axes: Sequence[int]) -> bool:
        return any(self.ranges[axis].end <= self.ranges[axis].start for axis in axes)

    def first(self, axes: Sequence[int]) -> bool:
        return all(self.ranges[axis].start == self.ranges[axis].low for axis in axes)

    def spans(self, axes: Sequence[int]) -> list[tuple[int, int]]:
        return [(self.ranges[a].start, self.ranges[a].end) for a in axes]

    def affine(self, base: int, terms: Sequence[Term], axes: Sequence[int]) -> tuple[int, Dims]:
        """The place of the first point of some axes, and of each axis its points and stride."""
        strides = dict.fromkeys(axes, 0)
        for term in terms:
            at, by = self.ranges[term.axis], self.value(term.coefficient)
            base += by * (at.start - at.origin(term.origin))
            if term.axis in strides:
                strides[term.axis] += by
        return base, tuple((self.ranges[a].count, strides[a]) for a in axes)

    def at_points(self, base: int, terms: Sequence[Term], axes: Sequence[int]) -> Array:
        """The same for every point."""
        start, dims = self.affine(base, terms, axes)
        total = np.full([count for count, _ in dims], start, np.int64)
        for axis, (count, stride) in enumerate(dims):
            shape = [-1 if i == axis else 1 for i in range(len(dims))]
            total += (np.arange(count, dtype=np.int64) * stride).reshape(shape)
        return total

    # --- one instruction's waits ------------------------------------------------------------

    def issue(
        self, unit: int, reads: Sequence[Place], writes: Sequence[Place]
    ) -> tuple[Clock, int, list[int], list[int]]:
        """What has finished before, its number, and the copies of buffers it reads and writes."""
        clock = list(self.last[unit])
        used: list[tuple[Use, bool]] = []
        read_slots, write_slots = [], []
        for place in reads:
            slot = self.current[place.buffer]
            use = self.uses[place.buffer][slot]
            join(clock, use.writer)
            used.append((use, False))
            read_slots.append(slot)
        for place in writes:
            number = place.buffer
            if self.program.buffers[number].slots == 2:
                self.current[number] = self.trip % 2
            slot = self.current[number]
            use = self.uses[number][slot]
            join(clock, use.users)
            for other in self.machine.overlap[number]:
                for of_other in self.uses[other]:
                    join(clock, of_other.users)
            used.append((use, True))
            write_slots.append(slot)
        number = self.last[unit][unit] + 1
        before = list(clock)
        clock[unit] = number
        self.last[unit] = clock
        self.operands = []
        for use, writes_it in used:
            join(use.users, clock)
            if writes_it:
                use.writer = list(clock)
        return before, number, read_slots, write_slots

    # --- bytes ------------------------------------------------------------------------------

    def slot_start(self, place: Place, slot: int) -> int:
        buffer = self.program.buffers[place.buffer]
        return buffer.offset + slot * buffer.bytes

    def local(self, place: Place, axes: Sequence[int], slot: int) -> tuple[Bytes, Layout]:
        """The bytes of an operand in LX, and which point lies where in its buffer."""
        start, dims = self.affine(self.value(place.base), place.terms, axes)
        where = box(start, dims, place.dtype.bytes)
        buffer = self.program.buffers[place.buffer]
        if where.bits and (where.low < 0 or where.high > buffer.bytes):
            raise NotEqual(f"outside of buffer {buffer.name}")
        return where.moved(self.slot_start(place, slot)), (start, dims, place.dtype)

    def touch_lx(self, where: Bytes, unit: int, number: int, clock: Clock) -> None:
        """Reads."""
        if self.machine.uses is not None:
            self.machine.uses.note_read(self.core, where)
        self.lx_order.touch(where, unit, number, clock, writes=False)

    def read(
        self, place: Place, axes: Sequence[int], slot: int, unit: int, number: int, clock: Clock
    ) -> bytes:
        """A name for what an operand in LX holds at every point."""
        where, layout = self.local(place, axes, slot)
        self.touch_lx(where, unit, number, clock)
        self.operands.append((where, _points(layout)))
        return name_of(layout, self.lx.content(where, self.slot_start(place, slot)))

    def write(
        self,
        where: Bytes,
        pieces: Sequence[Piece],
        unit: int,
        number: int,
        clock: Clock,
        in_place: object = None,
    ) -> None:
        """Behind the instruction's reads. It may write bytes that it reads if the other operand
        has the layout `in_place`: each point then reads before it writes."""
        for other, layout in self.operands:
            if where.meets(other) and (other != where or layout != in_place):
                raise NotEqual("an instruction overtakes itself")
        self.operands.append((where, None))
        if self.machine.uses is not None:
            self.machine.uses.note_write(self.core, where)
        self.shared.write_lx(self.core, where)
        self.lx_order.touch(where, unit, number, clock, writes=True)
        self.lx.write(where, pieces)

    # --- instructions -----------------------------------------------------------------------

    def copy(self, copy: Copy) -> None:
        if self.empty(copy.axes):
            return
        loads = copy.source.space is Space.DEVICE
        unit = LOAD if loads else STORE
        device, lx = (copy.source, copy.target) if loads else (copy.target, copy.source)
        indices = [i.place for i in copy.indirect]
        reads = indices if loads else [*indices, lx]
        clock, number, read_slots, write_slots = self.issue(unit, reads, [lx] if loads else [])
        seen = [
            self.read(place, copy.axes, slot, unit, number, clock)
            for place, slot in zip(indices, read_slots, strict=False)
        ]
        slot = (write_slots if loads else read_slots)[-1]
        moving = self.moving(copy, device, lx, slot)
        self.touch_device(copy, device.argument, moving.outer, number, clock)
        memory = self.machine.memories[device.argument]
        how = name_of("copy", moving.layout, copy.add, *seen)
        if loads:
            if moving.translated is not None:
                pieces = [p.moved(-moving.translated) for p in memory.read(moving.outer)]
            else:
                name = name_of(how, memory.content(moving.outer, 0))
                pieces = [Piece(moving.inner, name, moving.zero)]
            self.write(moving.inner, pieces, unit, number, clock)
            return
        self.touch_lx(moving.inner, unit, number, clock)
        if moving.translated is not None and not copy.add:
            pieces = [p.moved(moving.translated) for p in self.lx.read(moving.inner)]
            memory.write(moving.outer, pieces)
            return
        name = name_of(how, self.lx.content(moving.inner, moving.zero))
        if copy.add:
            memory.add(moving.outer, name, 0)
            return
        if copy.indirect:  # which of them stay as they were, only values tell
            name = name_of(name, memory.content(moving.outer, 0))
        memory.write(moving.outer, [Piece(moving.outer, name, 0)])

    def moving(self, copy: Copy, device: Place, lx: Place, slot: int) -> _Moving:
        inner, _ = self.local(lx, copy.axes, slot)
        zero = self.slot_start(lx, slot)
        inside, there = self.affine(self.value(lx.base), lx.terms, copy.axes)
        base = self.value(device.base) - self.machine.addresses[device.argument]
        outside, here = self.affine(base, device.terms, copy.axes)
        pairs = [
            (n, a, b) for (n, a), (_, b) in zip(here, there, strict=True) if n > 1 and (a or b)
        ]
        size = device.dtype.bytes
        layout: list[object] = [pairs, outside, inside, size]
        if not copy.bounds and not copy.indirect:
            same = all(a == b for _, a, b in pairs)
            by = outside - inside - zero if same else None
            return _Moving(box(outside, here, size), inner, zero, layout, by)
        outer = box(outside, here, size)
        if copy.bounds:
            moved = np.ones([count for count, _ in here], bool)
            for bound in copy.bounds:
                moved &= self.inside(bound, copy.axes)
            layout.append(np.packbits(moved).tobytes())
            outer = points(self.at_points(base, device.terms, copy.axes)[moved], size)
            if device is copy.target:  # a store reads what it moves; a load writes zeros too
                from_lx = self.at_points(self.value(lx.base) + zero, lx.terms, copy.axes)
                inner = points(from_lx[moved], size)
        for indirect in copy.indirect:  # all that the index may reach
            count, step = self.value(indirect.size), self.value(indirect.coefficient)
            outer = outer.repeated(count, step)
            layout.append((count, step, indirect.wrap, indirect.clamp))
        return _Moving(outer, inner, zero, layout, None)

    def inside(self, bound: Bound, axes: Sequence[int]) -> Array:
        at = self.at_points(self.value(bound.offset), bound.terms, axes)
        return np.asarray((at >= 0) & (at < self.value(bound.size)))

    def touch_device(
        self, copy: Copy, argument: int, where: Bytes, number: int, clock: Clock
    ) -> None:
        memory = self.machine.memories[argument]
        if where.bits and (where.low < memory.low or where.high > memory.high):
            raise NotEqual("outside of an argument")
        loads = copy.source.space is Space.DEVICE
        self.shared.touch(argument, where, "read" if loads else "add" if copy.add else "write")
        if argument in self.device_order:
            unit = LOAD if loads else STORE
            self.device_order[argument].touch(where, unit, number, clock, writes=not loads)

    def pt(self, pt: Pt) -> None:
        kept = (*pt.batch, *pt.m, *pt.n)
        if self.empty(kept):
            return
        begins = self.first(pt.k)
        clock, number, slots, (slot,) = self.issue(PT, [pt.a, pt.b], [pt.c])
        axes = ((*pt.batch, *pt.m, *pt.k), (*pt.batch, *pt.n, *pt.k))
        parts: list[object] = ["pt", self.spans((*kept, *pt.k)), pt.a.dtype]
        if not self.empty(pt.k):
            for place, of, held in zip((pt.a, pt.b), axes, slots, strict=True):
                parts.append(self.read(place, of, held, PT, number, clock))
        if not begins:
            parts.append(self.read(pt.c, kept, slot, PT, number, clock))
        where, layout = self.local(pt.c, kept, slot)
        result = Piece(where, name_of(layout, *parts), self.slot_start(pt.c, slot))
        self.write(where, [result], PT, number, clock, None if begins else _points(layout))

    def vec(self, vec: Vec) -> None:
        stored = [out for out in vec.outputs if not self.empty(self.kept(out, vec.axes))]
        if not any(not self.empty(self.needed(out, vec.axes)) for out in vec.outputs):
            return
        places = [out.place for out in vec.outputs]
        clock, number, slots, write_slots = self.issue(SFU, vec.inputs, places)
        parts: list[object] = ["vec", self.spans(vec.axes), vec.ops, len(vec.axes)]
        parts += [
            (self.value(x.offset), [(t.axis, self.value(t.coefficient)) for t in x.terms])
            for x in vec.indices
        ]
        if not self.empty(vec.axes):
            for place, slot in zip(vec.inputs, slots, strict=True):
                parts.append(self.read(place, vec.axes, slot, SFU, number, clock))
        results = []
        for position, (out, slot) in enumerate(zip(vec.outputs, write_slots, strict=True)):
            if out not in stored:
                continue
            kept = self.kept(out, vec.axes)
            own: list[object] = [position, out.value, out.reduce, out.scan]
            own.append([vec.axes.index(axis) for axis in kept])
            reduced = [a for a in vec.axes if a not in kept]
            if reduced and not self.first(reduced):
                own.append(self.read(out.place, kept, slot, SFU, number, clock))
            where, layout = self.local(out.place, kept, slot)
            name = name_of(layout, *own, *parts)
            piece = Piece(where, name, self.slot_start(out.place, slot))
            results.append((piece, None if reduced and self.first(reduced) else _points(layout)))
        for piece, in_place in results:
            self.write(piece.where, [piece], SFU, number, clock, in_place)

    def ring(self, ring: Ring) -> None:
        if self.empty(ring.axes):
            return
        clock, number, _, (slot,) = self.issue(RING, [], [ring.target])
        holder, source = self.held(ring)
        size, buffer = ring.source.dtype.bytes, self.program.buffers[ring.source.buffer]
        if source.min() < 0 or source.max() + size > buffer.bytes:
            raise NotEqual(f"outside of buffer {buffer.name}")
        where, layout = self.local(ring.target, ring.axes, slot)
        parts: list[object] = [holder.tobytes(), source.tobytes()]
        for core in np.unique(holder):
            moved = points(source[holder == core] + buffer.offset, size)
            self.shared.move_lx(int(core), moved)
            if self.machine.uses is not None:
                self.machine.uses.note_read(int(core), moved)
            if int(core) not in self.machine.lx:
                raise NotEqual("a move reads what no core holds")
            parts.append(self.machine.lx[int(core)].content(moved, buffer.offset))
        name = name_of("ring", layout, *parts)
        result = Piece(where, name, self.slot_start(ring.target, slot))
        self.write(where, [result], RING, number, clock)

    def held(self, ring: Ring) -> tuple[Array, Array]:
        """For every point, the core that holds it and its place in the source's buffer there."""
        source = self.at_points(self.value(ring.source.base), ring.source.terms, ring.axes)
        own = self.core % ring.cores
        holder = np.full(source.shape, own)
        for held in ring.held:
            x = self.at_points(self.value(held.offset), held.terms, ring.axes)
            found = np.zeros(x.shape, bool)
            for p in range(held.parts):
                part = self.part(held, p * held.stride)
                inside = (x >= part.low) & (x < part.high)
                holder[inside] += (p - own // held.stride % held.parts) * held.stride
                source[inside] += self.value(held.step) * (x[inside] - part.low)
                found |= inside
            if not found.all():
                raise NotEqual("a move reads what no core holds")
        return holder, source

    def kept(self, out: VecOut, axes: Sequence[int]) -> list[int]:
        has = {term.axis for term in out.place.terms}
        return [a for a in axes if out.scan or not out.reduce or a in has]

    def needed(self, out: VecOut, axes: Sequence[int]) -> list[int]:
        has = {term.axis for term in out.place.terms}
        return [a for a in axes if not out.reduce or a in has]


@dataclass(frozen=True)
class _Moving:
    """What a copy moves: bytes of an object of device memory and of LX."""

    outer: Bytes
    inner: Bytes
    zero: int  # where the slot in LX begins
    layout: object
    translated: int | None  # all bytes by so many from LX to device memory; None: not so


def _points(layout: Layout) -> object:
    """Which point lies where, whatever its bytes mean."""
    start, dims, dtype = layout
    return start, dims, dtype.bytes
