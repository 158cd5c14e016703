"""Files in llama.cpp's GGUF form, version 3: what they say, and their tensors as float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openspyre.hf.reading import Reader

Floats = NDArray[np.float32]
VERSION = 3
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_LONGEST = 1 << 24  # entries of an array, bytes of a string


@dataclass(frozen=True, slots=True)
class Stored:
    """How a type of tensor lies in the file: blocks of `block` elements in `size` bytes."""

    name: str
    block: int
    size: int
    floats: Callable[[NDArray[np.uint8]], Floats]  # [blocks, size] to [blocks, block]


@dataclass(frozen=True, slots=True)
class Gguf:
    """A file's facts and tensors, each a shape (outermost first) and its bytes."""

    facts: Mapping[str, Any]
    tensors: Mapping[str, tuple[tuple[int, ...], Stored, memoryview]]

    def floats(self, name: str) -> Floats:
        """A tensor, dequantised."""
        shape, stored, data = self.tensors[name]
        blocks = np.frombuffer(data, np.uint8).reshape(-1, stored.size)
        return stored.floats(blocks).reshape(shape)


def read_gguf(path: Path) -> Gguf:
    """A file, memory mapped.

    Raises:
        SpyreError: it is no GGUF of version 3, ends early, or has a type that is not known here.
    """
    data = memoryview(np.memmap(path, np.uint8, "r"))  # type: ignore[arg-type]
    reader = Reader(path.name, data)
    if bytes(reader.bytes(4)) != b"GGUF" or reader.one("I") != VERSION:
        raise reader.malformed(f"it is no GGUF of version {VERSION}")
    tensors, facts = reader.many("Q", 2)
    known = {_text(reader): _value(reader, reader.one("I")) for _ in range(facts)}
    infos = [_info(reader) for _ in range(tensors)]
    align = int(known.get("general.alignment", 32))
    start = reader.at + -reader.at % align
    found = {}
    for name, shape, stored, offset in infos:
        reader.at = start + offset
        found[name] = shape, stored, reader.bytes(math.prod(shape) // stored.block * stored.size)
    return Gguf(known, found)


def _text(reader: Reader) -> str:
    return bytes(reader.bytes(_bounded(reader, reader.one("Q")))).decode()


def _bounded(reader: Reader, count: int) -> int:
    if count > _LONGEST:
        raise reader.malformed(f"something before byte {reader.at} has {count} entries")
    return count


def _value(reader: Reader, kind: int) -> Any:
    if kind == _STRING:
        return _text(reader)
    if kind == _ARRAY:
        inner, count = reader.one("I"), _bounded(reader, reader.one("Q"))
        if inner in _SCALARS:
            return list(reader.many(_SCALARS[inner], count))
        return [_value(reader, inner) for _ in range(count)]
    if kind not in _SCALARS:
        raise reader.malformed(f"a fact before byte {reader.at} has the unknown type {kind}")
    return reader.one(_SCALARS[kind])


def _info(reader: Reader) -> tuple[str, tuple[int, ...], Stored, int]:
    name = _text(reader)
    sizes = reader.many("Q", _bounded(reader, reader.one("I")))
    kind, offset = reader.one("I"), reader.one("Q")
    if kind not in STORED:
        raise reader.malformed(f"{name} has the type {kind}, which is not known here")
    stored = STORED[kind]
    if not sizes or sizes[0] % stored.block:
        raise reader.malformed(f"the rows of {name} {sizes} are no blocks of {stored.block}")
    return name, tuple(reversed(sizes)), stored, offset


def _f32(blocks: NDArray[np.uint8]) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: NDArray[np.uint8]) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _q4_1(blocks: NDArray[np.uint8]) -> Floats:
    """fp16 step and least value, then 16 bytes: low halves first, then the high ones."""
    step, least = (blocks[:, i : i + 2].copy().view("<f2").astype(np.float32) for i in (0, 2))
    halves = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    return step * halves.astype(np.float32) + least


def _q8_0(blocks: NDArray[np.uint8]) -> Floats:
    """fp16 step, then 32 signed bytes."""
    step = blocks[:, :2].copy().view("<f2").astype(np.float32)
    return step * blocks[:, 2:].view(np.int8).astype(np.float32)


STORED: Mapping[int, Stored] = {
    0: Stored("F32", 1, 4, _f32),
    1: Stored("F16", 1, 2, _f16),
    3: Stored("Q4_1", 32, 20, _q4_1),
    8: Stored("Q8_0", 32, 34, _q8_0),
}
