"""DL16 and sums in it, written from their definition (card.md 2) and from nothing of the product.

A code is a sign, an exponent e of six bits and a fraction m of nine: its value is
2^(e-31) * (1 + m/512), but for e = m = 0, which is zero, and for e = 63, m = 511, the NaN/infinity.
Rounding searches the sorted table of all values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from openspyre.numerics import Dl16Round, Numerics, SumFormat

Array = np.ndarray[Any, np.dtype[Any]]

MAGNITUDES = np.array(
    [
        0.0 if e == m == 0 else np.inf if (e, m) == (63, 511) else 2.0 ** (e - 31) * (1 + m / 512)
        for e in range(64)
        for m in range(512)
    ]
)
VALUES = np.concatenate([MAGNITUDES, -MAGNITUDES])  # by code
# Where the infinity would stand, and what the code of zero would mean otherwise.
_PLACES = MAGNITUDES.copy()
_PLACES[0], _PLACES[-1] = 2.0**-31, 2.0**32 * (1 + 511 / 512)


def codes(values: Array, rounding: Dl16Round) -> Array:
    """DL16 codes of values."""
    given = np.asarray(values, np.float64)
    size = np.where(np.isnan(given), np.inf, np.abs(given))
    above = np.clip(np.searchsorted(_PLACES, size, side="left"), 1, len(_PLACES) - 1)
    low, high = _PLACES[above - 1], _PLACES[above]
    up = np.where(size - low == high - size, (above % 2) == 0, size - low > high - size)
    match rounding:
        case Dl16Round.NEAREST_UP:
            up = size - low >= high - size
        case Dl16Round.TRUNCATE:
            up = size >= high
    found = np.where(up, above, above - 1)
    # Below the lowest place there is nothing but zero.
    found = np.where(size < _PLACES[0], 0, found)
    found = np.where(size >= _PLACES[-1], len(_PLACES) - 1, found)
    return np.where(np.signbit(given), found + 0x8000, found).astype(np.uint16)


def rounded(values: Array, rounding: Dl16Round) -> Array:
    """Values as DL16 holds them."""
    return VALUES[codes(values, rounding)]


def single(values: Array) -> Array:
    """Rounded to float32, as a register holds them."""
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float32).astype(np.float64)


def total(
    a: Array, b: Array | None, numerics: Numerics, start: Array | float | None = None
) -> Array:
    """The sum of `a` over its last axis, or of a * b; from `start` on, if it is given.

    All values are exact in float64 on the way, but where float32 registers or DL16 round. A sum
    that is too small for DL16 is +0.
    """
    count = a.shape[-1]
    shape = a.shape[:-1] if b is None else np.broadcast_shapes(a.shape, b.shape)[:-1]
    result = np.zeros(shape) if start is None else np.asarray(start, np.float64)
    sequential = numerics.acc_chunk == 0
    for first in range(0, count, numerics.acc_chunk or max(count, 1)):
        part = result if sequential else np.zeros(shape)
        for k in range(first, count if sequential else min(first + numerics.acc_chunk, count)):
            part = _step(part, a[..., k], None if b is None else b[..., k], numerics)
        if sequential:
            return part
        part = rounded(part, numerics.dl16_round)
        result = rounded(single(result + part), numerics.dl16_round) + 0.0
    return result


def _step(part: Array, a: Array, b: Array | None, numerics: Numerics) -> Array:
    term = a if b is None else a * b
    if numerics.acc_format is SumFormat.FP32:
        return single(part + term)
    if numerics.acc_format is SumFormat.DL16 and b is not None:
        term = rounded(single(term), numerics.dl16_round)
    return rounded(single(part + term), numerics.dl16_round) + 0.0
