"""Sympy integer expressions of Inductor -> `ir.index.Expr`, and what is known about symbols."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import sympy
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import (
    CeilDiv,
    CleanDiv,
    FloorDiv,
    Identity,
    Max,
    Min,
    Mod,
    ModularIndexing,
    PythonMod,
)
from torch.utils._sympy.numbers import IntInfinity
from torch.utils._sympy.symbol import SymT, symbol_is_type

from openspyre.errors import Unsupported
from openspyre.ir.index import Expr, ceil_div, combine

LARGEST = 2**31 - 1


def converted(expr: sympy.Expr | int) -> Expr:
    """The same integer expression over names.

    Raises:
        Unsupported: a function of sizes that an index cannot hold (floats, conditions).
    """
    match expr:
        case int():
            return Expr.of(expr)
        case sympy.Integer():
            return Expr.of(int(expr))
        case sympy.Symbol():
            return Expr.var(expr.name)
        case sympy.Add():
            return functools.reduce(lambda a, b: a + b, map(converted, expr.args))
        case sympy.Mul():
            return _product(expr)
        case sympy.Pow(args=[base, sympy.Integer() as power]) if power >= 0:
            return functools.reduce(lambda a, b: a * b, [converted(base)] * int(power), Expr.of(1))
        case ModularIndexing(args=[base, divisor, modulus]):
            return (converted(base) // converted(divisor)) % converted(modulus)
        case FloorDiv(args=[base, divisor]) | CleanDiv(args=[base, divisor]):
            return converted(base) // converted(divisor)
        case CeilDiv(args=[base, divisor]):
            return ceil_div(converted(base), converted(divisor))
        case Mod(args=[base, divisor]) | PythonMod(args=[base, divisor]):
            return converted(base) % converted(divisor)
        case Min() | sympy.Min():
            return functools.reduce(lambda a, b: combine("min", a, b), map(converted, expr.args))
        case Max() | sympy.Max():
            return functools.reduce(lambda a, b: combine("max", a, b), map(converted, expr.args))
        case Identity(args=[inner]):
            return converted(inner)
    raise Unsupported(
        f"the size expression {expr}", why=f"{type(expr).__name__} has no integer form on the card"
    )


def _product(expr: sympy.Mul) -> Expr:
    """A product; a rational factor is exact by construction (Inductor writes s*(1/2) for s//2)."""
    numerator, denominator = expr.as_numer_denom()
    if denominator != 1:
        return converted(numerator) // converted(denominator)
    return functools.reduce(lambda a, b: a * b, map(converted, expr.args))


def simplified(expr: sympy.Expr | int) -> sympy.Expr:
    """An expression without the aliases Inductor made for sub-expressions (`ps0`)."""
    sizevars = V.graph.sizevars
    return sizevars.simplify(sizevars.remove_precomputed_replacements(sympy.sympify(expr)))


def size(expr: sympy.Expr | int) -> Expr:
    """A size or stride of the graph as an expression over its symbols."""
    return converted(expr) if isinstance(expr, int) else converted(simplified(expr))


def is_size_symbol(symbol: sympy.Symbol) -> bool:
    return symbol_is_type(symbol, (SymT.SIZE, SymT.UNBACKED_INT, SymT.PRECOMPUTED_SIZE))


@dataclass
class Symbols:
    """The size symbols a kernel uses, with the ranges PyTorch's guards promise."""

    limits: dict[str, tuple[int, int]] = field(default_factory=dict)

    def note(self, expr: Expr, own: frozenset[str] = frozenset()) -> Expr:
        """Record the symbols of `expr`; names in `own` are dims and lookups, not symbols."""
        for name in sorted(expr.names - own):
            if name not in self.limits:
                self.limits[name] = _range(name)
        return expr

    def lower(self, expr: Expr) -> int | None:
        """A proven lower bound of a polynomial over the symbols, or None."""
        shifted = expr.substitute({n: Expr.var(n) + low for n, (low, _) in self.limits.items()})
        if not shifted.is_polynomial:
            return _bounded(expr, self.limits, lower=True)
        if all(c >= 0 for m, c in shifted.terms if m):
            return next((c for m, c in shifted.terms if not m), 0)
        return None

    def upper(self, expr: Expr) -> int | None:
        return None if (bound := self.lower(-expr)) is None else -bound

    def nonnegative(self, expr: Expr) -> bool:
        bound = self.lower(expr)
        return bound is not None and bound >= 0

    def largest(self, expr: Expr) -> int:
        """A bound that holds because no size passes 2**31 - 1."""
        value = expr.constant
        return LARGEST if value is None else value


def _bounded(expr: Expr, limits: Mapping[str, tuple[int, int]], *, lower: bool) -> int | None:
    """Interval bound of a non-polynomial size: only the constant case is worth proving."""
    return expr.constant


def _range(name: str) -> tuple[int, int]:
    ranges = V.graph.sizevars.shape_env.var_to_range.get(sympy.Symbol(name, integer=True))
    for symbol, known in V.graph.sizevars.shape_env.var_to_range.items():
        if symbol.name == name:
            ranges = known
    if ranges is None:
        return 0, LARGEST
    low = max(int(ranges.lower), 0) if ranges.lower.is_finite else 0
    high = LARGEST
    if not isinstance(ranges.upper, IntInfinity) and ranges.upper.is_finite:
        high = min(int(ranges.upper), LARGEST)
    return low, high


Reader = Callable[[sympy.Expr], Expr]
