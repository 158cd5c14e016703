"""Runs a Program, slowly: the living definition of `ir/program.py`, and an oracle for tiny sizes.

Cores run one after the other, instructions in body order, every instruction on all its points at
once. LX starts as poison (bytes of 0xFF: NaN, or -1). Sums are taken in float64 within an
instruction and rounded to the class of the place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, assert_never

import numpy as np

from openspyre.errors import CardError
from openspyre.ir import ops as forms
from openspyre.ir.elements import decoded, encoded
from openspyre.ir.kernel import Space
from openspyre.ir.ops import TABLE, Array
from openspyre.ir.program import (
    Axis,
    Bound,
    Calc,
    Copy,
    Given,
    Holding,
    Indirect,
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
    VecOp,
    VecOut,
)
from openspyre.ir.reference import STORAGE, cast, widened
from openspyre.spec import SPYRE_CARD_V1, CardSpec

_NAMES = MappingProxyType({row.code: row.name for row in TABLE.values()})
_CALC: Mapping[Calc, Callable[[int, int], int]] = MappingProxyType(
    {
        Calc.ADD: lambda a, b: a + b,
        Calc.MUL: lambda a, b: a * b,
        Calc.FLOORDIV: lambda a, b: a // b,
        Calc.MOD: lambda a, b: a % b,
        Calc.MIN: min,
        Calc.MAX: max,
    }
)
_FOLD: Mapping[str, np.ufunc] = MappingProxyType(
    {
        "sum": np.add,
        "prod": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
        "any": np.logical_or,
    }
)


def symbol_block(
    program: Program,
    addresses: Sequence[int],
    sizes: Sequence[int],
    scalars: Sequence[float],
    pool: int,
) -> list[int]:
    """Step 1 of a launch: the value of every slot."""
    slots: list[int] = []
    for slot in program.slots:
        match slot.given:
            case Given.ADDRESS:
                slots.append(addresses[slot.number])
            case Given.SIZE:
                slots.append(sizes[slot.number])
            case Given.SCALAR:
                slots.append(struct.unpack("<q", struct.pack("<d", scalars[slot.number]))[0])
            case Given.POOL:
                slots.append(pool)
            case Given.FORMULA:
                slots.append(_computed(slot.formula, slots))
            case _:
                assert_never(slot.given)
    return slots


def interpret(
    program: Program,
    memory: Array,
    slots: Sequence[int],
    card: CardSpec = SPYRE_CARD_V1,
) -> None:
    """Runs a program against a symbol block.

    Args:
        memory: the card's device memory, uint8; an address is an index into it.
        slots: what `symbol_block` gave.

    Raises:
        CardError: an index of the user's out of range, an access outside of memory or a buffer.
    """
    lx = [np.full(card.lx_bytes, 0xFF, np.uint8) for _ in range(card.cores)]
    with np.errstate(all="ignore"):
        for section in program.sections:
            cores = int(np.prod([axis.parts for axis in section.axes], dtype=int))
            for number in range(cores):
                _Core(program, section, number, memory, lx, slots).run()


def _computed(formula: tuple[tuple[Calc, int], ...], slots: Sequence[int]) -> int:
    stack: list[int] = []
    for calc, operand in formula:
        match calc:
            case Calc.CONST:
                stack.append(operand)
            case Calc.SLOT:
                stack.append(slots[operand])
            case _:
                right = stack.pop()
                stack.append(_CALC[calc](stack.pop(), right))
    return stack.pop()


@dataclass(slots=True)
class _Range:
    """Where an axis stands: the core's part, and the current tile of it."""

    low: int
    high: int
    start: int
    end: int

    def origin(self, origin: Origin) -> int:
        return {Origin.ABSOLUTE: 0, Origin.CORE: self.low, Origin.TILE: self.start}[origin]


