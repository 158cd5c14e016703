"""What is known about index expressions: signs, ranges, and `//` and `%` that vanish by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd, inf

from openspyre.ir.index import Atom, Binary, Expr, Monomial, Name, combine

Interval = tuple[float, float]
_ONE = Expr.of(1)


@dataclass(frozen=True, slots=True)
class Facts:
    """Ranges of the names of an op.

    Attributes:
        extents: of names that count from 0 (dims). A dim with an empty extent has no points, so
            whatever is asked about it holds.
        limits: inclusive ranges of the size symbols.
    """

    extents: Mapping[str, Expr]
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def nonnegative(self, expr: Expr) -> bool:
        """True when `expr >= 0` is proved for every point and every size."""
        if expr.constant is not None:
            return expr.constant >= 0
        lowest = self._at_minimum(expr)
        return lowest is not None and self._sizes_nonnegative(lowest)

    def within(self, expr: Expr, size: Expr) -> bool:
        """True when `0 <= expr < size` is proved."""
        return self.nonnegative(expr) and self.nonnegative(size - 1 - expr)

    def interval(self, expr: Expr) -> Interval:
        """Numeric bounds, infinite where nothing is known."""
        low, high = 0.0, 0.0
        for monomial, coefficient in expr.terms:
            bounds = (float(coefficient), float(coefficient))
            for atom in monomial:
                bounds = _product(bounds, self._atom_interval(atom))
            low, high = low + bounds[0], high + bounds[1]
        return low, high

    def simplify(self, expr: Expr) -> Expr:
        """An equal expression, without the `//`, `%`, `min` and `max` that ranges decide."""
        if expr.is_polynomial:
            return expr
        total = Expr.of(0)
        for monomial, coefficient in expr.terms:
            product = Expr.of(coefficient)
            for atom in monomial:
                product = product * self._simple_atom(atom)
            total = total + product
        return total

    # --- signs -------------------------------------------------------------------------------

    def _at_minimum(self, expr: Expr) -> Expr | None:
        """The expression with every dim where it is smallest; None when that is not known."""
        for name in sorted(expr.names & self.extents.keys()):
            if name not in expr.names:
                continue
            try:
                coefficient = expr.coefficient(name)
            except ValueError:
                continue  # inside // and the like: its interval must do
            if coefficient.names & self.extents.keys():
                return None
            if self._sizes_nonnegative(coefficient):
                expr = expr.substitute({name: 0})
            elif self._sizes_nonnegative(-coefficient):
                expr = expr.substitute({name: self.extents[name] - 1})
            else:
                return None
        return expr

    def _sizes_nonnegative(self, expr: Expr) -> bool:
        """True when a polynomial of sizes is never negative."""
        if expr.constant is not None:
            return expr.constant >= 0
        if self.interval(expr)[0] >= 0:
            return True
        shift = {
            n: Expr.var(n) + int(low)
            for n in expr.names
            if n not in self.extents and (low := self._size_interval(n)[0]) > -inf
        }
        return self.interval_from_zero(expr.substitute(shift))[0] >= 0

    def interval_from_zero(self, expr: Expr) -> Interval:
        """Bounds when every size may be any number from 0 on."""
        return Facts({}, dict.fromkeys(expr.names, (0, 1 << 62))).interval(expr)

    def _size_interval(self, name: str) -> Interval:
        low, high = self.limits.get(name, (0, inf))
        if low < 1 and any(_is_factor(name, e) for e in self.extents.values()):
            low = 1  # a point exists only where no extent is 0
        return float(low), float(high)

    def _atom_interval(self, atom: Atom) -> Interval:
        match atom:
            case Name(name):
                if name in self.extents:
                    return 0.0, max(self.interval(self.extents[name])[1] - 1, 0.0)
                return self._size_interval(name)
            case Binary(op, left, right):
                a, b = self.interval(left), self.interval(right)
                match op:
                    case "min":
                        return min(a[0], b[0]), min(a[1], b[1])
                    case "max":
                        return max(a[0], b[0]), max(a[1], b[1])
                    case "%" if b[0] > 0:
                        return 0.0, b[1] - 1
                    case "//" if b[0] > 0 and a[0] >= 0:
                        return a[0] // b[1], a[1] if a[1] == inf else a[1] // b[0]
        return -inf, inf

    # --- simplification ----------------------------------------------------------------------

    def _simple_atom(self, atom: Atom) -> Expr:
        match atom:
            case Name(name):
                return Expr.var(name)
            case Binary(op, left, right):
                a, b = self.simplify(left), self.simplify(right)
                match op:
                    case "//":
                        return self._quotient(a, b)
                    case "%":
                        return self._remainder(a, b)
                    case "min":
                        return self._smaller(a, b)
                    case _:
                        return -self._smaller(-a, -b) if self._ordered(a, b) else combine(op, a, b)

    def _ordered(self, a: Expr, b: Expr) -> bool:
        return self.nonnegative(a - b) or self.nonnegative(b - a)

    def _smaller(self, a: Expr, b: Expr) -> Expr:
        if self.nonnegative(b - a):
            return a
        return b if self.nonnegative(a - b) else combine("min", a, b)

    def _quotient(self, left: Expr, right: Expr) -> Expr:
        if not self.nonnegative(right - 1):
            return left // right
        whole, rest = split_multiples(left, right)
        if not rest.terms or self.within(rest, right):
            return whole
        factor, multiples, _ = self._common_factor(rest, right)
        if factor > 1:
            return whole + self._quotient(multiples, Expr.of((right.constant or 0) // factor))
        return whole + rest // right

    def _remainder(self, left: Expr, right: Expr) -> Expr:
        if not self.nonnegative(right - 1):
            return left % right
        _, rest = split_multiples(left, right)
        if not rest.terms or self.within(rest, right):
            return rest
        factor, multiples, small = self._common_factor(rest, right)
        if factor > 1:
            inner = self._remainder(multiples, Expr.of((right.constant or 0) // factor))
            return inner * factor + small
        return rest % right

    def _common_factor(self, expr: Expr, right: Expr) -> tuple[int, Expr, Expr]:
        """g > 1 that divides a constant `right`, with expr = g * multiples + small, small < g."""
        none = (1, expr, Expr.of(0))
        if right.constant is None:
            return none
        divisors = {gcd(abs(c), right.constant) for _, c in expr.terms}
        for g in sorted(divisors, reverse=True):
            if g <= 1 or g >= right.constant:
                continue
            multiples, small = split_multiples(expr, Expr.of(g))
            if multiples.terms and self.within(small, Expr.of(g)):
                return g, multiples, small
        return none


def _is_factor(name: str, expr: Expr) -> bool:
    return len(expr.terms) == 1 and Name(name) in expr.terms[0][0]


def _product(a: Interval, b: Interval) -> Interval:
    ends = [0.0 if 0 in (x, y) else x * y for x in a for y in b]
    return min(ends), max(ends)


def split_multiples(expr: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    """(q, rest) with expr = divisor * q + rest, term by term."""
    whole, rest = Expr.of(0), Expr.of(0)
    for monomial, coefficient in expr.terms:
        term = Expr(((monomial, coefficient),))
        quotient = exact_quotient(term, divisor)
        if quotient is None and divisor.constant:
            part = coefficient // divisor.constant if not monomial else 0
            whole, rest = whole + part, rest + term - part * divisor.constant
        elif quotient is None:
            rest = rest + term
        else:
            whole = whole + quotient
    return whole, rest


def exact_quotient(expr: Expr, divisor: Expr) -> Expr | None:
    """expr / divisor where that is an integer polynomial for every size, else None."""
    if divisor == _ONE:
        return expr
    if not divisor.terms:
        return None
    remaining, quotient = expr, Expr.of(0)
    lead, by = divisor.terms[0]
    while remaining.terms:  # polynomial long division by the leading term
        found = _divided_term(remaining, lead, by)
        if found is None:
            return None
        quotient = quotient + found
        following = remaining - found * divisor
        if len(following.terms) > len(expr.terms) + len(divisor.terms):
            return None
        remaining = following
    return quotient


def _divided_term(expr: Expr, lead: Monomial, by: int) -> Expr | None:
    monomial, coefficient = expr.terms[0]
    if coefficient % by:
        return None
    rest = list(monomial)
    for atom in lead:
        if atom not in rest:
            return None
        rest.remove(atom)
    return Expr(((tuple(rest), coefficient // by),))
