"""The memory of a kept launch as arrays, by the tensors of its kernel. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from openspyre.ir.elements import decoded, encoded
from openspyre.ir.kernel import Kernel, Role, Tensor
from openspyre.ir.ops import Array
from openspyre.ir.reference import cast
from openspyre.runtime.saved import Launch

_WRITTEN = (Role.OUTPUT, Role.MUTATED)
Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LaunchValues:
    """What a launch found and what it left.

    Attributes:
        given: every argument before it, outputs included.
        left: outputs and mutated inputs after it.
    """

    sizes: Sizes
    given: Mapping[str, Array]
    left: Mapping[str, Array]


def launch_values(
    region: Kernel, launch: Launch, after: Sequence[bytes] | None = None
) -> LaunchValues:
    """The values of a launch whose memory was kept.

    Args:
        after: the blocks after it, where they are not those that were kept.
    """
    sizes = dict(zip(region.symbols, launch.sizes, strict=True))
    tensors = [region.tensors[name] for name in region.arguments]
    device = [t for t in tensors if t.role is not Role.SCALAR]
    scalars = [t for t in tensors if t.role is Role.SCALAR]
    given = {
        t.name: cast(np.asarray(value, np.float64), t.dtype)
        for t, value in zip(scalars, launch.scalars, strict=True)
    }
    left = {}
    later = [block.after for block in launch.blocks] if after is None else after
    for tensor, (number, origin) in zip(device, launch.arguments, strict=True):
        before = launch.blocks[number].before if number >= 0 else b""
        given[tensor.name] = _read(before, origin, tensor, sizes)
        if tensor.role in _WRITTEN:
            left[tensor.name] = _read(later[number] if number >= 0 else b"", origin, tensor, sizes)
    return LaunchValues(sizes, given, left)


def _read(data: bytes, origin: int, tensor: Tensor, sizes: Sizes) -> Array:
    return decoded(_elements(np.frombuffer(data, np.uint8), origin, tensor, sizes), tensor.dtype)


def _elements(raw: Array, origin: int, tensor: Tensor, sizes: Sizes) -> Array:
    """The bytes of every element (the last axis), in place."""
    shape, strides = _form(tensor, sizes)
    if 0 in shape:
        return np.zeros((*shape, tensor.dtype.bytes), np.uint8)
    return np.ndarray((*shape, tensor.dtype.bytes), np.uint8, raw.data, origin, (*strides, 1))


def _form(tensor: Tensor, sizes: Sizes) -> tuple[list[int], list[int]]:
    """Extents, and strides in bytes."""
    shape = [max(extent.evaluate(sizes), 0) for extent in tensor.shape]
    return shape, [stride.evaluate(sizes) * tensor.dtype.bytes for stride in tensor.strides]


@dataclass(frozen=True, slots=True)
class Memory:
    """A tensor's bytes, and where in them its element zero lies."""

    data: bytes
    origin: int

    def values(self, tensor: Tensor, sizes: Sizes) -> Array:
        """The tensor in these bytes."""
        return _read(self.data, self.origin, tensor, sizes)


def memory_of(tensor: Tensor, values: Array, sizes: Sizes) -> Memory:
    """The bytes that a tensor takes with these values, at its own strides; 0 between them."""
    shape, strides = _form(tensor, sizes)
    if 0 in shape:
        return Memory(b"", 0)
    reach = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    origin = -sum(r for r in reach if r < 0)
    data = np.zeros(origin + sum(r for r in reach if r > 0) + tensor.dtype.bytes, np.uint8)
    raw = encoded(np.ascontiguousarray(np.broadcast_to(values, shape)), tensor.dtype)
    _elements(data, origin, tensor, sizes)[...] = raw.reshape(*shape, -1)
    return Memory(data.tobytes(), origin)
