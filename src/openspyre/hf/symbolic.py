"""Two formulas compared as expressions of their inputs' elements, in sympy.

Each element of a small tensor is a symbol. The results are compared to 50 digits at points with
rational coordinates, where a difference of any size shows, and then as expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import sympy

from openspyre.hf.formulas import Formula

Array = npt.NDArray[np.object_]
_POINTS = 4
_DIGITS = 50
_SIMPLE = 400  # operations of an expression that is compared as such


@dataclass(frozen=True, slots=True)
class Verdict:
    """`differs`: there is a point where the values are not equal; `done`: there are formulas."""

    differs: bool
    detail: str
    done: bool = True


class NoFormula(Exception):
    """A call that has no expression here; the text names it."""


def compared(
    original: Formula, replacement: Formula, shapes: Sequence[tuple[int, ...] | list[Any]]
) -> Verdict:
    """Whether two formulas of the same inputs are equal.

    Args:
        shapes: of inputs that are symbols; nested lists of numbers are inputs with these values.
    """
    for formula in (original, replacement):
        if formula.problem:
            return Verdict(False, formula.problem, done=False)
    symbols: list[sympy.Symbol] = []
    inputs = [_input(number, shape, symbols) for number, shape in enumerate(shapes)]
    try:
        pairs = list(
            zip(_evaluated(original, inputs), _evaluated(replacement, inputs), strict=True)
        )
    except NoFormula as error:
        return Verdict(False, f"{error} has no formula here", done=False)
    flat = [(a, b) for x, y in pairs for a, b in zip(x.flat, y.flat, strict=True)]
    for number in range(_POINTS):
        at = _point(symbols, number)
        for a, b in flat:
            if (found := _differ(a, b, at)) is not None:
                return Verdict(True, found)
    if all(_equal(a, b) for a, b in flat):
        return Verdict(False, f"equal as expressions of {len(symbols)} numbers")
    return Verdict(False, f"equal to {_DIGITS} digits at {_POINTS} points")


def _input(number: int, shape: Any, symbols: list[sympy.Symbol]) -> Array:
    if isinstance(shape, list):
        numbers: Array = np.vectorize(sympy.Integer, otypes=[object])(np.array(shape))
        return numbers
    count = int(np.prod(shape, dtype=int))
    made = [sympy.Symbol(f"x{number}_{k}", real=True) for k in range(count)]
    symbols += made
    array: Array = np.array(made, dtype=object).reshape(shape)
    return array


def _point(symbols: Sequence[sympy.Symbol], number: int) -> dict[sympy.Symbol, sympy.Rational]:
    """Rational coordinates; the first two points have positive ones alone."""
    drawn = np.random.default_rng(number).integers(1, 2000, len(symbols))
    signs = np.random.default_rng(100 + number).choice([-1, 1], len(symbols))
    signs = np.ones_like(signs) if number < 2 else signs
    return {
        s: sympy.Rational(int(n * sign), 701)
        for s, n, sign in zip(symbols, drawn, signs, strict=True)
    }


def _differ(a: Any, b: Any, at: Mapping[sympy.Symbol, sympy.Rational]) -> str | None:
    values = [sympy.sympify(e).subs(at) for e in (a, b)]
    x, y = (sympy.N(value, _DIGITS) for value in values)
    if not (
        x.is_number and y.is_number and x.is_finite and y.is_finite and x.is_real and y.is_real
    ):
        return None  # the stages with numbers look at what is not finite
    if abs(x - y) <= sympy.Float(10) ** (8 - _DIGITS) * (1 + abs(x)):
        return None
    where = ", ".join(f"{s} = {v}" for s, v in list(at.items())[:3])
    return f"at {where}: {sympy.N(y, 20)}, the original {sympy.N(x, 20)}"


def _equal(a: Any, b: Any) -> bool:
    difference = sympy.sympify(a) - sympy.sympify(b)
    if sympy.expand(difference) == 0:
        return True
    return bool(sympy.count_ops(difference) <= _SIMPLE and sympy.simplify(difference) == 0)


# --- evaluation -----------------------------------------------------------------------------------


def _evaluated(formula: Formula, inputs: Sequence[Array]) -> list[Array]:
    known: dict[str, Array] = dict(zip(formula.inputs, inputs, strict=True))
    for name, shape, values in formula.constants:
        exact = [_number(v) for v in values]
        known[name] = np.array(exact, dtype=object).reshape(shape)

    def value(given: Any) -> Any:
        match given:
            case ["of", str(name)]:
                return known[name]
            case ["list", *items]:
                return [value(item) for item in items]
            case _:
                return given

    for name, op, args, kwargs in formula.calls:
        row = _OPS.get(op.removeprefix("aten."))
        if row is None:
            raise NoFormula(op)
        try:
            named = {k: value(v) for k, v in kwargs.items() if k not in _IGNORED}
            known[name] = np.asarray(row(*map(value, args), **named), dtype=object)
        except (TypeError, ValueError) as error:
            raise NoFormula(f"{op} ({error})") from None
    return [known[name] for name in formula.results]


_IGNORED = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking"})


def _number(value: Any) -> Any:
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise NoFormula(f"the number {value}")
        found = Fraction(value)
        return sympy.Rational(found.numerator, found.denominator)
    return value


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one element."""
    return lambda x: np.vectorize(function, otypes=[object])(x) if np.size(x) else x


