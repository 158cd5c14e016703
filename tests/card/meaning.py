"""What a program means, without values: the criterion that tells mutants apart from the original.

Every byte of memory has a *name*: a hash of how it came about (an input's byte, or an operation on
bytes of such names at such coordinates). Two programs whose outputs have equal names compute equal
values in body order. That body order is the meaning of every legal order follows when each two
accesses to one byte, one of which writes, are ordered by units, tokens or sections; a program in
which some are not has a `race`.

Names are kept for whole results (`byte_sets.py`), so a proof costs by instruction, not by byte.
Equal names prove equal values; other names may still hold equal values.

Written from the text of `ir/program.py` alone: it shares nothing with the card or its checker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from openspyre.ir.interpret import symbol_block
from openspyre.ir.kernel import DType, Kernel, Role, Space, Tensor
from openspyre.ir.program import (
    Axis,
    Bound,
    Copy,
    Instr,
    Node,
    Origin,
    Place,
    Program,
    Pt,
    Section,
    Slot,
    Term,
    TileLoop,
    Value,
    Vec,
    VecOut,
)
from tests.card.byte_sets import NONE, Array, Bytes, Dims, Memory, Piece, box, name_of, points, run

Clock = list[int]  # of every unit, how many of its instructions have finished
LOAD, STORE, PT, SFU = range(4)
POOL = -1  # as an argument's number
_Layout = tuple[int, Dims, DType]  # of an operand: its first point's place, its axes
_SPACING = 1 << 40  # between the addresses of arguments


class NotEqual(Exception):
    """The program does what no right one does: a race, or an access out of bounds."""


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


@dataclass
class _Use:
    """One copy of a buffer: the clocks of all that used it, and of the last that wrote it."""

    users: Clock = field(default_factory=lambda: [0] * 4)
    writer: Clock = field(default_factory=lambda: [0] * 4)


def meaning(program: Program, kernel: Kernel, sizes: Mapping[str, int]) -> bytes:
    """A digest of the names of all bytes that a launch may leave behind.

    Raises:
        NotEqual: a race, or an access out of bounds.
    """
    machine = _Machine(program, kernel, sizes)
    machine.run(range(len(program.sections)))
    return machine.digest()


def hazard(program: Program, kernel: Kernel, sizes: Mapping[str, int]) -> str:
    """What a program does that no right one does, "" if nothing."""
    machine = _Machine(program, kernel, sizes)
    try:
        machine.run(range(len(program.sections)))
    except NotEqual as wrong:
        return str(wrong)
    fresh = [machine.memories[POOL], *machine.lx.values()]
    return "reads what nothing has written" if any(m.read_first for m in fresh) else ""


class Original:
    """A program, to compare others with that differ from it in a few places.

    A section of another program that is the same, and finds the same bytes, need not run again.
    """

    def __init__(self, program: Program, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        self.program, self.kernel, self.sizes = program, kernel, sizes
        machine = _Machine(program, kernel, sizes)
        self.states = [machine.state()]
        uses = []
        for number in range(len(program.sections)):
            machine.uses = _Uses()
            uses.append(machine.uses)
            machine.run([number])
            self.states.append(machine.state())
        self.live = _live(uses)
        self.digests = [self.digest(machine, n, state) for n, state in enumerate(self.states)]

    def means(self, mutant: Program, *, thorough: bool = True) -> bool:
        """Whether a proof was found that a mutant computes the same in every legal order.

        Args:
            thorough: whether to look behind the last section that differs.
        """
        try:
            return self.proved(mutant, thorough)
        except NotEqual:
            return False

    def proved(self, mutant: Program, thorough: bool) -> bool:
        machine = _Machine(mutant, self.kernel, self.sizes)
        count = len(self.program.sections)
        changed = [n for n in range(count) if not self.same_section(mutant, n)]
        if not changed:
            return True
        first, last = changed[0], changed[-1]
        machine.restore(self.states[first])
        machine.run(range(first, last + 1))
        if self.digest(machine, last + 1) == self.digests[last + 1]:
            return True
        if not thorough:
            return False
        machine.run(range(last + 1, count))
        return self.digest(machine, count) == self.digests[count]

    def same_section(self, mutant: Program, number: int) -> bool:
        section = self.program.sections[number]
        return mutant.sections[number] == section and all(
            mutant.buffers[b] == self.program.buffers[b] for b in buffers_in(section.body)
        )

    def digest(self, machine: _Machine, number: int, state: _State | None = None) -> bytes:
        """Of what sections from a number on may find, or the user."""
        if state is not None:
            machine.restore(state)
        if number == len(self.program.sections):
            return machine.digest()
        memories = [memory.content(memory.whole, 0) for memory in machine.memories.values()]
        live = [
            memory.content(self.live[number].get(core, NONE), 0)
            for core, memory in machine.lx.items()
        ]
        return name_of(*memories, *live)


_State = tuple[list[list[Piece]], dict[int, list[Piece]]]  # of device memory, of each core's LX
_Bytes = dict[int, Bytes]  # by core


@dataclass
class _Uses:
    """Bytes of LX that a section reads before it writes them, and that it writes, by core."""

    read: _Bytes = field(default_factory=dict)
    written: _Bytes = field(default_factory=dict)

    def note_read(self, core: int, where: Bytes) -> None:
        new = where.without(self.written.get(core, NONE))
        self.read[core] = self.read.get(core, NONE).joined(new)

    def note_write(self, core: int, where: Bytes) -> None:
        self.written[core] = self.written.get(core, NONE).joined(where)


def _live(uses: Sequence[_Uses]) -> list[_Bytes]:
    """The bytes of LX that sections from a number on read before they write them."""
    live: list[_Bytes] = [{}]
    for section in reversed(uses):
        later = live[-1]
        cores = later.keys() | section.read.keys()
        live.append({
            core: later.get(core, NONE).without(section.written.get(core, NONE))
            .joined(section.read.get(core, NONE))
            for core in cores
        })  # fmt: skip
    return live[::-1]


class _Machine:
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
        self.uses: _Uses | None = None  # of the last section, where somebody asks

    def run(self, numbers: Iterable[int]) -> None:
        """Some sections, one by one."""
        for number in numbers:
            section = self.program.sections[number]
            shared = _Shared(section)
            for core in range(cores_of(section)):
                shared.begin_core()
                _Core(self, section, core, shared).run()

    def digest(self) -> bytes:
        left = [self.memories[number] for number in self.left]
        return name_of(*(memory.content(memory.whole, 0) for memory in left))

    def state(self) -> _State:
        memories = [memory.pieces for memory in self.memories.values()]
        return memories, {core: memory.pieces for core, memory in self.lx.items()}

    def restore(self, state: _State) -> None:
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


def instructions_in(nodes: Sequence[Node]) -> Iterator[Instr]:
    for node in nodes:
        if isinstance(node, TileLoop):
            yield from instructions_in(node.body)
        else:
            yield node


def buffers_in(nodes: Sequence[Node]) -> set[int]:
    """The LX buffers that instructions name."""
    return {
        place.buffer
        for instr in instructions_in(nodes)
        for place in operands(instr)
        if place.space is Space.LX
    }


def operands(instr: Instr) -> list[Place]:
    """All places of an instruction."""
    match instr:
        case Copy():
            return [instr.source, instr.target, *(i.place for i in instr.indirect)]
        case Pt():
            return [instr.a, instr.b, instr.c]
        case Vec():
            return [*instr.inputs, *(out.place for out in instr.outputs)]


# --- order ------------------------------------------------------------------------------------

_CONFLICTS = {"read": ("write", "add"), "write": ("read", "write", "add"), "add": ("read", "write")}


class _Shared:
    """What the cores of a section do to the objects of device memory that it stores to."""

    def __init__(self, section: Section) -> None:
        copies = [i for i in instructions_in(section.body) if isinstance(i, Copy)]
        self.stored = {c.target.argument for c in copies if c.target.space is Space.DEVICE}
        self.others: dict[tuple[int, str], Bytes] = {}
        self.own: dict[tuple[int, str], Bytes] = {}

    def begin_core(self) -> None:
        for key, where in self.own.items():
            self.others[key] = self.others.get(key, NONE).joined(where)
        self.own = {}

    def touch(self, argument: int, where: Bytes, kind: str) -> None:
        if argument not in self.stored or not where.bits:
            return
        for other in _CONFLICTS[kind]:
            if where.meets(self.others.get((argument, other), NONE)):
                raise NotEqual("a race between cores")
        key = argument, kind
        self.own[key] = self.own[key].joined(where) if key in self.own else where


class _Order:
    """A core's accesses to one memory in a section, by unit and in its order."""

    def __init__(self) -> None:
        self.by_unit: list[list[tuple[int, Bytes, bool]]] = [[] for _ in range(4)]

    def touch(self, where: Bytes, unit: int, number: int, clock: Clock, *, writes: bool) -> None:
        for other in range(4):
            if other == unit:
                continue
            for earlier, there, wrote in reversed(self.by_unit[other]):
                if earlier <= clock[other]:
                    break
                if (writes or wrote) and where.meets(there):
                    raise NotEqual(f"a {_word(writes)} overtakes a {_word(wrote)}")
        self.by_unit[unit].append((number, where, writes))


