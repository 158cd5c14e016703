"""Sets of bytes as big integers, and memories that know how each of their bytes came about."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Dims = tuple[tuple[int, int], ...]  # count and stride of every dim


class Bytes(NamedTuple):
    """Byte low + n is in the set where bit n of `bits` is one."""

    low: int
    bits: int

    @property
    def high(self) -> int:
        """The byte behind the last one."""
        return self.low + self.bits.bit_length()

    def meets(self, other: Bytes) -> bool:
        if self.low >= other.high or other.low >= self.high:
            return False
        return self.common(other).bits != 0

    def common(self, other: Bytes) -> Bytes:
        low = max(self.low, other.low)
        return Bytes(low, (self.bits >> (low - self.low)) & (other.bits >> (low - other.low)))

    def joined(self, other: Bytes) -> Bytes:
        low = min(self.low, other.low)
        return Bytes(low, self.bits << (self.low - low) | other.bits << (other.low - low))

    def without(self, other: Bytes) -> Bytes:
        shift = other.low - self.low
        taken = other.bits << shift if shift >= 0 else other.bits >> -shift
        return Bytes(self.low, self.bits & ~taken)

    def moved(self, by: int) -> Bytes:
        return Bytes(self.low + by, self.bits)

    def repeated(self, count: int, stride: int) -> Bytes:
        """The set and count - 1 copies of it, each a stride further."""
        if count <= 0:
            return NONE
        have, bits = 1, self.bits
        while have < count and stride:  # twice as many each time
            more = min(have, count - have)
            bits |= bits << more * abs(stride)
            have += more
        return Bytes(self.low + min(stride, 0) * (count - 1), bits)


NONE = Bytes(0, 0)


def run(low: int, high: int) -> Bytes:
    return Bytes(low, _ones(max(high - low, 0)))


@lru_cache(maxsize=512)
def _ones(count: int) -> int:
    return (1 << count) - 1


def box(start: int, dims: Dims, size: int) -> Bytes:
    """`size` bytes at start + sum of stride x [0, count) over the dims."""
    return _box(dims, size).moved(start)


@lru_cache(maxsize=1024)
def _box(dims: Dims, size: int) -> Bytes:
    found = run(0, size)
    for count, stride in sorted(dims, key=lambda dim: abs(dim[1])):
        found = found.repeated(count, stride)
    return found


def points(at: Array, size: int) -> Bytes:
    """`size` bytes at each of some places."""
    if at.size == 0:
        return NONE
    low = int(at.min())
    there = np.zeros(int(at.max()) + size - low, bool)
    for byte in range(size):
        there[at - low + byte] = True
    return Bytes(low, int.from_bytes(np.packbits(there, bitorder="little").tobytes(), "little"))


def name_of(*parts: object) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()


class Piece(NamedTuple):
    """Bytes with one history: byte x is byte x - origin of what `name` stands for.

    `sums` are what was added to it since, in an order that has no meaning: names, and origins
    relative to this one.
    """

    where: Bytes
    name: bytes
    origin: int
    sums: tuple[tuple[bytes, int], ...] = ()

    def moved(self, by: int) -> Piece:
        return self._replace(where=self.where.moved(by), origin=self.origin + by)


class Memory:
    """Pieces that share no byte and cover all bytes."""

    def __init__(self, name: bytes, low: int, high: int) -> None:
        self.name, self.low, self.high = name, low, high
        self.read_first = False  # whether bytes were read that nothing had written
        self.whole = run(low, high)
        self.pieces = [Piece(self.whole, name, 0)]

    def read(self, where: Bytes) -> list[Piece]:
        """The pieces of some of its bytes; those of one history as one, in order of their bytes."""
        found: dict[tuple[object, ...], Bytes] = {}
        for piece in self.pieces:
            if len(self.pieces) == 1:  # it is all bytes, and mostly many
                part = where
            elif piece.where.low < where.high and where.low < piece.where.high:
                part = piece.where.common(where)
            else:
                continue
            if part.bits:
                self.read_first |= piece.name == self.name
                key = piece[1:]
                found[key] = found[key].joined(part) if key in found else part
        pieces = [Piece(part, *key) for key, part in found.items()]  # type: ignore[arg-type]
        return sorted(pieces, key=lambda p: _first(p.where))

    def content(self, where: Bytes, origin: int) -> bytes:
        """A name for what some bytes hold, counted from an origin.

        Bytes of one history are told by this history, others byte by byte."""
        pieces = self.read(where)
        parts: list[object] = []
        for piece in pieces:
            parts += [piece.name, piece.origin - origin, piece.sums]
            if len(pieces) > 1:
                first = _first(piece.where)
                bits = piece.where.bits >> (first - piece.where.low)
                parts += [first - origin, bits.to_bytes((bits.bit_length() + 7) // 8, "little")]
        return name_of(*parts)

    def write(self, where: Bytes, pieces: Iterable[Piece]) -> None:
        """Replaces what the bytes hold. The pieces lie in them."""
        kept = []
        for piece in self.pieces:
            if piece.where.low < where.high and where.low < piece.where.high:
                rest = piece.where.without(where)
                if not rest.bits:
                    continue
                piece = piece._replace(where=rest)
            kept.append(piece)
        self.pieces = [*kept, *pieces]

    def add(self, where: Bytes, name: bytes, origin: int) -> None:
        """Adds something to what the bytes hold."""
        changed = [
            piece._replace(sums=tuple(sorted((*piece.sums, (name, origin - piece.origin)))))
            for piece in self.read(where)
        ]
        self.write(where, changed)


def _first(where: Bytes) -> int:
    if where.bits & 1:
        return where.low
    return where.low + (where.bits & -where.bits).bit_length() - 1
