"""The Program: what each unit of each core does. Emitted once, immutable, run many times.

One Program serves every core (SPMD) and a range of sizes: whatever differs between cores is
affine in the core's coordinates, whatever differs between launches is in the **symbol block**, an
array of int64 slots that the host computes before each launch (addresses, sizes, strides,
scalars). A `Value` is therefore an int or a slot.

Control. A program is a list of **sections**; all cores finish one before any starts the next (and
what it wrote to device memory or left in LX is visible to others then), unless the next one
**joins** it: no barrier stands between the two, each unit of a core goes on with what the next one
has for it. A section that joins holds loads and ring moves alone, of what nobody stores or writes
since the barrier before: operands of a later section arrive while this one works. A section has
**axes**: an extent, split over `parts` cores. Its body is a tree of tile loops and instructions.
Inside `Loop(axis, tile)` the axis ranges over the current tile [start, start + len), len <= tile;
outside of it, over the core's whole part [low, high). A core whose range of an axis that an
instruction uses is empty skips the instruction. (A reduction over an axis that is empty still
writes its neutral element, and a matmul with empty K writes zeros. A loop over an empty range makes
one trip, for their sake.)

Order. A core has five units: LOAD, STORE, PT, SFU, RING. Each takes its instructions in the order
of the (unrolled) body. Between units, order comes from LX **buffers** alone: every LX operand names
its buffer; an instruction that reads a buffer waits for the last instruction that wrote it, and one
that writes a buffer waits for the last that read or wrote it. A buffer with `slots` = 2 is double
buffered: consecutive rewrites (by trip of the innermost loop around the writer) alternate between
two copies, so the wait is for the reader before last. Buffers may share bytes: writing one also
waits for the last reads and writes of those that overlap it. Execution in body order is always a
legal order.

Between cores, order comes from barriers alone. RING reads the LX of other cores as the section
found it: what it reads was written before the last barrier, and nobody writes it between that and
the next one.

A right program means the same in every legal order; `csrc/card/check.h` proves it. So a read
through a buffer finds bytes that were last written through this buffer, in the slot written last,
and an instruction writes no byte of LX that it reads as another operand (a vector instruction may
store every point where it read it). Tensors in the pool are told apart by their slots: a slot whose
formula names the pool's is a tensor's address, and what is loaded through it (or a slot computed
from it) was last stored through it. Nor are elements taken apart: all places of a buffer have
elements of one size, whose bases and coefficients are multiples of it. LX has no byte order then:
a program means the same on every host. (Device memory is the host's own, as PyTorch sees it.)

Prologue. The first `prologue` sections only load bytes of arguments into buffers of one slot, which
nothing else of the program writes or overlaps: what they load stays in LX. A launch may leave them
out while LX still holds what the program's last launch has loaded with the same slots, and nobody
has written it in device memory since.

Operands. A place is base + sum over axes of coefficient x coordinate, in bytes. The coordinate is
absolute (ABSOLUTE), relative to the core's low (CORE), or relative to the start of the current
range (TILE). Device places use ABSOLUTE; LX tiles use TILE; LX tensors that keep a core's whole
slice use CORE.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Union

from openspyre.ir.kernel import DType, Space


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of the symbol block."""

    index: int


Value = Union[int, Slot]


class Given(Enum):
    """Where the host finds a slot's value."""

    ADDRESS = 0  # device address of argument `number` (element zero)
    SIZE = 1  # integer argument `number`
    SCALAR = 2  # host scalar argument `number`: a float64's bits
    POOL = 3  # address of the launch's pool of intermediates
    FORMULA = 4  # computed from earlier slots


class Calc(Enum):
    """Postfix formula over int64: CONST and SLOT push, the others combine the top two."""

    CONST = 0
    SLOT = 1
    ADD = 2
    MUL = 3
    FLOORDIV = 4
    MOD = 5
    MIN = 6
    MAX = 7


