"""The card's number formats: what every code means, and how a value becomes a code.

Names are the vendor's (`SEN`, then sign, exponent and fraction bits). Sources and grades: card.md
2.1; D documented, G a guess. `csrc/card/formats.cpp` says the same one value at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from openspyre.numerics import Dl16Round

Codes = np.ndarray[Any, np.dtype[np.uint32]]
Values = np.ndarray[Any, np.dtype[np.float64]]


class Specials(Enum):
    """Which codes are not plain numbers."""

    ONE = "one"  # no subnormals; code 0 is zero, the last code the one NaN/infinity
    NAN = "nan"  # subnormals; the last code is NaN, there is no infinity (OCP E4M3)
    IEEE = "ieee"  # subnormals, infinities and NaN


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A format with a sign bit. `bias` of an fp8 format may be replaced (HFP8)."""

    name: str
    exponent: int
    fraction: int
    bias: int
    specials: Specials

    @property
    def bits(self) -> int:
        """Bits of a code, the sign included."""
        return 1 + self.exponent + self.fraction

    @property
    def special(self) -> int:
        """The code of infinity, or of the NaN/infinity, or of NaN, without the sign."""
        top = ((1 << self.exponent) - 1) << self.fraction
        return top if self.specials is Specials.IEEE else top | (1 << self.fraction) - 1

    def decode(self, codes: ArrayLike) -> Values:
        """The values of codes, exact in float64.

        A NaN/infinity is an infinity of its sign: silicon's sigmoid of it is 1 (#1774) and a clamp
        gives the upper bound (#1833). (The public codec of the host gives NaN.)
        """
        given = np.asarray(codes, np.uint32)
        sign = np.where(given >> (self.bits - 1) & 1, -1.0, 1.0)
        rest = (given & ((1 << (self.bits - 1)) - 1)).astype(np.int64)
        exponent, fraction = rest >> self.fraction, rest & ((1 << self.fraction) - 1)
        subnormal = (exponent == 0) & (self.specials is not Specials.ONE)
        steps = fraction + np.where(subnormal, 0, 1 << self.fraction)
        shift = np.where(subnormal, 1, exponent) - self.bias - self.fraction
        value = np.where(rest == 0, 0.0, np.ldexp(steps.astype(np.float64), shift))
        limit = np.nan if self.specials is Specials.NAN else np.inf
        value = np.where(rest == self.special, limit, value)
        return np.copysign(np.where(rest > self.special, np.nan, value), sign)

    def encode(self, values: ArrayLike, rounding: Dl16Round = Dl16Round.NEAREST_EVEN) -> Codes:
        """The codes of values, rounded once.

        Too large a value becomes the special code, too small a one zero; both keep the sign. NaN
        becomes NaN, or the NaN/infinity.
        """
        given = np.asarray(values, np.float64)
        sign = np.signbit(given).astype(np.int64) << (self.bits - 1)
        size = np.abs(given)
        finite = np.where(np.isfinite(size) & (size > 0), size, 1.0)
        lowest = (0 if self.specials is Specials.ONE else 1) - self.bias
        exponent = np.maximum(np.frexp(finite)[1] - 1, lowest)
        steps = whole(np.ldexp(finite, self.fraction - exponent), rounding)
        # The codes of a binade follow those of the one before: a carry moves on by itself.
        code = ((exponent + self.bias - 1) << self.fraction) + steps.astype(np.int64)
        if self.specials is Specials.ONE:
            code = np.maximum(code, 0)
        code = np.minimum(code, self.special)
        code = np.where(np.isfinite(size), np.where(size == 0, 0, code), self.special)
        nan = self.special | (
            (1 << self.fraction) - 1 if self.specials is Specials.IEEE else self.special
        )
        return np.asarray(np.where(np.isnan(given), nan, code) | sign, np.uint32)

    def rounded(self, values: ArrayLike, rounding: Dl16Round = Dl16Round.NEAREST_EVEN) -> Values:
        """The values as the format holds them."""
        return self.decode(self.encode(values, rounding))


@dataclass(frozen=True, slots=True)
class IntFormat:
    """Two's complement, or without a sign."""

    name: str
    bits: int
    signed: bool = True

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest value."""
        if not self.signed:
            return 0, (1 << self.bits) - 1
        return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1

    def decode(self, codes: ArrayLike) -> Values:
        """The values of codes."""
        given = np.asarray(codes, np.uint32).astype(np.int64) & ((1 << self.bits) - 1)
        return np.where(given > self.limits[1], given - (1 << self.bits), given).astype(np.float64)

    def encode(self, values: ArrayLike, rounding: Dl16Round = Dl16Round.NEAREST_EVEN) -> Codes:
        """The codes of values, rounded; what is too large saturates, NaN becomes 0."""
        given = np.nan_to_num(np.asarray(values, np.float64), nan=0.0)
        nearest = np.copysign(whole(np.abs(given), rounding), given)
        wrapped = np.clip(nearest, *self.limits).astype(np.int64) & ((1 << self.bits) - 1)
        return np.asarray(wrapped, np.uint32)


def whole(steps: Values, rounding: Dl16Round) -> Values:
    """Magnitudes as whole numbers."""
    match rounding:
        case Dl16Round.NEAREST_UP:
            below = np.floor(steps)
            return np.asarray(below + (steps - below >= 0.5))
        case Dl16Round.NEAREST_EVEN:
            return np.asarray(np.rint(steps))
        case Dl16Round.TRUNCATE:
            return np.asarray(np.floor(steps))


DL16 = FloatFormat("SEN169_FP16", 6, 9, 31, Specials.ONE)  # D
FP8_143 = FloatFormat("SEN143_FP8", 4, 3, 7, Specials.NAN)  # D: its largest value is 448
FP8_152 = FloatFormat("SEN152_FP8", 5, 2, 15, Specials.IEEE)  # bias G
FP9 = FloatFormat("SEN153_FP9", 5, 3, 15, Specials.IEEE)  # bias G
FP24 = FloatFormat("SEN18F_FP24", 8, 15, 127, Specials.IEEE)  # layout D
INT2, INT4, INT8, INT16, INT24 = (IntFormat(f"SENINT{bits}", bits) for bits in (2, 4, 8, 16, 24))
UINT2 = IntFormat("SENUINT2", 2, signed=False)
UINT32 = IntFormat("SENUINT32", 32, signed=False)
FORMATS: Mapping[str, FloatFormat | IntFormat] = MappingProxyType(
    {
        known.name: known
        for known in (
            *(DL16, FP8_143, FP8_152, FP9, FP24),
            *(INT2, INT4, INT8, INT16, INT24, UINT2, UINT32),
        )
    }
)


def as_fp9(codes: ArrayLike, source: FloatFormat) -> Codes:
    """Codes of either fp8 format as fp9, which both widen to before a multiplication.

    Exact for the default biases; NaN stays NaN.
    """
    return FP9.encode(source.decode(codes))
