"""What a program means, without values: the criterion that tells mutants apart from the original.

Every byte of memory has a *name*: a hash of how it came about (an input's byte, or an operation on
bytes of such names at such coordinates). Two programs whose outputs have equal names compute equal
values in body order. That body order is the meaning of every legal order follows when each two
accesses to one byte, one of which writes, are ordered by units, tokens or sections; a program in
which some are not has a `race`.

Written from the text of `ir/program.py` alone: it shares nothing with the card or its checker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from openspyre.ir.interpret import symbol_block
from openspyre.ir.kernel import Kernel, Role, Space
from openspyre.ir.program import (
    Axis,
    Bound,
    Copy,
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
from tests.card_runner import arranged

Array = np.ndarray[Any, np.dtype[Any]]
Clock = list[int]  # of every unit, how many of its instructions have finished
LOAD, STORE, PT, SFU = range(4)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_ROOM = 1 << 20  # instructions of a core in a section


class NotEqual(Exception):
    """The program does what no right one does: a race, or an access out of bounds."""


@dataclass
class _Range:
    low: int
    high: int
    start: int
    end: int

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
    return _Machine(program, kernel, sizes).digest()


def same_meaning(mutant: Program, wanted: bytes, kernel: Kernel, sizes: Mapping[str, int]) -> bool:
    """Whether a proof was found that a mutant computes the same in every legal order."""
    try:
        return meaning(mutant, kernel, sizes) == wanted
    except NotEqual:
        return False


def _hash(*parts: object) -> np.uint64:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part if isinstance(part, bytes) else repr(part).encode())
        digest.update(b"\0")
    return np.uint64(int.from_bytes(digest.digest(), "little"))


def _numbered(name: np.uint64, count: int) -> Array:
    """Names of the bytes of one result."""
    with np.errstate(over="ignore"):
        return name + np.arange(count, dtype=np.uint64) * _MIX


class _Machine:
    def __init__(self, program: Program, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        placed, pool = arranged(kernel, sizes)
        size = pool + program.pool_bytes + 128
        self.program = program
        self.spans: dict[int, tuple[int, int]] = {-1: (pool, pool + program.pool_bytes)}
        for number, p in enumerate(placed):
            low, high = 0, 0
            if p.elements.size:
                low, high = int(p.elements.min()), int(p.elements.max()) + p.tensor.dtype.bytes
            self.spans[number] = (low, high)
        scalars = [1.0] * program.arguments[2]
        numbers = [sizes[s] for s in kernel.symbols]
        self.slots = symbol_block(program, [p.address for p in placed], numbers, scalars, pool)
        self.names = _numbered(_hash("memory"), size)
        self.left = [s for n, s in self.spans.items() if n >= 0 and _written(placed[n].tensor.role)]
        peak = max((b.offset + b.bytes * b.slots for b in program.buffers), default=0)
        self.peak = peak
        self.lx = {core: _Lx(core, peak) for core in range(most_cores(program))}
        overlap: list[list[int]] = []
        for a, x in enumerate(program.buffers):
            ends = x.offset + x.bytes * x.slots
            overlap.append(
                [
                    b
                    for b, y in enumerate(program.buffers)
                    if a != b and x.offset < y.offset + y.bytes * y.slots and y.offset < ends
                ]
            )
        self.overlap = overlap

    def digest(self) -> bytes:
        touched = _Touched(len(self.names))
        for section in self.program.sections:
            for core in range(cores_of(section)):
                touched.begin_core(core)
                self.lx[core].base += _ROOM
                _Core(self, section, core, touched).run()
            touched.end_section()
        digest = hashlib.blake2b(digest_size=16)
        for low, high in self.left:
            digest.update(self.names[low:high].tobytes())
        return digest.digest()


def cores_of(section: Section) -> int:
    return int(np.prod([axis.parts for axis in section.axes], dtype=int))


def most_cores(program: Program) -> int:
    return max((cores_of(section) for section in program.sections), default=0)


class _Lx:
    """A core's LX: names, and by unit the instruction that read or wrote a byte last.

    Instructions of earlier sections have numbers up to `base`.
    """

    def __init__(self, core: int, size: int) -> None:
        self.names = _numbered(_hash("poison", core), size)
        self.base = 0
        self.reads = np.zeros((4, size), np.int32)
        self.writes = np.zeros((4, size), np.int32)


def _written(role: Role) -> bool:
    return role in (Role.OUTPUT, Role.MUTATED)


class _Touched:
    """Who has touched the bytes of device memory in a section, by stamps that only grow."""

    def __init__(self, size: int) -> None:
        self.stamp = 0  # of the section and core
        self.first = 1  # of the section's cores
        self.by = {kind: np.zeros(size, np.int32) for kind in ("read", "write", "add")}
        self.several = {kind: np.zeros(size, np.int32) for kind in ("read", "write", "add")}
        self.own = {kind: np.zeros(size, np.int64) for kind in ("read", "write")}

    def begin_core(self, core: int) -> None:
        self.stamp = self.first + core

    def end_section(self) -> None:
        self.first = self.stamp + 1

    def touch(self, at: Array, kind: str, number: int, clock: Clock) -> None:
        others = {"read": ("write", "add"), "write": ("read", "write", "add"),
                  "add": ("read", "write")}[kind]  # fmt: skip
        for other in others:
            by = self.by[other][at]
            if ((by >= self.first) & (by != self.stamp)).any():
                raise NotEqual("a race between cores")
            if (self.several[other][at] == self.first).any():
                raise NotEqual("a race between cores")
        base = self.stamp << 32
        if kind == "read" and (self.own["write"][at] > base + clock[STORE]).any():
            raise NotEqual("a load overtakes a store")
        if kind != "read" and (self.own["read"][at] > base + clock[LOAD]).any():
            raise NotEqual("a store overtakes a load")
        by = self.by[kind][at]
        shared = (by >= self.first) & (by != self.stamp)
        self.several[kind][at[shared]] = self.first
        self.by[kind][at] = self.stamp
        self.own["read" if kind == "read" else "write"][at] = base + number


class _Core:
    """One core in one section."""

    def __init__(self, machine: _Machine, section: Section, core: int, touched: _Touched) -> None:
        self.machine, self.section, self.core, self.touched = machine, section, core, touched
        self.program, self.slots = machine.program, machine.slots
        self.lx = machine.lx[core]
        self.ranges = [self.part(axis) for axis in section.axes]
        self.trip = 0
        count = len(self.program.buffers)
        self.uses = [[_Use(), _Use()] for _ in range(count)]
        self.current = [0] * count
        self.last: list[Clock] = [[0] * 4 for _ in range(4)]

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

    def sums(self, base: int, terms: Sequence[Term], axes: Sequence[int]) -> Array:
        shape = [max(self.ranges[a].end - self.ranges[a].start, 0) for a in axes]
        total = np.full(shape, base, np.int64)
        for term in terms:
            at, by = self.ranges[term.axis], self.value(term.coefficient)
            total += by * (at.start - at.origin(term.origin))
            if term.axis in axes:
                place = list(axes).index(term.axis)
                steps = np.arange(shape[place], dtype=np.int64) * by
                total += steps.reshape([-1 if i == place else 1 for i in range(len(shape))])
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
        for use, writes_it in used:
            _join(use.users, clock)
            if writes_it:
                use.writer = list(clock)
        return before, number, read_slots, write_slots

    # --- bytes ------------------------------------------------------------------------------

    def lx_bytes(self, place: Place, axes: Sequence[int], slot: int) -> Array:
        buffer = self.program.buffers[place.buffer]
        at = self.sums(self.value(place.base), place.terms, axes)
        size = place.dtype.bytes
        if at.size and (at.min() < 0 or at.max() + size > buffer.bytes):
            raise NotEqual(f"outside of buffer {buffer.name}")
        return _bytes(at + buffer.offset + slot * buffer.bytes, size)

    def read_lx(self, at: Array, unit: int, number: int, clock: Clock) -> Array:
        for other in range(4):
            if other != unit and (self.lx.writes[other][at] > self.lx.base + clock[other]).any():
                raise NotEqual("a read overtakes a write in LX")
        self.lx.reads[unit][at] = self.lx.base + number
        return np.asarray(self.lx.names[at])

    def write_lx(self, at: Array, names: Array, unit: int, number: int, clock: Clock) -> None:
        for other in range(4):
            if other == unit:
                continue
            newest = np.maximum(self.lx.writes[other][at], self.lx.reads[other][at])
            if (newest > self.lx.base + clock[other]).any():
                raise NotEqual("a write overtakes an access in LX")
        self.lx.writes[unit][at] = self.lx.base + number
        self.lx.names[at] = names

    def device_bytes(self, place: Place, at: Array) -> Array:
        low, high = self.machine.spans[place.argument]
        size = place.dtype.bytes
        if at.size and (at.min() < low or at.max() + size > high):
            raise NotEqual("outside of an argument")
        return _bytes(at, size)

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
        seen: list[object] = [self.spans(copy.axes)]
        for place, slot in zip(indices, read_slots, strict=False):
            at = self.lx_bytes(place, copy.axes, slot)
            seen.append(self.read_lx(at, unit, number, clock).tobytes())
        at = self.sums(self.value(device.base), device.terms, copy.axes)
        moved = np.ones(at.shape, bool)
        for bound in copy.bounds:
            moved &= self.inside(bound, copy.axes)
        inner = self.lx_bytes(lx, copy.axes, (write_slots if loads else read_slots)[-1])
        outer, exact = self.reached(copy, device, at[moved])
        kind = "read" if loads else "add" if copy.add else "write"
        self.touched.touch(outer, kind, number, clock)
        memory = self.machine.names
        zero = _hash("zero")
        if loads:
            names = np.full(inner.shape, zero)
            if exact:
                names[moved] = memory[outer]
            else:
                names = self.derived(inner.shape, *seen, memory[outer].tobytes(), _content(copy))
            self.write_lx(inner, names, unit, number, clock)
            return
        stored = self.read_lx(inner[moved], unit, number, clock)
        if exact and not copy.add:
            memory[outer] = stored
        else:  # a commutative mix: which indices there are only values tell, sums have no order
            with np.errstate(over="ignore"):
                if exact:
                    np.add.at(memory, outer.ravel(), (stored * _MIX).ravel())
                else:
                    memory[np.unique(outer)] += _hash(*seen, stored.tobytes(), _content(copy))

    def reached(self, copy: Copy, device: Place, at: Array) -> tuple[Array, bool]:
        """Bytes of device memory; with indices all that they may reach, and not one by one."""
        for indirect in copy.indirect:
            size, by = self.value(indirect.size), self.value(indirect.coefficient)
            at = np.unique(at[..., None] + np.arange(max(size, 0)) * by)
        return self.device_bytes(device, at), not copy.indirect

    def inside(self, bound: Bound, axes: Sequence[int]) -> Array:
        at = self.sums(self.value(bound.offset), bound.terms, axes)
        return np.asarray((at >= 0) & (at < self.value(bound.size)))

    def derived(self, shape: Sequence[int], *parts: object) -> Array:
        count = int(np.prod(shape, dtype=int))
        return _numbered(_hash(*parts), count).reshape(shape)

    def pt(self, pt: Pt) -> None:
        kept = (*pt.batch, *pt.m, *pt.n)
        if self.empty(kept):
            return
        begins = self.first(pt.k)
        clock, number, slots, (slot,) = self.issue(PT, [pt.a, pt.b], [pt.c])
        at = self.lx_bytes(pt.c, kept, slot)
        parts: list[object] = ["pt", self.spans((*kept, *pt.k)), pt.c.dtype, pt.a.dtype]
        axes = ((*pt.batch, *pt.m, *pt.k), (*pt.batch, *pt.n, *pt.k))
        if not self.empty(pt.k):
            for place, of, held in zip((pt.a, pt.b), axes, slots, strict=True):
                parts.append(
                    self.read_lx(self.lx_bytes(place, of, held), PT, number, clock).tobytes()
                )
        if not begins:
            parts.append(self.read_lx(at, PT, number, clock).tobytes())
        self.write_lx(at, self.derived(at.shape, *parts), PT, number, clock)

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
                at = self.lx_bytes(place, vec.axes, slot)
                parts += [place.dtype, self.read_lx(at, SFU, number, clock).tobytes()]
        results = []
        for position, (out, slot) in enumerate(zip(vec.outputs, write_slots, strict=True)):
            if out not in stored:
                continue
            kept = self.kept(out, vec.axes)
            at = self.lx_bytes(out.place, kept, slot)
            own = [position, out.value, out.reduce, out.scan, out.place.dtype]
            own.append([vec.axes.index(axis) for axis in kept])
            reduced = [a for a in vec.axes if a not in kept]
            if reduced and not self.first(reduced):
                own.append(self.read_lx(at, SFU, number, clock).tobytes())
            results.append((at, self.derived(at.shape, *parts, *own)))
        for at, names in results:
            self.write_lx(at, names, SFU, number, clock)

    def kept(self, out: VecOut, axes: Sequence[int]) -> list[int]:
        has = {term.axis for term in out.place.terms}
        return [a for a in axes if out.scan or not out.reduce or a in has]

    def needed(self, out: VecOut, axes: Sequence[int]) -> list[int]:
        has = {term.axis for term in out.place.terms}
        return [a for a in axes if not out.reduce or a in has]


def _content(copy: Copy) -> tuple[object, ...]:
    return tuple((i.wrap, i.clamp) for i in copy.indirect)


def _join(clock: Clock, other: Clock) -> None:
    for unit in range(4):
        if other[unit] > clock[unit]:
            clock[unit] = other[unit]


def _bytes(at: Array, size: int) -> Array:
    return np.asarray(at[..., None] + np.arange(size))
