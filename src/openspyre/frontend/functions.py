"""Inductor's scalar functions as op-table expressions, by name.

Each entry takes the arithmetic and the operands. What has no row in the op table is composed
here; what cannot be composed accurately is absent and reported as unsupported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from openspyre.frontend import distributions
from openspyre.frontend.values import Arithmetic, Operand, Value

Function = Callable[..., Value]

F32 = torch.float32


def _float(op: str) -> Function:
    return lambda a, *operands: a.apply(op, *operands, dtype=F32)


def _same(op: str) -> Function:
    return lambda a, *operands: a.apply(op, *operands)


def _integral(op: str) -> Function:
    """A rounding function: integers and bools are already whole."""

    def apply(a: Arithmetic, x: Operand) -> Value:
        value = a.value(x)
        return a.apply(op, value) if value.is_float else value

    return apply


def _logical(op: str) -> Function:
    return lambda a, *operands: a.apply(op, *(a.truth(a.value(x)) for x in operands))


def _test(op: str) -> Function:
    """isnan and isinf: false for integers."""

    def apply(a: Arithmetic, x: Operand) -> Value:
        value = a.value(x)
        return a.apply(op, value) if value.is_float else a.constant(False, torch.bool)

    return apply


def _add(a: Arithmetic, x: Operand, y: Operand) -> Value:
    left, right = a.value(x), a.value(y)
    both_bool = left.dtype == right.dtype == torch.bool
    return a.apply("or", left, right) if both_bool else a.apply("add", x, y)


def _unchanged_for_bool(op: str) -> Function:
    def apply(a: Arithmetic, x: Operand) -> Value:
        value = a.value(x)
        return value if value.dtype == torch.bool else a.apply(op, value)

    return apply


def _signbit(a: Arithmetic, x: Operand) -> Value:
    value = a.value(x)
    return a.apply("signbit", value) if value.is_float else a.apply("lt", value, 0)


def _relu(a: Arithmetic, x: Operand) -> Value:
    value = a.value(x)
    return a.apply("max", value, a.constant(0, value.dtype))


def _square(a: Arithmetic, x: Operand) -> Value:
    return a.apply("mul", x, x)


def _reciprocal(a: Arithmetic, x: Operand) -> Value:
    return a.apply("div", 1.0, x, dtype=F32)


def _copysign(a: Arithmetic, x: Operand, y: Operand) -> Value:
    size = a.apply("abs", x, dtype=F32)
    return a.where(_signbit(a, y), a.apply("neg", size), size)


def _cosh(a: Arithmetic, x: Operand) -> Value:
    up = a.apply("exp", x, dtype=F32)
    down = a.apply("exp", a.apply("neg", x, dtype=F32))
    return a.apply("mul", a.apply("add", up, down), 0.5)


def _sinh(a: Arithmetic, x: Operand) -> Value:
    up = a.apply("expm1", x, dtype=F32)
    down = a.apply("expm1", a.apply("neg", x, dtype=F32))
    return a.apply("mul", a.apply("sub", up, down), 0.5)


def _asinh(a: Arithmetic, x: Operand) -> Value:
    size = a.apply("abs", x, dtype=F32)
    square = a.apply("mul", size, size)
    root = a.apply("add", a.apply("sqrt", a.apply("add", square, 1.0)), 1.0)
    near = a.apply("log1p", a.apply("add", size, a.apply("div", square, root)))
    far = a.apply("add", a.apply("log", size), math.log(2.0))
    return _copysign(a, a.where(a.apply("gt", size, 1e9), far, near), x)


def _acosh(a: Arithmetic, x: Operand) -> Value:
    value = a.converted(a.value(x), F32)
    less = a.apply("sub", value, 1.0)
    root = a.apply("sqrt", a.apply("mul", less, a.apply("add", value, 1.0)))
    near = a.apply("log1p", a.apply("add", less, root))
    far = a.apply("add", a.apply("log", value), math.log(2.0))
    return a.where(a.apply("gt", value, 1e9), far, near)


def _atanh(a: Arithmetic, x: Operand) -> Value:
    value = a.converted(a.value(x), F32)
    size = a.apply("abs", value)
    ratio = a.apply("div", a.apply("mul", size, 2.0), a.apply("sub", 1.0, size))
    return _copysign(a, a.apply("mul", a.apply("log1p", ratio), 0.5), value)


def _asin(a: Arithmetic, x: Operand) -> Value:
    value = a.converted(a.value(x), F32)
    both = a.apply("mul", a.apply("sub", 1.0, value), a.apply("add", 1.0, value))
    return a.apply("atan", a.apply("div", value, a.apply("sqrt", both)))


def _acos(a: Arithmetic, x: Operand) -> Value:
    value = a.converted(a.value(x), F32)
    ratio = a.apply("div", a.apply("sub", 1.0, value), a.apply("add", 1.0, value))
    return a.apply("mul", a.apply("atan", a.apply("sqrt", ratio)), 2.0)


def _atan2(a: Arithmetic, y: Operand, x: Operand) -> Value:
    up, across = a.converted(a.value(y), F32), a.converted(a.value(x), F32)
    both_infinite = a.apply("and", a.apply("isinf", up), a.apply("isinf", across))
    both_zero = a.apply("and", a.apply("eq", up, 0.0), a.apply("eq", across, 0.0))
    ratio = a.apply("div", a.apply("abs", up), a.apply("abs", across))
    ratio = a.where(both_infinite, 1.0, a.where(both_zero, 0.0, ratio))
    angle = a.apply("atan", ratio)
    angle = a.where(a.apply("signbit", across), a.apply("sub", math.pi, angle), angle)
    return _copysign(a, angle, up)


def _hypot(a: Arithmetic, x: Operand, y: Operand) -> Value:
    left, right = a.apply("abs", x, dtype=F32), a.apply("abs", y, dtype=F32)
    large, small = a.apply("max", left, right), a.apply("min", left, right)
    ratio = a.apply("div", small, large)
    root = a.apply("sqrt", a.apply("add", a.apply("mul", ratio, ratio), 1.0))
    scaled = a.apply("mul", large, root)
    infinite = a.apply("or", a.apply("isinf", left), a.apply("isinf", right))
    return a.where(infinite, math.inf, a.where(a.apply("eq", large, 0.0), large, scaled))


def _erfc(a: Arithmetic, x: Operand) -> Value:
    return a.apply("sub", 1.0, a.apply("erf", x, dtype=F32))


# Rational approximations of the inverse of erf, within 2e-3: of x by x*x, and of large x by the
# root of -log((1 - x) / 2). Highest power first; PyTorch's own coefficients, for equal values.
_NEAR = (
    (-0.140543331, 0.914624893, -1.645349621, 0.886226899),
    (0.012229801, -0.329097515, 1.442710462, -2.118377725, 1.0),
)
_FAR = ((1.641345311, 3.429567803, -1.624906493, -1.970840454), (1.637067800, 3.543889200, 1.0))


def _erfinv(a: Arithmetic, x: Operand) -> Value:
    """Two steps of Newton's from an approximation."""
    value = a.converted(a.value(x), F32)
    size = a.apply("abs", value)
    near = a.apply("mul", value, _ratio(a, a.apply("mul", value, value), _NEAR))
    tail = a.apply("log", a.apply("mul", a.apply("sub", 1.0, size), 0.5))
    far = _copysign(a, _ratio(a, a.apply("sqrt", a.apply("neg", tail)), _FAR), value)
    found = a.where(a.apply("le", size, 0.7), near, far)
    for _ in range(2):
        slope = a.apply("exp", a.apply("neg", a.apply("mul", found, found)))
        error = a.apply("sub", a.apply("erf", found), value)
        found = a.apply("sub", found, a.apply("div", error, a.apply("mul", slope, _SLOPE)))
    end = _copysign(a, a.where(a.apply("eq", size, 1.0), math.inf, math.nan), value)
    return a.where(a.apply("lt", size, 1.0), found, end)


