"""The binary form of a Program: what lies in card memory and in the disk cache.

A stream of little-endian 64-bit words. Header (5 words): magic, format version, number of words
after the header, CRC-32 of them (as bytes), 0. Then, in this order:

    text        name                          text: byte count, bytes padded with zeros to a word
    list        SlotDef   given, number, text name, list of (calc, operand)
    list        Buffer    text name, offset, bytes, slots
    word        pool_bytes
    3 words     arguments: addresses, sizes, scalars
    word        prologue
    list        text      sources
    list        Section   text name, joins, list of Axis, list of Node

    list        count, then the items
    Axis        text name, Value extent, parts, stride, granule
    Value       0, the integer | 1, the slot's number
    Term        axis, Value coefficient, origin
    Place       space (0 device, 1 lx), dtype code, Value base, list of Term, buffer, argument
    Bound       list of Term, Value offset, Value size
    Indirect    Place, Value coefficient, Value size, wrap, clamp, distinct
    Node        0: Loop   axis, tile, list of Node
                1: Copy   list axes, Place source, Place target, list of Indirect, list of Bound,
                          add, origin
                2: Pt     lists batch, m, n, k, Places a, b, c, origin
                3: Vec    list axes, list of Place, list of (list of Term, Value offset),
                          list of VecOp, list of VecOut, origin
                4: Ring   list axes, Place source, Place target, list of Holding,
                          cores, origin
    Holding     list of Term, Value offset, Value extent, parts, stride, granule, Value step
    VecOp       code, dtype code, list args, number (float64 bits for a float class, else the
                integer)
    VecOut      value, Place, reduce code (0: none, else ir/ops.py REDUCTIONS), scan

Dtype codes: f16 0, bf16 1, f32 2, i64 3, i32 4, i16 5, i8 6, u8 7, b1 8, f8e4m3 9,
f8e5m2 10.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar, assert_never

from openspyre.errors import InvalidProgram
from openspyre.ir.kernel import DType, Space
from openspyre.ir.ops import CONST, REDUCTIONS
from openspyre.ir.program import (
    Axis,
    Bound,
    Buffer,
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
    SlotDef,
    Term,
    TileLoop,
    Value,
    Vec,
    VecIndex,
    VecOp,
    VecOut,
)

MAGIC = 0x4552595053  # "SPYRE"
VERSION = 5
HEADER_WORDS = 5
DTYPES: tuple[DType, ...] = tuple(DType)
_CODE: Mapping[DType, int] = MappingProxyType({d: i for i, d in enumerate(DTYPES)})
_REDUCE_NAME: Mapping[int, str] = MappingProxyType(
    {code: name for name, code in REDUCTIONS.items()}
)
_SPACES = (Space.DEVICE, Space.LX)
_MALFORMED = (IndexError, ValueError, KeyError, RecursionError, OverflowError)
T = TypeVar("T")


def encode(program: Program) -> bytes:
    """The binary form; `decode(encode(p)) == p`."""
    return encoder(program)(program.sections)


def encoder(program: Program) -> Callable[[Iterable[Section]], bytes]:
    """What gives the binary form of the program with other sections: the rest is written once."""
    out = _Writer()
    out.text(program.name)
    out.items(program.slots, out.slot_def)
    out.items(program.buffers, out.buffer)
    out.word(program.pool_bytes)
    for count in program.arguments:
        out.word(count)
    out.word(program.prologue)
    out.items(program.sources, out.text)
    front = out.packed()

    def encoded(sections: Iterable[Section]) -> bytes:
        end = _Writer()
        end.items(sections, end.section)
        return _framed(front + end.packed())

    return encoded


def decode(data: bytes) -> Program:
    """Reads what `encode` wrote.

    Raises:
        InvalidProgram: the bytes are truncated, corrupted, of another version or malformed.
    """
    source = _Reader(_body(data))
    try:
        name, slots, buffers, pool, arguments, prologue = source.front()
        sources = source.items(source.text)
        sections = source.items(source.section)
    except _MALFORMED as error:
        raise InvalidProgram("the program is malformed", why=str(error)) from None
    if source.position != len(source.words):
        raise InvalidProgram("the program is malformed", why="words are left over")
    return Program(name, slots, buffers, sections, pool, arguments, sources, prologue)


def with_sources(data: bytes, renamed: Callable[[str], str]) -> bytes:
    """The program with every source renamed. Quick: instructions are not looked at.

    Raises:
        InvalidProgram: the bytes are truncated, corrupted or of another version.
    """
    source, out = _Reader(_body(data)), _Writer()
    try:
        source.front()
        start = source.position
        out.items(map(renamed, source.items(source.text)), out.text)
    except _MALFORMED as error:
        raise InvalidProgram("the program is malformed", why=str(error)) from None
    body = memoryview(data)[8 * HEADER_WORDS :]
    return _framed(b"".join((body[: 8 * start], out.packed(), body[8 * source.position :])))


def _framed(body: bytes) -> bytes:
    return struct.pack("<5q", MAGIC, VERSION, len(body) // 8, zlib.crc32(body), 0) + body


def _body(data: bytes) -> tuple[int, ...]:
    """The words after the header, which fits them."""
    if len(data) < 8 * HEADER_WORDS or len(data) % 8:
        raise InvalidProgram("the program is truncated", why=f"{len(data)} bytes")
    magic, version, count, checksum, _ = struct.unpack_from("<5q", data)
    if magic != MAGIC:
        raise InvalidProgram("this is not a program", why=f"it starts with {magic:#x}")
    if version != VERSION:
        raise InvalidProgram(
            f"the program has format version {version}",
            why=f"this openspyre reads version {VERSION}",
            hint="delete the program cache",
        )
    body = memoryview(data)[8 * HEADER_WORDS :]
    if count * 8 != len(body) or zlib.crc32(body) != checksum:
        raise InvalidProgram("the program is corrupted", why="length or checksum do not match")
    return struct.unpack(f"<{count}q", body)


class _Writer:
    def __init__(self) -> None:
        self.words: list[int] = []

    def packed(self) -> bytes:
        return struct.pack(f"<{len(self.words)}q", *self.words)

    def word(self, value: int) -> None:
        self.words.append(int(value))

    def items(self, items: Iterable[T], write: Callable[[T], None]) -> None:
        kept = tuple(items)
        self.word(len(kept))
        for item in kept:
            write(item)

    def text(self, text: str) -> None:
        raw = text.encode()
        self.word(len(raw))
        padded = raw + b"\0" * (-len(raw) % 8)
        self.words += struct.unpack(f"<{len(padded) // 8}q", padded)

    def value(self, value: Value) -> None:
        if isinstance(value, Slot):
            self.words += (1, value.index)
        else:
            self.words += (0, int(value))

    def slot_def(self, slot: SlotDef) -> None:
        self.words += (slot.given.value, slot.number)
        self.text(slot.name)
        self.word(len(slot.formula))
        for calc, operand in slot.formula:
            self.words += (calc.value, operand)

    def buffer(self, buffer: Buffer) -> None:
        self.text(buffer.name)
        self.words += (buffer.offset, buffer.bytes, buffer.slots)

    def section(self, section: Section) -> None:
        self.text(section.name)
        self.word(int(section.joins))
        self.items(section.axes, self.axis)
        self.items(section.body, self.node)

    def axis(self, axis: Axis) -> None:
        self.text(axis.name)
        self.value(axis.extent)
        self.words += (axis.parts, axis.stride, axis.granule)

    def term(self, term: Term) -> None:
        self.word(term.axis)
        self.value(term.coefficient)
        self.word(term.origin.value)

    def place(self, place: Place) -> None:
        self.words += (_SPACES.index(place.space), _CODE[place.dtype])
        self.value(place.base)
        self.items(place.terms, self.term)
        self.words += (place.buffer, place.argument)

    def bound(self, bound: Bound) -> None:
        self.items(bound.terms, self.term)
        self.value(bound.offset)
        self.value(bound.size)

    def indirect(self, indirect: Indirect) -> None:
        self.place(indirect.place)
        self.value(indirect.coefficient)
        self.value(indirect.size)
        self.words += (indirect.wrap, indirect.clamp, indirect.distinct)

    def holding(self, held: Holding) -> None:
        self.items(held.terms, self.term)
        self.value(held.offset)
        self.value(held.extent)
        self.words += (held.parts, held.stride, held.granule)
        self.value(held.step)

    def node(self, node: Node) -> None:
        match node:
            case TileLoop(axis, tile, body):
                self.words += (0, axis, tile)
                self.items(body, self.node)
            case Copy():
                self.word(1)
                self.items(node.axes, self.word)
                self.place(node.source)
                self.place(node.target)
                self.items(node.indirect, self.indirect)
                self.items(node.bounds, self.bound)
                self.words += (node.add, node.origin)
            case Pt():
                self.word(2)
                for axes in (node.batch, node.m, node.n, node.k):
                    self.items(axes, self.word)
                for place in (node.a, node.b, node.c):
                    self.place(place)
                self.word(node.origin)
            case Vec():
                self.word(3)
                self.items(node.axes, self.word)
                self.items(node.inputs, self.place)
                self.items(node.indices, self.vec_index)
                self.items(node.ops, self.vec_op)
                self.items(node.outputs, self.vec_out)
                self.word(node.origin)
            case Ring():
                self.word(4)
                self.items(node.axes, self.word)
                self.place(node.source)
                self.place(node.target)
                self.items(node.held, self.holding)
                self.words += (node.cores, node.origin)
            case _:
                assert_never(node)

    def vec_index(self, index: VecIndex) -> None:
        self.items(index.terms, self.term)
        self.value(index.offset)

    def vec_op(self, op: VecOp) -> None:
        self.words += (op.code, _CODE[op.dtype])
        self.items(op.args, self.word)
        if op.code == CONST and op.dtype.is_float:
            self.word(struct.unpack("<q", struct.pack("<d", op.number))[0])
        else:
            self.word(int(op.number))

    def vec_out(self, out: VecOut) -> None:
        self.word(out.value)
        self.place(out.place)
        self.words += (REDUCTIONS[out.reduce] if out.reduce else 0, out.scan)


class _Reader:
    def __init__(self, words: tuple[int, ...]) -> None:
        self.words = words
        self.position = 0

    def word(self) -> int:
        if self.position >= len(self.words):
            raise IndexError("the words end early")
        self.position += 1
        return self.words[self.position - 1]

    def items(self, read: Callable[[], T]) -> tuple[T, ...]:
        count = self.word()
        if not 0 <= count <= len(self.words):
            raise ValueError(f"a list of {count} items")
        return tuple(read() for _ in range(count))

    def text(self) -> str:
        count = self.word()
        if not 0 <= count <= 8 * len(self.words):
            raise ValueError(f"a text of {count} bytes")
        words = [self.word() for _ in range((count + 7) // 8)]
        return struct.pack(f"<{len(words)}q", *words)[:count].decode()

    def front(
        self,
    ) -> tuple[str, tuple[SlotDef, ...], tuple[Buffer, ...], int, tuple[int, int, int], int]:
        """What stands before the sources: name, slots, buffers, bytes of the pool, arguments,
        sections of the prologue.
        """
        name, slots, buffers = self.text(), self.items(self.slot_def), self.items(self.buffer)
        pool, arguments = self.word(), (self.word(), self.word(), self.word())
        return name, slots, buffers, pool, arguments, self.word()

    def value(self) -> Value:
        tag, number = self.word(), self.word()
        return Slot(number) if tag else number

    def slot_def(self) -> SlotDef:
        given, number, name = Given(self.word()), self.word(), self.text()
        return SlotDef(given, number, self.items(lambda: (Calc(self.word()), self.word())), name)

    def buffer(self) -> Buffer:
        return Buffer(self.text(), self.word(), self.word(), self.word())

    def section(self) -> Section:
        name, joins = self.text(), bool(self.word())
        return Section(name, self.items(self.axis), self.items(self.node), joins)

    def axis(self) -> Axis:
        return Axis(self.text(), self.value(), self.word(), self.word(), self.word())

    def term(self) -> Term:
        return Term(self.word(), self.value(), Origin(self.word()))

    def dtype(self) -> DType:
        code = self.word()
        if not 0 <= code < len(DTYPES):
            raise ValueError(f"dtype code {code}")
        return DTYPES[code]

    def place(self) -> Place:
        space = _SPACES[bool(self.word())]
        return Place(
            space, self.dtype(), self.value(), self.items(self.term), self.word(), self.word()
        )

    def bound(self) -> Bound:
        return Bound(self.items(self.term), self.value(), self.value())

    def indirect(self) -> Indirect:
        place, coefficient, size = self.place(), self.value(), self.value()
        return Indirect(place, coefficient, size, *(bool(self.word()) for _ in range(3)))

    def holding(self) -> Holding:
        return Holding(
            self.items(self.term),
            self.value(),
            self.value(),
            self.word(),
            self.word(),
            self.word(),
            self.value(),
        )

    def node(self) -> Node:
        match self.word():
            case 0:
                return TileLoop(self.word(), self.word(), self.items(self.node))
            case 1:
                return Copy(
                    self.items(self.word),
                    self.place(),
                    self.place(),
                    self.items(self.indirect),
                    self.items(self.bound),
                    bool(self.word()),
                    self.word(),
                )
            case 2:
                batch, m, n, k = (self.items(self.word) for _ in range(4))
                return Pt(batch, m, n, k, self.place(), self.place(), self.place(), self.word())
            case 3:
                return Vec(
                    self.items(self.word),
                    self.items(self.place),
                    self.items(lambda: VecIndex(self.items(self.term), self.value())),
                    self.items(self.vec_op),
                    self.items(self.vec_out),
                    self.word(),
                )
            case 4:
                return Ring(
                    self.items(self.word),
                    self.place(),
                    self.place(),
                    self.items(self.holding),
                    self.word(),
                    self.word(),
                )
            case other:
                raise ValueError(f"node kind {other}")

    def vec_op(self) -> VecOp:
        code, dtype, args, raw = self.word(), self.dtype(), self.items(self.word), self.word()
        number: float | int = raw
        if code == CONST and dtype.is_float:
            number = struct.unpack("<d", struct.pack("<q", raw))[0]
        return VecOp(code, dtype, args, number)

    def vec_out(self) -> VecOut:
        value, place, code = self.word(), self.place(), self.word()
        return VecOut(value, place, _REDUCE_NAME[code] if code else None, bool(self.word()))
