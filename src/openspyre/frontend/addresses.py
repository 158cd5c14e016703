"""Flat addresses -> one index per dim.

Inductor hands over `64*i0 + i1 + 32`; the IR wants an index for each dim of the tensor. The
address is grouped by variable, each coefficient is divided by the strides from large to small,
and a dim whose index may leave its extent carries into the next larger one with `//` and `%`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openspyre.frontend.sizes import Symbols
from openspyre.ir.index import Binary, Expr, Monomial, Name

Interval = tuple[Expr, Expr]  # inclusive bounds over the symbols


@dataclass(frozen=True, slots=True)
class Placement:
    """A tensor's dims as its addresses were formed.

    Attributes:
        shared: indices that the tensor had before have places in common.
    """

    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    shared: bool = False

    def flat(self, symbols: Symbols) -> Placement:
        """The same memory as one dim where dims share elements, as those of `unfold` do.

        An address of such a tensor does not tell the indices that it came from.
        """
        if any(extent.constant == 0 for extent in self.shape):
            return self
        span, shared = Expr.of(1), False
        for d in reversed(_walking_order(self, symbols)):
            extent, stride = self.shape[d], self.strides[d]
            several = symbols.nonnegative(extent - 2)
            shared = shared or (several and symbols.nonnegative(span - 1 - stride))
            span = span + (extent - 1) * stride
        return Placement((span,), (Expr.of(1),), shared=True) if shared else self


@dataclass(frozen=True, slots=True)
class Domain:
    """What is known about the variables of an address: inclusive ranges over the symbols."""

    ranges: Mapping[str, Interval]
    symbols: Symbols

    def refined(self, ranges: Mapping[str, Interval]) -> Domain:
        return Domain({**self.ranges, **ranges}, self.symbols)

    def interval(self, expr: Expr) -> Interval | None:
        """Inclusive bounds of an expression, or None when they cannot be told."""
        low, high = Expr.of(0), Expr.of(0)
        grouped: dict[Monomial, Expr] = {}
        for monomial, coefficient in expr.terms:
            own = tuple(a for a in monomial if self._varies(a))
            rest = tuple(a for a in monomial if not self._varies(a))
            grouped[own] = grouped.get(own, Expr.of(0)) + Expr(((rest, coefficient),))
        for own, scale in grouped.items():
            if not own:
                low, high = low + scale, high + scale
                continue
            if len(own) != 1 or (bounds := self._atom(own[0])) is None:
                return None
            if self.symbols.nonnegative(scale):
                low, high = low + scale * bounds[0], high + scale * bounds[1]
            elif self.symbols.nonnegative(-scale):
                low, high = low + scale * bounds[1], high + scale * bounds[0]
            else:
                return None
        return low, high

    def _varies(self, atom: Name | Binary) -> bool:
        match atom:
            case Name(name):
                return name in self.ranges
            case Binary(_, left, right):
                return bool((left.names | right.names) & self.ranges.keys())

    def _atom(self, atom: Name | Binary) -> Interval | None:
        match atom:
            case Name(name):
                return self.ranges[name]
            case Binary("%", left, right) if self.symbols.nonnegative(right - 1):
                inner = self.interval(left)
                if inner and self._within(inner, right):
                    return inner
                return Expr.of(0), right - 1
            case Binary("//", left, right) if self.symbols.nonnegative(right - 1):
                inner = self.interval(left)
                if inner is None or not self.symbols.nonnegative(inner[0]):
                    return None
                top = inner[1] // right
                if not top.is_polynomial and (quotient := divided(inner[1] + 1, right)):
                    top = quotient[0] - 1 if quotient[1] == Expr.of(0) else top
                return Expr.of(0), top
            case Binary("min" | "max" as op, left, right):
                return self._extreme(op, left, right)
        return None

    def _extreme(self, op: str, left: Expr, right: Expr) -> Interval | None:
        a, b = self.interval(left), self.interval(right)
        if a is None or b is None:
            return None

        def picked(x: Expr, y: Expr) -> Expr | None:
            smaller = y if self.symbols.nonnegative(x - y) else x
            if smaller is x and not self.symbols.nonnegative(y - x):
                return None
            return smaller if op == "min" else (x if smaller is y else y)

        low, high = picked(a[0], b[0]), picked(a[1], b[1])
        if op == "max" and left == -right:  # an absolute value
            low = Expr.of(0)
        if op == "max" and high is not None:
            return (a[0] if low is None else low), high
        if op == "min" and low is not None:
            return low, (a[1] if high is None else high)
        return None

    def _within(self, bounds: Interval, extent: Expr) -> bool:
        symbols = self.symbols
        return symbols.nonnegative(bounds[0]) and symbols.nonnegative(extent - 1 - bounds[1])

    def inside(self, expr: Expr, extent: Expr) -> bool:
        """True when 0 <= expr < extent is proven (or the domain is empty)."""
        bounds = self.interval(expr)
        return bounds is not None and self._within(bounds, extent)

    def number(self, expr: Expr) -> tuple[int, int] | None:
        """Numeric bounds, taking every size as at most 2**31 - 1."""
        bounds = self.interval(expr)
        if bounds is None:
            return None
        low, high = self.symbols.lower(bounds[0]), bounds[1].constant
        if low is None:
            return None
        if high is None and len(bounds[1].terms) <= 2:  # s - 1 and the like
            linear = [m for m, c in bounds[1].terms if m]
            if len(linear) == 1 and len(linear[0]) == 1 and dict(bounds[1].terms)[linear[0]] == 1:
                offset = bounds[1].without(frozenset(bounds[1].names)).constant or 0
                high = 2**31 - 1 + offset if offset <= 0 else None
        return None if high is None else (low, high)


def divided(value: Expr, by: Expr) -> tuple[Expr, Expr] | None:
    """Quotient and remainder of polynomials with integer coefficients; None for `by` == 0.

    Coefficients divide towards zero, so a negative offset smaller than a stride stays whole.
    """
    if not by.terms:
        return None
    lead, scale = by.terms[0]
    quotient, remainder, rest = Expr.of(0), Expr.of(0), value
    while rest.terms:
        monomial, coefficient = rest.terms[0]
        term = Expr((rest.terms[0],))
        left = _without(monomial, lead)
        times = abs(coefficient) // abs(scale) * (1 if (coefficient < 0) == (scale < 0) else -1)
        if left is None or times == 0:
            remainder, rest = remainder + term, rest - term
            continue
        part = Expr(((left, times),))
        quotient, rest = quotient + part, rest - part * by
        if dict(rest.terms).get(monomial):
            kept = Expr(((monomial, dict(rest.terms)[monomial]),))
            remainder, rest = remainder + kept, rest - kept
    return quotient, remainder


def _without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    left = list(monomial)
    for atom in factors:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def indices(address: Expr, placement: Placement, domain: Domain) -> tuple[tuple[Expr, ...], bool]:
    """One index per dim whose address is `address`, and whether all are proven in range.

    Dims of extent 1 and of stride 0 get index 0. An index that may leave its dim carries into
    the next larger dim where the two lie densely, so the result is right for every address of
    the tensor; the flag is False when an address outside the tensor cannot be excluded.
    """
    order = _walking_order(placement, domain.symbols)
    found = _by_stride(address, placement, order, domain)
    if found is None:
        found = _unflattened(address, placement, order)
    elif not all(domain.inside(found[d], placement.shape[d]) for d in order):
        found = _carried(found, address, placement, order, domain)
    index = tuple(found.get(d, Expr.of(0)) for d in range(len(placement.shape)))
    safe = all(domain.inside(i, e) for i, e in zip(index, placement.shape, strict=True))
    return index, safe


def _walking_order(placement: Placement, symbols: Symbols) -> list[int]:
    """Dims that move the address, largest stride first."""
    moving = [
        d
        for d, (extent, stride) in enumerate(zip(placement.shape, placement.strides, strict=True))
        if extent.constant != 1 and stride.constant != 0
    ]

    # Ties keep the outer dim.
    extents, strides = ([dims[d] for d in moving] for dims in (placement.shape, placement.strides))
    values = _possible_sizes(extents, strides, symbols)
    return sorted(moving, key=lambda d: (-placement.strides[d].evaluate(values), d))


def _possible_sizes(
    extents: Sequence[Expr], strides: Sequence[Expr], symbols: Symbols
) -> dict[str, int]:
    """The values that the graph was traced with, where those tell the strides apart.

    Otherwise large values of the symbols, but small ones of those that extents shrink with: so the
    extents of a convolution, `s0 - s1 + 3`, are positive. Where they are not, the traced values.
    """
    names = frozenset[str]().union(*(e.names for e in (*extents, *strides)))
    if names <= symbols.traced.keys():
        steps = [stride.evaluate(symbols.traced) for stride in strides]
        if len(set(steps)) == len(steps):
            return {name: symbols.traced[name] for name in names}
    less = frozenset[str]().union(*map(_subtracted, extents))
    found = {n: (5 if n in less else 1009) + 16 * k for k, n in enumerate(sorted(names))}
    if less and any(extent.evaluate(found) <= 0 for extent in extents):
        found.update({n: symbols.traced[n] for n in names & symbols.traced.keys()})
    return found


def _subtracted(extent: Expr) -> frozenset[str]:
    """Symbols in terms with a negative coefficient, those of divided expressions included."""
    found = frozenset[str]()
    for monomial, coefficient in extent.terms:
        if coefficient < 0:
            found |= Expr(((monomial, 1),)).names
            continue
        for atom in monomial:
            if isinstance(atom, Binary):
                found |= _subtracted(atom.left)
    return found


def _by_stride(
    address: Expr, placement: Placement, order: Sequence[int], domain: Domain
) -> dict[int, Expr] | None:
    grouped: dict[Monomial, Expr] = {}
    for monomial, coefficient in address.terms:
        own = tuple(a for a in monomial if domain._varies(a))
        rest = tuple(a for a in monomial if not domain._varies(a))
        grouped[own] = grouped.get(own, Expr.of(0)) + Expr(((rest, coefficient),))
    found = {d: Expr.of(0) for d in order}
    for own, scale in grouped.items():
        left = scale
        for d in order:
            split = divided(left, placement.strides[d])
            if split is None:
                return None
            if not own and domain.symbols.nonnegative(left):
                split = _from_zero(split, placement.strides[d], domain.symbols)
            found[d] = found[d] + split[0] * Expr(((own, 1),))
            left = split[1]
        if left.terms:
            return None
    return found


def _from_zero(split: tuple[Expr, Expr], stride: Expr, symbols: Symbols) -> tuple[Expr, Expr]:
    """A quotient and remainder without a negative remainder: s = 1*(s + 1) - 1 is 0*(s + 1) + s."""
    quotient, remainder = split
    if symbols.nonnegative(-remainder - 1) and symbols.nonnegative(remainder + stride):
        return quotient - 1, remainder + stride
    return split


def _carried(
    found: dict[int, Expr],
    address: Expr,
    placement: Placement,
    order: Sequence[int],
    domain: Domain,
) -> dict[int, Expr]:
    """Move what exceeds a dim into the next larger one."""
    result = dict(found)
    for outer, inner in zip(reversed(order[:-1]), reversed(order[1:]), strict=True):
        extent = placement.shape[inner]
        if domain.inside(result[inner], extent):
            continue
        if placement.strides[outer] != placement.strides[inner] * extent:
            return _unflattened(address, placement, order)
        result[outer] = result[outer] + result[inner] // extent
        result[inner] = result[inner] % extent
    return result


def _unflattened(address: Expr, placement: Placement, order: Sequence[int]) -> dict[int, Expr]:
    """Indices by dividing the whole address; right for dims that do not overlap."""
    found, left = {}, address
    for position, d in enumerate(order):
        found[d] = left // placement.strides[d]
        if position + 1 < len(order):
            left = left % placement.strides[d]
    return found
