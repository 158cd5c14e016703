"""Elements of a dtype as they lie in memory: bytes to values and back."""

from __future__ import annotations

import numpy as np

from openspyre.ir.kernel import DType
from openspyre.ir.ops import Array
from openspyre.ir.reference import STORAGE, cast, fp8_codes, fp8_values, widened


def decoded(raw: Array, dtype: DType) -> Array:
    """Bytes (the last axis) as values of the compute class."""
    flat = np.ascontiguousarray(raw)
    if dtype.is_fp8:
        return fp8_values(flat[..., 0], dtype)
    if dtype is DType.BF16:
        bits = flat.view(np.uint16)[..., 0].astype(np.uint32) << 16
        return bits.view(np.float32)
    return widened(flat.view(STORAGE[dtype])[..., 0], dtype)


def encoded(values: Array, dtype: DType) -> Array:
    """The other way, rounding or wrapping."""
    if dtype.is_fp8:
        return fp8_codes(np.asarray(values, np.float32), dtype)[..., None]
    stored = np.ascontiguousarray(cast(values, dtype)).reshape(np.shape(values))
    if dtype is DType.BF16:
        stored = (stored.view(np.uint32) >> 16).astype(np.uint16)
    return stored[..., None].view(np.uint8)
