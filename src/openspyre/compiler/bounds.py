"""Ranges of size expressions over the symbol ranges that a plan serves."""

from __future__ import annotations

from collections.abc import Mapping

from openspyre.errors import BrokenInvariant
from openspyre.ir.index import Atom, Binary, Expr, Name

Range = tuple[int, int]


def value_range(expr: Expr, limits: Mapping[str, Range]) -> Range:
    """The smallest and largest value an expression can take (never too narrow).

    Raises:
        BrokenInvariant: a name of the expression has no range.
    """
    if expr.constant is not None:
        return expr.constant, expr.constant
    low = high = 0
    for monomial, coefficient in expr.terms:
        term = (coefficient, coefficient)
        for atom in monomial:
            term = _product(term, _atom_range(atom, limits))
        low, high = low + term[0], high + term[1]
    return low, high


def highest(expr: Expr, limits: Mapping[str, Range]) -> int:
    """The largest value of a size, at least 0."""
    return max(0, value_range(expr, limits)[1])


def _product(a: Range, b: Range) -> Range:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _atom_range(atom: Atom, limits: Mapping[str, Range]) -> Range:
    match atom:
        case Name(name):
            if name not in limits:
                raise BrokenInvariant(f"the size {name} has no limits")
            return limits[name]
        case Binary(op, left, right):
            return _binary_range(op, value_range(left, limits), value_range(right, limits))


def _binary_range(op: str, a: Range, b: Range) -> Range:
    match op:
        case "min":
            return min(a[0], b[0]), min(a[1], b[1])
        case "max":
            return max(a[0], b[0]), max(a[1], b[1])
        case "%":
            return (0, max(b[1] - 1, 0)) if b[0] > 0 else (min(b[0], 0), max(b[1], 0))
        case _:
            if b[0] <= 0 <= b[1]:
                bound = max(abs(a[0]), abs(a[1]))
                return -bound - 1, bound
            corners = [x // y for x in a for y in b]
            return min(corners), max(corners)