@dataclass(frozen=True, slots=True)
class SlotDef:
    """One slot: what it holds. `formula` is postfix, for FORMULA only."""

    given: Given
    number: int = 0
    formula: tuple[tuple[Calc, int], ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A range of every core's LX: bytes of one slot, one or two slots back to back."""

    name: str
    offset: int
    bytes: int
    slots: int = 1


class Origin(Enum):
    ABSOLUTE = 0
    CORE = 1
    TILE = 2


@dataclass(frozen=True, slots=True)
class Term:
    """coefficient (bytes) x coordinate of an axis of the section."""

    axis: int
    coefficient: Value
    origin: Origin


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operand's element lies. LX: base is relative to the buffer (and its slot)."""

    space: Space
    dtype: DType
    base: Value
    terms: tuple[Term, ...]
    buffer: int = -1  # LX: the buffer's number
    argument: int = -1  # device memory: the argument's number, -1 for the pool


@dataclass(frozen=True, slots=True)
class Indirect:
    """Adds coefficient (bytes) x index to a device place; the index is read from LX.

    An index outside [0, size) after `wrap` stops the card with "index out of range" (naming the
    instruction's source), unless `clamp`: the element is then 0 (loads) or not written (stores).

    Attributes:
        distinct: no two points of the axes that `place` walks, of all cores, read the same index:
            so whoever made the program has proved, and cores may store by it side by side.
    """

    place: Place
    coefficient: Value
    size: Value
    wrap: bool
    clamp: bool
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class Bound:
    """Only elements with 0 <= offset + sum(coefficient x absolute coordinate) < size move.

    Others are 0 in the destination of a load. Terms' origins are ABSOLUTE, coefficients count
    elements.
    """

    terms: tuple[Term, ...]
    offset: Value
    size: Value


@dataclass(frozen=True, slots=True)
class Copy:
    """LOAD (device memory to LX) or STORE (LX to device memory), by the spaces of its places.

    Moves the element at every point of `axes`. Elements keep their bytes: both dtypes are equal.
    `indirect` applies to the device side. `add` (stores) adds to what is there, in row-major order
    of the axes, in the element's dtype (f32 inside).
    """

    axes: tuple[int, ...]
    source: Place
    target: Place
    indirect: tuple[Indirect, ...] = ()
    bounds: tuple[Bound, ...] = ()
    add: bool = False
    origin: int = -1  # number in Program.sources


@dataclass(frozen=True, slots=True)
class Pt:
    """c[batch, m, n] (+)= sum over k of a[batch, m, k] * b[batch, k, n], in fp32.

    a, b: f16, bf16, f32 or fp8 in LX (of one dtype, or both fp8 of either kind); c rounds once when
    it is stored, to f16 or bf16, or is f32.
    The stick dim of b is n and that of a is k: the last axis of `n` (of `k`) has a coefficient of
    one element in b (in a); the last axis of `n` has one element in c.
    c starts from zero when every enclosing loop over an axis of `k` is at its first trip, and
    continues from c's stored f32 otherwise (c must be f32 then).
    """

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    a: Place
    b: Place
    c: Place
    origin: int = -1


@dataclass(frozen=True, slots=True)
class VecOp:
    """One node of a vector program; its value's number is its position.

    code: an op of the table, or LOAD (args[0] = input number), CONST (number), SLOT (args[0] = the
    slot, a float64's bits, for scalars), INDEX (args[0] = number in `indices`).
    dtype: the class of the value; for `cast` the dtype it rounds to.
    """

    code: int
    dtype: DType
    args: tuple[int, ...] = ()
    number: float | int = 0


@dataclass(frozen=True, slots=True)
class VecIndex:
    """An index value: offset + sum of coefficient x absolute coordinate (counts, not bytes)."""

    terms: tuple[Term, ...]
    offset: Value


@dataclass(frozen=True, slots=True)
class VecOut:
    """Stores value number `value` at `place`; with `reduce`, combines over the axes not in it.

    A reduction starts from its neutral element when every enclosing loop over a reduced axis is at
    its first trip, and from the stored value otherwise. `scan`: keep every running value along
    the last axis instead (place has it; a carry across trips is not supported: one trip).
    """

    value: int
    place: Place
    reduce: str | None = None
    scan: bool = False


@dataclass(frozen=True, slots=True)
class Vec:
    """The SFU walks `axes` (the last one is the lanes) and evaluates `ops` at every point.

    Float ops are f32, integer ops wrap at their class. Stores round (or wrap) to the place's dtype.
    `axes` contain the reduced axes; a reduced axis has no term in its output's place.
    """

    axes: tuple[int, ...]
    inputs: tuple[Place, ...]
    indices: tuple[VecIndex, ...]
    ops: tuple[VecOp, ...]
    outputs: tuple[VecOut, ...]
    origin: int = -1


@dataclass(frozen=True, slots=True)
class Holding:
    """One dim along which the source of a `Ring` is spread over cores.

    Point x = offset + sum(coefficient x absolute coordinate), 0 <= x < extent, lies in the part
    that an `Axis` of this extent, parts and granule would give it, and its number is the digit of
    the holder at `stride`. `step` (bytes) x (x - the part's low) is added to the source's place.
    Terms' origins are ABSOLUTE, coefficients count points.
    """

    terms: tuple[Term, ...]
    offset: Value
    extent: Value
    parts: int
    stride: int
    granule: int
    step: Value


@dataclass(frozen=True, slots=True)
class Ring:
    """RING: the element at every point of `axes` comes from the LX of the core that holds it.

    Cores [0, cores) hold the source. The holder's number has the digits that `held` says; the
    others are those of the reader's number modulo `cores`, so that what every core holds is read
    at home. Both places are in LX and of one dtype; the source is a buffer of one slot, its terms'
    origins are ABSOLUTE. Cores that read the same points of one holder share a message.
    """

    axes: tuple[int, ...]
    source: Place
    target: Place
    held: tuple[Holding, ...]
    cores: int
    origin: int = -1


Instr = Union[Copy, Pt, Vec, Ring]


@dataclass(frozen=True, slots=True)
class TileLoop:
    """Walks the core's part of an axis in tiles of at most `tile` points."""

    axis: int
    tile: int
    body: tuple[Node, ...]


Node = Union[TileLoop, Copy, Pt, Vec, Ring]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a section and its split over cores (see `kernel.Part`; parts = 1: not split)."""

    name: str
    extent: Value
    parts: int = 1
    stride: int = 1
    granule: int = 1


@dataclass(frozen=True, slots=True)
class Section:
    """Work of cores with one split. Cores beyond the product of parts stay idle.

    Attributes:
        joins: no barrier stands before it. It holds nothing but loads without a lookup and ring
            moves, outside of loops; it stands behind the first section that is not of the prologue.
    """

    name: str
    axes: tuple[Axis, ...]
    body: tuple[Node, ...]
    joins: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """An executable for a card.

    Attributes:
        slots: definitions of the symbol block, in order (a formula uses earlier slots).
        pool_bytes: device memory that one launch needs for intermediates.
        arguments: how many addresses, sizes and scalars a launch passes.
        sources: the user's ops, named by instructions' `origin`.
        prologue: how many of the sections, the first ones, load what stays in LX.
    """

    name: str
    slots: tuple[SlotDef, ...]
    buffers: tuple[Buffer, ...]
    sections: tuple[Section, ...]
    pool_bytes: int
    arguments: tuple[int, int, int]
    sources: tuple[str, ...]
    prologue: int = 0


def rounds(sections: Iterable[Section]) -> tuple[tuple[Section, ...], ...]:
    """The sections between two barriers: one, and those that join it."""
    found: list[list[Section]] = []
    for section in sections:
        if section.joins and found:
            found[-1].append(section)
        else:
            found.append([section])
    return tuple(map(tuple, found))
