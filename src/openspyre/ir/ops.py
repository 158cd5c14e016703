"""The op table: one row per scalar op of the card.

A row says what an op means (numpy, the oracle's meaning), which compute classes it takes, what it
costs on the SFU, and its number in a Program. `csrc/card/ops.def` lists the same numbers; a test
holds the two together.

Meaning is on arrays of the compute class: float32, int64, int32, bool. Integer ops wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class Cost(Enum):
    """Cost class on the SFU: one pass at full width, or a transcendental."""

    FREE = "free"  # an operand mode: constant, load, index
    SIMPLE = "simple"
    TRANSCENDENTAL = "transcendental"


@dataclass(frozen=True, slots=True)
class Row:
    """One op.

    Attributes:
        code: its number in a Program.
        arity: number of arguments.
        classes: compute classes of the arguments it takes: any of "f", "i" (i32 and i64), "b".
        result: "same" as the (last) argument, or "b".
        meaning: on numpy arrays of the compute class.
    """

    name: str
    code: int
    arity: int
    classes: str
    result: str
    cost: Cost
    meaning: Callable[..., Array] | None


@dataclass(frozen=True, slots=True)
class Rounded:
    """Evaluate in float64 and round once: the value the card's float32 approximates."""

    exact: Callable[..., Array]

    def __call__(self, *args: Array) -> Array:
        found = self.exact(*(np.asarray(a, np.float64) for a in args))
        return np.asarray(found).astype(np.float32)


_float32 = Rounded


def _erf(x: Array) -> Array:
    from math import erf

    return np.asarray(np.vectorize(erf, otypes=[np.float64])(x))


def _truncated_division(a: Array, b: Array) -> Array:
    quotient = np.floor_divide(a, b)
    return np.asarray(quotient + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0))), a.dtype)


def _sign(x: Array) -> Array:
    return np.asarray(
        np.where(np.isnan(x), 0, np.sign(x)) if x.dtype.kind == "f" else np.sign(x), x.dtype
    )


def _philox(seed: Array, offset: Array) -> Array:
    """Words 0 and 1 of Philox-4x32-10 for a 64-bit key and the low 64 bits of its counter.

    A counter-based generator: the bits depend on the two numbers only, so the point of a loop nest
    that draws them does not matter. i32 takes sign-extended numbers and gives word 0.
    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11.
    """
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    key, counter = (np.asarray(a, np.int64).astype(np.uint64) for a in (seed, offset))
    k0, k1 = key & low, key >> half
    x0, x1 = counter & low, counter >> half
    x2 = x3 = np.zeros((), np.uint64)
    for _ in range(10):
        even, odd = x0 * np.uint64(0xD2511F53), x2 * np.uint64(0xCD9E8D57)
        x0, x1 = (odd >> half) ^ x1 ^ k0, odd & low
        x2, x3 = (even >> half) ^ x3 ^ k1, even & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return np.asarray(x0 | x1 << half).astype(np.int64).astype(np.asarray(offset).dtype)


_S, _T = Cost.SIMPLE, Cost.TRANSCENDENTAL
_ROWS = (
    # name, arity, classes, result, cost, meaning
    ("add", 2, "fi", "same", _S, np.add),
    ("sub", 2, "fi", "same", _S, np.subtract),
    ("mul", 2, "fib", "same", _S, np.multiply),
    ("div", 2, "f", "same", _S, np.divide),
    ("floordiv", 2, "fi", "same", _S, np.floor_divide),
    ("truncdiv", 2, "i", "same", _S, _truncated_division),
    ("remainder", 2, "fi", "same", _S, np.remainder),  # the sign of the divisor (Python)
    ("fmod", 2, "fi", "same", _S, np.fmod),  # the sign of the dividend (C)
    ("neg", 1, "fi", "same", _S, np.negative),
    ("abs", 1, "fi", "same", _S, np.abs),
    ("sign", 1, "fi", "same", _S, _sign),
    ("min", 2, "fib", "same", _S, np.minimum),  # NaN wins
    ("max", 2, "fib", "same", _S, np.maximum),
    ("exp", 1, "f", "same", _T, _float32(np.exp)),
    ("exp2", 1, "f", "same", _T, _float32(np.exp2)),
    ("expm1", 1, "f", "same", _T, _float32(np.expm1)),
    ("log", 1, "f", "same", _T, _float32(np.log)),
    ("log2", 1, "f", "same", _T, _float32(np.log2)),
    ("log10", 1, "f", "same", _T, _float32(np.log10)),
    ("log1p", 1, "f", "same", _T, _float32(np.log1p)),
    ("sqrt", 1, "f", "same", _T, np.sqrt),
    ("rsqrt", 1, "f", "same", _T, _float32(lambda x: 1 / np.sqrt(x))),
    ("sin", 1, "f", "same", _T, _float32(np.sin)),
    ("cos", 1, "f", "same", _T, _float32(np.cos)),
    ("tan", 1, "f", "same", _T, _float32(np.tan)),
    ("tanh", 1, "f", "same", _T, _float32(np.tanh)),
    ("sigmoid", 1, "f", "same", _T, _float32(lambda x: 1 / (1 + np.exp(-x)))),
    ("erf", 1, "f", "same", _T, _float32(_erf)),
    ("atan", 1, "f", "same", _T, _float32(np.arctan)),
    ("pow", 2, "fi", "same", _T, np.power),
    ("floor", 1, "f", "same", _S, np.floor),
    ("ceil", 1, "f", "same", _S, np.ceil),
    ("trunc", 1, "f", "same", _S, np.trunc),
    ("round", 1, "f", "same", _S, np.rint),  # half to even
    ("isnan", 1, "f", "b", _S, np.isnan),
    ("isinf", 1, "f", "b", _S, np.isinf),
    ("signbit", 1, "f", "b", _S, np.signbit),
    ("eq", 2, "fib", "b", _S, np.equal),
    ("ne", 2, "fib", "b", _S, np.not_equal),
    ("lt", 2, "fib", "b", _S, np.less),
    ("le", 2, "fib", "b", _S, np.less_equal),
    ("gt", 2, "fib", "b", _S, np.greater),
    ("ge", 2, "fib", "b", _S, np.greater_equal),
    ("and", 2, "ib", "same", _S, np.bitwise_and),  # logical on bool, bitwise on integers
    ("or", 2, "ib", "same", _S, np.bitwise_or),
    ("xor", 2, "ib", "same", _S, np.bitwise_xor),
    ("not", 1, "ib", "same", _S, np.invert),
    ("shl", 2, "i", "same", _S, np.left_shift),
    ("shr", 2, "i", "same", _S, np.right_shift),  # arithmetic
    ("where", 3, "fib", "same", _S, np.where),  # the first argument is bool
    ("cast", 1, "fib", "same", _S, None),  # to the node's dtype; see reference.py
    ("fma", 3, "f", "same", _S, _float32(lambda a, b, c: a * b + c)),
    # Twenty products of 32-bit words, as long as the polynomial of a function; no unit of the card
    # is known to draw random bits faster.
    ("philox", 2, "i", "same", _T, _philox),
)
TABLE: Mapping[str, Row] = MappingProxyType(
    {row[0]: Row(row[0], code, *row[1:]) for code, row in enumerate(_ROWS, start=8)}  # type: ignore[arg-type]
)
# Codes below 8 are the operand forms of a vector program (`ir/program.py`).
LOAD, CONST, SLOT, INDEX = 0, 1, 2, 3

REDUCTIONS: Mapping[str, int] = MappingProxyType(
    {"sum": 1, "max": 2, "min": 3, "prod": 4, "any": 5}
)
