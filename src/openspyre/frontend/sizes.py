"""Sympy integer expressions of Inductor -> `ir.index.Expr`, and what is known about symbols."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import sympy
from torch._inductor import ir
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
    Where,
)

from openspyre.errors import Unsupported
from openspyre.ir.index import Binary, Expr, ceil_div, combine

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
        case sympy.Abs(args=[inner]):
            return combine("max", converted(inner), -converted(inner))
        case Identity(args=[inner]):
            return converted(inner)
        case Where(
            args=[sympy.StrictLessThan(args=[index, sympy.Integer(p=0)]), wrapped, same]
        ) if index == same:
            return _wrapped(index, wrapped - index)
    raise Unsupported(
        f"the size expression {expr}", why=f"{type(expr).__name__} has no integer form on the card"
    )


def _wrapped(index: sympy.Expr, extent: sympy.Expr) -> Expr:
    """An index that counts from the end where it is negative, of a dim of `extent` elements."""
    match index:
        case ModularIndexing() | Mod() | PythonMod() if index.args[-1] == extent:
            return converted(index)
    return converted(index) % converted(extent)


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


@dataclass
class Symbols:
    """The size symbols a kernel uses, with the ranges PyTorch's guards promise.

    Attributes:
        traced: the values that the graph was traced with, as far as it was.
    """

    limits: dict[str, tuple[int, int]] = field(default_factory=dict)
    traced: dict[str, int] = field(default_factory=dict)

    def note(self, expr: Expr, own: frozenset[str] = frozenset()) -> Expr:
        """Record the symbols of `expr`; names in `own` are dims and lookups, not symbols."""
        for name in sorted(expr.names - own):
            if name not in self.limits:
                self.limits[name] = _range(name)
                self.traced.update(_traced(name))
        return expr

    def lower(self, expr: Expr) -> int | None:
        """A proven lower bound of an expression over the symbols, or None."""
        if expr.constant is not None:
            return expr.constant
        shifted = _without_floors(expr).substitute(
            {n: Expr.var(n) + low for n, (low, _) in self.limits.items()}
        )
        if not shifted.is_polynomial:
            return None
        if all(c >= 0 for m, c in shifted.terms if m):
            return next((c for m, c in shifted.terms if not m), 0)
        return None

    def nonnegative(self, expr: Expr) -> bool:
        bound = self.lower(expr)
        return bound is not None and bound >= 0


def _without_floors(expr: Expr) -> Expr:
    """A polynomial that is nowhere larger: whole multiples of `e // k` become multiples of `e`."""
    total = Expr.of(0)
    for monomial, coefficient in expr.terms:
        term = Expr(((monomial, coefficient),))
        match monomial:
            case (Binary("//", left, right),) if (
                right.constant and right.constant > 0 and coefficient % right.constant == 0
            ):
                numerator = left if coefficient < 0 else left - right + 1
                term = _without_floors(numerator * (coefficient // right.constant))
        total = total + term
    return total


def _range(name: str) -> tuple[int, int]:
    """The inclusive range that guards promise for a symbol, within what the card can count."""
    known = V.graph.sizevars.shape_env.var_to_range
    found = next((r for symbol, r in known.items() if symbol.name == name), None)
    low, high = (0, LARGEST) if _is_size(name) else (-(2**63), 2**63 - 1)
    if found is None:
        return low, high
    return max(low, _bound(found.lower, low)), min(high, _bound(found.upper, high))


def _traced(name: str) -> dict[str, int]:
    known = V.graph.sizevars.shape_env.backed_var_to_val
    return {s.name: int(value) for s, value in known.items() if s.name == name}


def _bound(value: sympy.Expr, unknown: int) -> int:
    """A bound of PyTorch's; its own infinities call themselves finite."""
    return int(value) if isinstance(value, sympy.Integer) else unknown


def _is_size(name: str) -> bool:
    """Whether a tensor's form bounds a symbol; a number that the user passes may be any int64."""
    graph = V.graph
    tensors = (*graph.graph_inputs.values(), *graph.name_to_buffer.values())
    return any(
        symbol.name == name
        for tensor in tensors
        if isinstance(tensor, ir.IRNode) and tensor.maybe_get_size() is not None
        for expr in (*tensor.get_size(), *(tensor.maybe_get_stride() or ()))
        for symbol in sympy.sympify(expr).free_symbols
    )
