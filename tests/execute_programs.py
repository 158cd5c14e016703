"""Small Programs by hand, and running them on the software card with numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from openspyre.card.formats import FP8_143, FP8_152
from openspyre.card.native import SoftwareCard
from openspyre.ir.kernel import DType, Space
from openspyre.ir.program import (
    Axis,
    Buffer,
    Given,
    Node,
    Origin,
    Place,
    Program,
    Section,
    Slot,
    SlotDef,
    Term,
    Value,
)

FP8 = {DType.F8E4M3: FP8_143, DType.F8E5M2: FP8_152}  # numpy has no fp8
Array = np.ndarray[Any, np.dtype[Any]]
STORAGE: Mapping[DType, Any] = {
    DType.F16: np.float16,
    DType.BF16: np.uint16,
    DType.F32: np.float32,
    DType.I64: np.int64,
    DType.I32: np.int32,
    DType.I16: np.int16,
    DType.I8: np.int8,
    DType.U8: np.uint8,
    DType.BOOL: np.bool_,
    DType.F8E4M3: np.uint8,
    DType.F8E5M2: np.uint8,
}


def to_bf16(values: Array) -> Array:
    """float32 to bfloat16 bits, to nearest even (finite values)."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_fp8(values: Array, dtype: DType) -> Array:
    """The codes of values, to nearest even; what is too large saturates where torch does."""
    most = 448.0 if dtype is DType.F8E4M3 else np.inf
    return FP8[dtype].encode(np.clip(values, -most, most)).astype(np.uint8)


def stored(values: Array, dtype: DType) -> Array:
    """The bytes of values in a dtype, as an array of its storage type."""
    if dtype in FP8:
        return to_fp8(values, dtype)
    return to_bf16(values) if dtype is DType.BF16 else np.asarray(values).astype(STORAGE[dtype])


def widened(data: Array, dtype: DType) -> Array:
    """Values of stored data: float32 for floats."""
    if dtype in FP8:
        return FP8[dtype].decode(data).astype(np.float32)
    if dtype is DType.BF16:
        return from_bf16(data)
    return data.astype(np.float32) if dtype.is_float else data


def contiguous(shape: Sequence[int], item: int) -> list[int]:
    """Byte strides of a row-major array."""
    strides, step = [], item
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return strides[::-1]


def device(
    argument: int, dtype: DType, strides: Mapping[int, Value], base: Value | None = None
) -> Place:
    """A device operand: address slot `argument` (or a fixed base), byte strides by axis."""
    terms = tuple(Term(axis, step, Origin.ABSOLUTE) for axis, step in strides.items())
    if base is not None:
        return Place(Space.DEVICE, dtype, base, terms)
    return Place(Space.DEVICE, dtype, Slot(argument), terms, argument=argument)


def lx(
    buffer: int,
    dtype: DType,
    strides: Mapping[int, Value],
    origin: Origin = Origin.TILE,
    base: int = 0,
) -> Place:
    """An LX operand, byte strides by axis."""
    terms = tuple(Term(axis, step, origin) for axis, step in strides.items())
    return Place(Space.LX, dtype, base, terms, buffer=buffer)


def buffers(*sizes: int) -> tuple[Buffer, ...]:
    """Buffers one after another, each at a stick."""
    found, offset = [], 0
    for number, size in enumerate(sizes):
        found.append(Buffer(f"b{number}", offset, size))
        offset += -(-max(size, 1) // 128) * 128
    return tuple(found)


def program(
    axes: Sequence[Axis],
    body: Sequence[Node],
    lx_buffers: Sequence[Buffer],
    arguments: int,
    *,
    sizes: int = 0,
    scalars: int = 0,
    sections: Sequence[Section] = (),
    sources: Sequence[str] = ("here",),
) -> Program:
    """One section; slots are addresses, then sizes, then scalars."""
    slots = [SlotDef(Given.ADDRESS, i) for i in range(arguments)]
    slots += [SlotDef(Given.SIZE, i) for i in range(sizes)]
    slots += [SlotDef(Given.SCALAR, i) for i in range(scalars)]
    every = tuple(sections) or (Section("s", tuple(axes), tuple(body)),)
    return Program(
        "test",
        tuple(slots),
        tuple(lx_buffers),
        every,
        0,
        (arguments, sizes, scalars),
        tuple(sources),
    )


def run(
    card: SoftwareCard,
    prog: Program,
    arrays: Sequence[Array],
    *,
    sizes: Sequence[int] = (),
    scalars: Sequence[float] = (),
    offsets: Sequence[int] = (),
) -> list[Array]:
    """The arrays after a launch. Each lies at its own alignment-128 block, plus an offset."""
    shift = [*offsets, *[0] * (len(arrays) - len(offsets))]
    addresses = []
    for array, offset in zip(arrays, shift, strict=True):
        address = card.allocate(array.nbytes + offset + 128) + offset
        card.write(address, np.ascontiguousarray(array).tobytes())
        addresses.append(address)
    loaded = card.load_program(prog)
    try:
        card.launch(loaded, addresses, sizes, scalars)
    finally:
        card.unload(loaded)
    return [
        np.frombuffer(card.read(address, array.nbytes), array.dtype).reshape(array.shape)
        for address, array in zip(addresses, arrays, strict=True)
    ]