def _word(writes: bool) -> str:
    return "write" if writes else "read"


# --- a core -----------------------------------------------------------------------------------


class _Core:
    """One core in one section."""

    def __init__(self, machine: _Machine, section: Section, core: int, shared: _Shared) -> None:
        self.machine, self.section, self.core, self.shared = machine, section, core, shared
        self.program, self.slots = machine.program, machine.slots
        self.lx = machine.lx[core]
        self.lx_order = _Order()
        self.device_order = {argument: _Order() for argument in shared.stored}
        self.ranges = [self.part(axis) for axis in section.axes]
        self.trip = 0
        count = len(self.program.buffers)
        self.uses = [[_Use(), _Use()] for _ in range(count)]
        self.current = [0] * count
        self.last: list[Clock] = [[0] * 4 for _ in range(4)]
        self.operands: list[tuple[Bytes, object]] = []  # that the instruction has touched

    def run(self) -> None:
        self.body(self.section.body, 0)

    def value(self, value: Value) -> int:
        return self.slots[value.index] if isinstance(value, Slot) else value

    def part(self, axis: Axis) -> _Range:
        extent = max(self.value(axis.extent), 0)
        granules = -(-extent // axis.granule)
        p = self.core // axis.stride % axis.parts
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
        used: list[tuple[_Use, bool]] = []
        read_slots, write_slots = [], []
        for place in reads:
            slot = self.current[place.buffer]
            use = self.uses[place.buffer][slot]
            _join(clock, use.writer)
            used.append((use, False))
            read_slots.append(slot)
        for place in writes:
            number = place.buffer
            if self.program.buffers[number].slots == 2:
                self.current[number] = self.trip % 2
            slot = self.current[number]
            use = self.uses[number][slot]
            _join(clock, use.users)
            for other in self.machine.overlap[number]:
                for of_other in self.uses[other]:
                    _join(clock, of_other.users)
            used.append((use, True))
            write_slots.append(slot)
        number = self.last[unit][unit] + 1
        before = list(clock)
        clock[unit] = number
        self.last[unit] = clock
        self.operands = []
        for use, writes_it in used:
            _join(use.users, clock)
            if writes_it:
                use.writer = list(clock)
        return before, number, read_slots, write_slots

    # --- bytes ------------------------------------------------------------------------------

    def slot_start(self, place: Place, slot: int) -> int:
        buffer = self.program.buffers[place.buffer]
        return buffer.offset + slot * buffer.bytes

    def local(self, place: Place, axes: Sequence[int], slot: int) -> tuple[Bytes, _Layout]:
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


def _points(layout: _Layout) -> object:
    """Which point lies where, whatever its bytes mean."""
    start, dims, dtype = layout
    return start, dims, dtype.bytes


def _join(clock: Clock, other: Clock) -> None:
    clock[:] = map(max, clock, other)
