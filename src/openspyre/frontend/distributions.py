"""Random values as op-table expressions: the row `philox` gives bits, the rest is arithmetic.

Every value is a function of a 64-bit seed and a 64-bit counter, the element's logical number. It
does not depend on tiles, work division or strides.
"""

from __future__ import annotations

import math

import torch

from openspyre.frontend.values import Arithmetic, Operand, Value
from openspyre.ir.kernel import Call, Const, DType, Index

F32 = torch.float32
_LOW_WORD = 0xFFFFFFFF
_TOP = -(2**63)


def bits(a: Arithmetic, seed: Operand, counter: Operand) -> Value:
    """64 random bits, as int64."""
    return a.apply("philox", _wide(a, seed), _wide(a, counter), dtype=torch.int64)


def _wide(a: Arithmetic, operand: Operand) -> Value:
    """An integer as int64; Inductor narrows the number of an element to int32 on the way."""
    value = a.value(operand)
    match value.scalar:
        case Call("cast", (Index() as whole,), DType.I32):
            return Value(whole, torch.int64)
    return a.converted(value, torch.int64)


def fraction(a: Arithmetic, drawn: Value, digits: int = 24) -> Value:
    """Uniform in [0, 1): multiples of 2**-digits, from the upper word; exact in float32."""
    whole = a.apply("and", a.apply("shr", drawn, 64 - digits), (1 << digits) - 1)
    return a.apply("mul", a.converted(whole, F32), 2.0**-digits)


def positive_fraction(a: Arithmetic, drawn: Value) -> Value:
    """Uniform in (0, 1]: multiples of 2**-32, from the lower word, rounded to float32."""
    whole = a.apply("add", a.apply("and", drawn, _LOW_WORD), 1)
    return a.apply("mul", a.converted(whole, F32), 2.0**-32)


def rand(a: Arithmetic, seed: Operand, counter: Operand) -> Value:
    """Uniform in [0, 1)."""
    return fraction(a, bits(a, seed, counter))


def randn(a: Arithmetic, seed: Operand, counter: Operand) -> Value:
    """Standard normal, by Box and Muller; at most 6.7 from zero."""
    return normal(a, bits(a, seed, counter))


def normal(a: Arithmetic, drawn: Value) -> Value:
    """Standard normal: the lower word gives the radius, the upper one the angle."""
    logarithm = a.apply("log", positive_fraction(a, drawn))
    radius = a.apply("sqrt", a.apply("mul", logarithm, -2.0))
    angle = a.apply("mul", fraction(a, drawn), 2.0 * math.pi)
    return a.apply("mul", radius, a.apply("cos", angle))


def exponential(a: Arithmetic, drawn: Value, least: float) -> Value:
    """Of rate 1, at least `least`: a result may be divided by."""
    size = a.apply("neg", a.apply("log", positive_fraction(a, drawn)))
    return a.apply("max", size, least)


def randint64(a: Arithmetic, seed: Operand, counter: Operand, low: Operand, high: Operand) -> Value:
    """Uniform in [low, high), up to the bias of a 64-bit remainder."""
    start = _wide(a, low)
    return whole(a, bits(a, seed, counter), start, a.apply("sub", _wide(a, high), start))


def whole(a: Arithmetic, drawn: Value, low: Value, extent: Value) -> Value:
    """Uniform in [low, low + extent); the extent is unsigned, 0 meaning 2**64."""
    # 63 bits: their remainder by a positive int64 needs no unsigned division.
    small = a.apply("remainder", a.apply("and", drawn, 2**63 - 1), extent)
    # An unsigned remainder by 2**63 or more takes the extent off at most once.
    below = a.apply("lt", _shifted(a, drawn), _shifted(a, extent))
    large = a.where(below, drawn, a.apply("sub", drawn, extent))
    match extent.scalar:
        case Const(value):
            rest = small if value > 0 else large
        case _:
            rest = a.where(a.apply("gt", extent, 0), small, large)
    return a.apply("add", rest, low)


def _shifted(a: Arithmetic, value: Value) -> Value:
    """Signed order of these is unsigned order of the values."""
    return a.apply("xor", value, _TOP)