def _sum(x: Array, dims: Any = None, keepdim: bool = False) -> Any:
    axes = tuple(range(x.ndim)) if not dims else tuple(d % x.ndim for d in dims)
    return np.sum(x, axis=axes, keepdims=keepdim)


def _mean(x: Array, dims: Any = None, keepdim: bool = False) -> Any:
    total = np.asarray(_sum(x, dims, keepdim), dtype=object)
    return total / sympy.Integer(x.size // max(total.size, 1))


def _added(x: Any, y: Any, alpha: Any = 1) -> Any:
    return x + _number(y) * _number(alpha)


def _slice(x: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


def _expanded(x: Array, sizes: Sequence[int], implicit: bool = False) -> Any:
    lead = len(sizes) - x.ndim
    shape = [x.shape[k - lead] if n == -1 else n for k, n in enumerate(sizes)]
    return np.broadcast_to(x, shape)


def _addmm(c: Array, a: Array, b: Array, beta: Any = 1, alpha: Any = 1) -> Any:
    return _number(beta) * c + _number(alpha) * (a @ b)


def _same(x: Array, *_: Any) -> Array:
    return x


def _squeezed(x: Array, dims: Any = None) -> Any:
    wanted = range(x.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    return np.squeeze(x, tuple(d % x.ndim for d in wanted if x.shape[d] == 1))


def _tril(x: Array, diagonal: int = 0) -> Any:
    rows, columns = np.indices(x.shape[-2:])
    return np.where(columns - rows <= diagonal, x, sympy.Integer(0))


_ONE = sympy.Integer(1)
_BINARY: Mapping[str, Callable[..., Any]] = {
    "add": _added,
    "sub": lambda x, y, alpha=1: x - _number(y) * _number(alpha),
    "mul": lambda x, y: x * _number(y),
    "div": lambda x, y: x / (sympy.Integer(y) if isinstance(y, int) else _number(y)),
}
_UNARY: Mapping[str, Callable[[Any], Any]] = {
    "neg": lambda x: -x,
    "exp": sympy.exp,
    "log": sympy.log,
    "sqrt": sympy.sqrt,
    "rsqrt": lambda x: _ONE / sympy.sqrt(x),
    "reciprocal": lambda x: _ONE / x,
    "sin": sympy.sin,
    "cos": sympy.cos,
    "tanh": sympy.tanh,
    "erf": sympy.erf,
    "abs": sympy.Abs,
    "sigmoid": lambda x: _ONE / (_ONE + sympy.exp(-x)),
    "relu": lambda x: sympy.Max(x, 0),
}
_OPS: Mapping[str, Callable[..., Any]] = {
    **{f"{n}.{o}": f for n, f in _BINARY.items() for o in ("Tensor", "Scalar")},
    **{f"{name}.default": _each(function) for name, function in _UNARY.items()},
    "pow.Tensor_Scalar": lambda x, n: _each(lambda e: e ** _number(n))(x),
    "sum.default": _sum,
    "sum.dim_IntList": _sum,
    "mean.default": _mean,
    "mean.dim": _mean,
    "mm.default": np.matmul,
    "bmm.default": np.matmul,
    "addmm.default": _addmm,
    "t.default": np.transpose,
    "permute.default": np.transpose,
    "transpose.int": np.swapaxes,
    "view.default": np.reshape,
    "_unsafe_view.default": np.reshape,
    "reshape.default": np.reshape,
    "unsqueeze.default": np.expand_dims,
    "squeeze.dim": _squeezed,
    "squeeze.dims": _squeezed,
    "expand.default": _expanded,
    "slice.Tensor": _slice,
    "select.int": lambda x, dim, place: np.take(x, place, dim),
    "cat.default": lambda parts, dim=0: np.concatenate(parts, dim),
    "tril.default": _tril,
    **dict.fromkeys(
        ("clone.default", "_to_copy.default", "alias.default", "detach.default"), _same
    ),
    "prims.convert_element_type.default": _same,
}