_SLOPE = 2.0 / math.sqrt(math.pi)  # of erf at zero


def _ratio(a: Arithmetic, x: Value, terms: tuple[tuple[float, ...], tuple[float, ...]]) -> Value:
    return a.apply("div", *(_polynomial(a, x, part) for part in terms))


def _polynomial(a: Arithmetic, x: Value, terms: tuple[float, ...]) -> Value:
    total = a.constant(terms[0], F32)
    for term in terms[1:]:
        total = a.apply("add", a.apply("mul", total, x), term)
    return total


def _remainder(a: Arithmetic, x: Operand, y: Operand) -> Value:
    return a.apply("remainder", x, y)


def _identity(a: Arithmetic, x: Operand) -> Value:
    return a.value(x)


def _named(make: Callable[[str], Function], names: str) -> dict[str, Function]:
    """`inductor=row` pairs, or one name that is both."""
    pairs = (name.partition("=") for name in names.split())
    return {name: make(row or name) for name, _, row in pairs}


FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        **_named(
            _float,
            "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan tanh sigmoid erf atan fma "
            "truediv=div div_rn=div int_truediv=div",
        ),
        **_named(
            _same,
            "sub mul minimum=min maximum=max floordiv truncdiv mod=fmod fmod pow "
            "eq ne lt le gt ge bitwise_and=and bitwise_or=or bitwise_xor=xor bitwise_not=not "
            "and_=and or_=or xor "
            "bitwise_left_shift=shl bitwise_right_shift=shr lshift=shl rshift=shr",
        ),
        **_named(_integral, "floor ceil trunc round"),
        **_named(_logical, "logical_and=and logical_or=or logical_xor=xor logical_not=not"),
        **_named(_test, "isnan isinf"),
        **_named(_unchanged_for_bool, "neg abs sign"),
        "add": _add,
        "signbit": _signbit,
        "relu": _relu,
        "square": _square,
        "reciprocal": _reciprocal,
        "copysign": _copysign,
        "cosh": _cosh,
        "sinh": _sinh,
        "asinh": _asinh,
        "acosh": _acosh,
        "atanh": _atanh,
        "asin": _asin,
        "acos": _acos,
        "atan2": _atan2,
        "hypot": _hypot,
        "erfc": _erfc,
        "erfinv": _erfinv,
        "remainder": _remainder,
        "identity": _identity,
        "rand": distributions.rand,
        "randn": distributions.randn,
        "randint64": distributions.randint64,
    }
)