class _Core:
    """One core in one section."""

    def __init__(
        self,
        program: Program,
        section: Section,
        number: int,
        memory: Array,
        lx: Sequence[Array],
        slots: Sequence[int],
    ) -> None:
        self.program, self.section, self.number = program, section, number
        self.memory, self.lx, self.slots = memory, lx[number], slots
        self.everywhere = lx
        self.ranges = [self.part(axis, number) for axis in section.axes]
        self.trips: list[int] = []
        self.written: dict[int, int] = {}  # the copy of a double buffer that was written last

    def run(self) -> None:
        for node in self.section.body:
            self.node(node)

    def part(self, axis: Axis | Holding, core: int) -> _Range:
        """What a core has of an axis, or holds of a dim that is spread like one."""
        extent = max(self.value(axis.extent), 0)
        granules = -(-extent // axis.granule)
        p = core // axis.stride % axis.parts
        low, high = (min(q * granules // axis.parts * axis.granule, extent) for q in (p, p + 1))
        return _Range(low, high, low, high)

    def value(self, value: Value) -> int:
        return self.slots[value.index] if isinstance(value, Slot) else value

    def node(self, node: Node) -> None:
        match node:
            case TileLoop():
                self.loop(node)
            case Copy():
                self.copy(node)
            case Pt():
                self.pt(node)
            case Vec():
                self.vec(node)
            case Ring():
                self.ring(node)
            case _:
                assert_never(node)

    def loop(self, loop: TileLoop) -> None:
        """An empty range makes one trip, so that reductions over it still write."""
        axis = self.ranges[loop.axis]
        whole = axis.start, axis.end
        starts = range(axis.low, axis.high, loop.tile) or [axis.low]
        for trip, start in enumerate(starts):
            axis.start, axis.end = start, min(start + loop.tile, axis.high)
            self.trips.append(trip)
            for node in loop.body:
                self.node(node)
            self.trips.pop()
        axis.start, axis.end = whole

    # --- addresses --------------------------------------------------------------------------

    def empty(self, axes: Sequence[int]) -> bool:
        return any(self.ranges[axis].end <= self.ranges[axis].start for axis in axes)

    def sum_over(self, base: int, terms: Sequence[Term], axes: Sequence[int]) -> Array:
        """base + terms at every point of `axes`; axes that are not walked stand at their start."""
        shape = [self.ranges[a].end - self.ranges[a].start for a in axes]
        total = np.full(shape, base, np.int64)
        for term in terms:
            at, by = self.ranges[term.axis], self.value(term.coefficient)
            total += by * (at.start - at.origin(term.origin))
            if term.axis in axes:
                place = axes.index(term.axis)
                steps = np.arange(shape[place], dtype=np.int64) * by
                total += steps.reshape([-1 if i == place else 1 for i in range(len(shape))])
        return total

    def offsets(self, place: Place, axes: Sequence[int]) -> tuple[Array, Array]:
        """The memory a place lies in and the byte offset of every point."""
        base = self.value(place.base)
        if place.space is Space.DEVICE:
            return self.memory, self.sum_over(base, place.terms, axes)
        return self.lx, self.sum_over(base, place.terms, axes)

    def located(self, place: Place, axes: Sequence[int], *, writes: bool) -> tuple[Array, Array]:
        memory, at = self.offsets(place, axes)
        if place.space is Space.DEVICE:
            return memory, at
        buffer = self.program.buffers[place.buffer]
        if at.size and (at.min() < 0 or at.max() + place.dtype.bytes > buffer.bytes):
            raise CardError(f"an access outside of LX buffer {buffer.name}")
        if writes and buffer.slots == 2:
            self.written[place.buffer] = (self.trips[-1] if self.trips else 0) % 2
        slot = self.written.get(place.buffer, 0)
        return memory, at + buffer.offset + slot * buffer.bytes

    def raw(self, memory: Array, at: Array, size: int) -> Array:
        if at.size and (at.min() < 0 or at.max() + size > len(memory)):
            raise CardError("an access outside of the card's memory")
        return np.asarray(memory[at[..., None] + np.arange(size)])

    def read(self, place: Place, axes: Sequence[int]) -> Array:
        """Values of the compute class."""
        memory, at = self.located(place, axes, writes=False)
        return decoded(self.raw(memory, at, place.dtype.bytes), place.dtype)

    def write(self, place: Place, axes: Sequence[int], values: Array) -> None:
        memory, at = self.located(place, axes, writes=True)
        size = place.dtype.bytes
        self.raw(memory, at, size)
        memory[at[..., None] + np.arange(size)] = encoded(
            np.broadcast_to(values, at.shape), place.dtype
        )

    # --- instructions -----------------------------------------------------------------------

    def copy(self, copy: Copy) -> None:
        if self.empty(copy.axes):
            return
        source_memory, source = self.located(copy.source, copy.axes, writes=False)
        target_memory, target = self.located(copy.target, copy.axes, writes=True)
        moved = np.ones(source.shape, bool)
        for bound in copy.bounds:
            moved &= self.inside(bound, copy.axes)
        device = source if copy.source.space is Space.DEVICE else target
        for indirect in copy.indirect:
            moved &= self.add_index(indirect, copy, device)
        size = copy.source.dtype.bytes
        values = np.zeros((*source.shape, size), np.uint8)
        values[moved] = self.raw(source_memory, source[moved], size)
        if copy.source.space is Space.DEVICE:
            moved[...] = True
        self.raw(target_memory, target[moved], size)
        for point in np.argwhere(moved):
            at, value = target[tuple(point)], values[tuple(point)]
            if copy.add:
                dtype = copy.target.dtype
                there = decoded(target_memory[at : at + size], dtype)
                value = encoded(there + decoded(value, dtype), dtype)
            target_memory[at : at + size] = value

    def inside(self, bound: Bound, axes: Sequence[int]) -> Array:
        at = self.sum_over(self.value(bound.offset), bound.terms, axes)
        return np.asarray((at >= 0) & (at < self.value(bound.size)))

    def add_index(self, indirect: Indirect, copy: Copy, device: Array) -> Array:
        """Adds to the device addresses, in place; tells which indices are in range."""
        index = self.read(indirect.place, copy.axes).astype(np.int64)
        size = self.value(indirect.size)
        if indirect.wrap:
            index = np.where(index < 0, index + size, index)
        inside = (index >= 0) & (index < size)
        if not indirect.clamp and not inside.all():
            source = self.program.sources[copy.origin] if copy.origin >= 0 else ""
            raise CardError(f"index out of range, not in [0, {size})", at=source)
        device += np.where(inside, index, 0) * self.value(indirect.coefficient)
        return np.asarray(inside)

    def pt(self, pt: Pt) -> None:
        if self.empty((*pt.batch, *pt.m, *pt.n)):
            return
        axes = (*pt.batch, *pt.m, *pt.n, *pt.k)
        a = self.read(pt.a, axes).astype(np.float64)
        b = self.read(pt.b, axes).astype(np.float64)
        kept = len(axes) - len(pt.k)
        total = (a * b).sum(axis=tuple(range(kept, len(axes))))
        if not self.first_trip(pt.k):
            total = total + self.read(pt.c, axes[:kept])
        self.write(pt.c, axes[:kept], total.astype(np.float32))

    def first_trip(self, axes: Sequence[int]) -> bool:
        return all(self.ranges[axis].start == self.ranges[axis].low for axis in axes)

    def vec(self, vec: Vec) -> None:
        stored = [out for out in vec.outputs if not self.empty(self.kept(out, vec.axes))]
        if not stored:
            return
        values: list[Array] = []
        for op in vec.ops:
            values.append(self.op(op, vec, values))
        shape = [self.ranges[a].end - self.ranges[a].start for a in vec.axes]
        for out in stored:
            self.output(out, vec.axes, np.broadcast_to(values[out.value], shape))

    def ring(self, ring: Ring) -> None:
        if self.empty(ring.axes):
            return
        target_memory, target = self.located(ring.target, ring.axes, writes=True)
        source = self.sum_over(self.value(ring.source.base), ring.source.terms, ring.axes)
        own = self.number % ring.cores
        holder = np.full(source.shape, own)
        for held in ring.held:
            x = self.sum_over(self.value(held.offset), held.terms, ring.axes)
            found = np.zeros(x.shape, bool)
            for p in range(held.parts):
                part = self.part(held, p * held.stride)
                inside = (x >= part.low) & (x < part.high)
                digit = own // held.stride % held.parts
                holder[inside] += (p - digit) * held.stride
                source[inside] += self.value(held.step) * (x[inside] - part.low)
                found |= inside
            if not found.all():
                raise CardError("a move reads what no core holds")
        buffer, size = self.program.buffers[ring.source.buffer], ring.source.dtype.bytes
        if source.min() < 0 or source.max() + size > buffer.bytes:
            raise CardError(f"an access outside of LX buffer {buffer.name}")
        for core in np.unique(holder):
            of = holder == core
            values = self.raw(self.everywhere[core], source[of] + buffer.offset, size)
            target_memory[target[of][:, None] + np.arange(size)] = values

    def kept(self, out: VecOut, axes: Sequence[int]) -> list[int]:
        """The axes that an output has: it stores nothing where one of them is empty."""
        return [axis for axis in axes if out.scan or not self.reduces(out, axis)]

    def reduces(self, out: VecOut, axis: int) -> bool:
        return bool(out.reduce) and all(term.axis != axis for term in out.place.terms)

    def op(self, op: VecOp, vec: Vec, values: list[Array]) -> Array:
        dtype = STORAGE[op.dtype.compute]
        match op.code:
            case forms.LOAD:
                return self.read(vec.inputs[op.args[0]], vec.axes)
            case forms.CONST:
                return np.asarray(op.number, dtype)
            case forms.SLOT:
                bits = struct.pack("<q", self.slots[op.args[0]])
                return np.asarray(struct.unpack("<d", bits)[0]).astype(dtype)
            case forms.INDEX:
                index = vec.indices[op.args[0]]
                return self.sum_over(self.value(index.offset), index.terms, vec.axes).astype(dtype)
        args = [values[number] for number in op.args]
        row = TABLE[_NAMES[op.code]]
        if row.meaning is None:
            return widened(cast(args[0], op.dtype), op.dtype)
        return np.asarray(row.meaning(*args)).astype(dtype)

    def output(self, out: VecOut, axes: tuple[int, ...], values: Array) -> None:
        if out.scan:
            self.write(out.place, axes, _FOLD[out.reduce or "sum"].accumulate(values, axis=-1))
            return
        if not out.reduce:
            self.write(out.place, axes, values)
            return
        reduced = [number for number, axis in enumerate(axes) if self.reduces(out, axis)]
        kept = self.kept(out, axes)
        fold = _FOLD[out.reduce]
        wide = values.astype(np.float64) if values.dtype.kind == "f" else values
        total = _reduced(fold, wide, tuple(reduced)).astype(values.dtype)
        if not self.first_trip([axes[number] for number in reduced]):
            total = fold(total, self.read(out.place, kept))
        self.write(out.place, kept, total)


def _reduced(fold: np.ufunc, values: Array, axes: tuple[int, ...]) -> Array:
    """Over several axes; an empty one gives the neutral element."""
    initial: Any = None
    if fold in (np.maximum, np.minimum):
        low = fold is np.maximum
        if values.dtype.kind == "f":
            initial = -np.inf if low else np.inf
        elif values.dtype.kind == "b":
            initial = not low
        else:
            limits = np.iinfo(values.dtype)
            initial = limits.min if low else limits.max
    if initial is None:
        return np.asarray(fold.reduce(values, axis=axes, dtype=values.dtype))
    return np.asarray(fold.reduce(values, axis=axes, initial=initial))
