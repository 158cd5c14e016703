"""One loop nest under construction: its dims, what is known about them, its lookups and values.

The recorder fills a nest from an Inductor loop body; a nest turns values into ops of the region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from openspyre.frontend.addresses import Domain, Interval
from openspyre.frontend.regions import Region
from openspyre.frontend.values import STORED, Arithmetic, Value
from openspyre.ir.index import Expr
from openspyre.ir.kernel import (
    Access,
    Call,
    Const,
    Dim,
    DType,
    Index,
    Kind,
    Load,
    Lookup,
    Scalar,
    walk,
)


@dataclass(frozen=True, slots=True)
class Pending:
    """A reduction or scan that is not stored yet: its store may go straight to the buffer."""

    kind: Kind
    body: Scalar
    reduce: str | None
    dtype: torch.dtype


Made = Value | Pending
Deferred = Callable[[], Made]


class Nest:
    """The points of `dims` x `rdims`, and the values at one of them.

    Attributes:
        a: builds values.
        domain: ranges of dims and lookups.
        masks: conditions under which the loads being recorded count.
        known: indirect symbols that turned out to be plain index expressions.
    """

    def __init__(
        self, region: Region, dims: tuple[Dim, ...], rdims: tuple[Dim, ...], hint: str
    ) -> None:
        self.region, self.dims, self.rdims, self.hint = region, dims, rdims, hint
        self.a = Arithmetic()
        self.lookups: dict[str, Lookup] = {}
        self.known: dict[str, Expr] = {}
        self.masks: list[Scalar] = []
        for dim in (*dims, *rdims):
            region.symbols.note(dim.extent)
        ranges = {d.name: (Expr.of(0), d.extent - 1) for d in (*dims, *rdims)}
        self.domain = Domain(ranges, region.symbols)

    # --- ranges ---

    def masked_domain(self) -> Domain:
        """The domain where the masks in force hold."""
        larger = self.region.symbols.nonnegative
        ranges: dict[str, Interval] = {}
        for mask in self.masks:
            for name, low, high in _bounds_of(mask, frozenset(self.domain.ranges)):
                least, most = ranges.get(name, self.domain.ranges[name])
                if low is not None and larger(low - least):
                    least = low
                if high is not None and larger(most - high):
                    most = high
                ranges[name] = least, most
        return self.domain.refined(ranges) if ranges else self.domain

    def decided(self, value: Value) -> Value:
        """A comparison of index expressions: its result where ranges tell it, else in i32."""
        match value.scalar:
            case Call("eq" | "ne" | "lt" | "le" | "gt" | "ge" as op, (left, right)):
                a, b = affine(left), affine(right)
                if a is None or b is None:
                    return value
                if (known := self._compared(op, a - b)) is not None:
                    return self.a.constant(known, torch.bool)
                if self._fits_i32(a) and self._fits_i32(b):
                    narrow = (self.a.index(e, torch.int32) for e in (a, b))
                    return self.a.apply(op, *narrow)
        return value

    def _fits_i32(self, expr: Expr) -> bool:
        bounds = self.domain.number(expr)
        return bounds is not None and bounds[0] >= -(2**31) and bounds[1] < 2**31

    def _compared(self, op: str, difference: Expr) -> bool | None:
        bounds = self.masked_domain().interval(difference)
        if bounds is None:
            return None
        nonnegative = self.region.symbols.nonnegative
        below, above = nonnegative(-bounds[1] - 1), nonnegative(bounds[0] - 1)
        at_most, at_least = nonnegative(-bounds[1]), nonnegative(bounds[0])
        true, false = {
            "lt": (below, at_least),
            "ge": (at_least, below),
            "le": (at_most, above),
            "gt": (above, at_most),
            "eq": (at_most and at_least, below or above),
            "ne": (below or above, at_most and at_least),
        }[op]
        return True if true else (False if false else None)

    # --- lookups ---

    def look_up(self, name: str, value: Value, extent: Expr, *, wrap: bool) -> None:
        """Let `name` stand for `value` as an index of a dim of `extent` elements."""
        expr = affine(value.scalar)
        if expr is not None and self.masked_domain().inside(expr, extent):
            self.known[name] = expr
            return
        source = self._index_source(value)
        lookup = Lookup(name, source.tensor, source.index, extent, wrap)
        for known, old in self.lookups.items():
            if _same_source(old, lookup):
                self.known[name] = Expr.var(known)
                return
        self.lookups[name] = lookup
        self.domain = self.domain.refined({name: (Expr.of(0), extent - 1)})

    def lookup_of(self, name: str) -> Lookup | None:
        """What `name` looks up, be it under the name of an equal one."""
        for known, lookup in self.lookups.items():
            if known == name or self.known.get(name) == Expr.var(known):
                return lookup
        return None

    def _index_source(self, value: Value) -> Load:
        """A plain load of an integer tensor that gives `value`."""
        scalar = value.scalar
        if isinstance(scalar, Call) and scalar.op == "cast" and scalar.dtype is DType.I64:
            inner = scalar.args[0]
            scalar = inner if inner.dtype is DType.I32 else scalar
        if isinstance(scalar, Load) and not scalar.guarded and not self.lookups_in(scalar):
            return scalar
        return self._materialised(self.a.converted(value, torch.int64))

    def lookups_in(self, scalar: Scalar) -> set[str]:
        return {n for n in names_in(scalar) if n in self.lookups}

    # --- values in local tensors ---

    def saved(self, value: Value) -> Value:
        """The same value, read from a local tensor over the dims it depends on."""
        return self.a.load(self._materialised(value), value.dtype)

    def _materialised(self, value: Value) -> Load:
        names = set(names_in(value.scalar))
        for lookup in self.lookups_in(value.scalar):
            for expr in self.lookups[lookup].index:
                names |= expr.names
        dims = tuple(d for d in (*self.dims, *self.rdims) if d.name in names)
        index = tuple(Expr.var(d.name) for d in dims)
        tensor = self.region.local(f"{self.hint}.part", value.dtype, tuple(d.extent for d in dims))
        name = self.emit(Kind.MAP, value.scalar, Access(tensor.name, index), dims=dims)
        return Load(name, index, STORED[value.dtype].compute)

    def settled(self, made: Pending) -> Value:
        """The result of a reduction, in a local tensor over the nest's dims."""
        index = tuple(Expr.var(d.name) for d in self.dims)
        tensor = self.region.local(
            f"{self.hint}.{made.reduce or 'dot'}", made.dtype, tuple(d.extent for d in self.dims)
        )
        name = self.reduce(made, Access(tensor.name, index))
        return self.a.load(Load(name, index, STORED[made.dtype].compute), made.dtype)

    # --- ops ---

    def reduce(self, made: Pending, out: Access) -> str:
        """Emit a reduction or scan; returns the tensor that holds the result."""
        return self.emit(made.kind, made.body, out, rdims=self.rdims, reduce=made.reduce)

    def emit(
        self,
        kind: Kind,
        body: Scalar,
        out: Access,
        *,
        dims: tuple[Dim, ...] | None = None,
        rdims: tuple[Dim, ...] = (),
        reduce: str | None = None,
        accumulate: bool = False,
    ) -> str:
        """Emit an op over the nest's dims (or `dims`); returns the tensor that holds its values."""
        return self.region.emit(
            kind,
            self.dims if dims is None else dims,
            body,
            out,
            rdims=rdims,
            reduce=reduce,
            lookups=self.lookups.values(),
            accumulate=accumulate,
        )


def affine(scalar: Scalar) -> Expr | None:
    """The index expression that a value is, if it is one."""
    match scalar:
        case Index(expr):
            return expr
        case Const(value, dtype) if dtype in (DType.I64, DType.I32):
            return Expr.of(int(value))
    return None


def names_in(scalar: Scalar) -> Iterator[str]:
    """Dims, lookups and symbols a value depends on."""
    for node in walk(scalar):
        match node:
            case Load(_, index):
                for expr in index:
                    yield from expr.names
            case Index(expr):
                yield from expr.names


def _same_source(a: Lookup, b: Lookup) -> bool:
    return (a.tensor, a.index, a.size, a.wrap) == (b.tensor, b.index, b.size, b.wrap)


Bounds = Iterator[tuple[str, Expr | None, Expr | None]]


def _bounds_of(mask: Scalar, variables: frozenset[str]) -> Bounds:
    """Inclusive bounds of single variables that a mask implies."""
    match mask:
        case Call("and", (left, right)):
            yield from _bounds_of(left, variables)
            yield from _bounds_of(right, variables)
        case Call("lt" | "le" | "gt" | "ge" as op, (left, right)):
            a, b = affine(left), affine(right)
            if a is None or b is None:
                return
            slack = {"lt": b - a - 1, "le": b - a, "gt": a - b - 1, "ge": a - b}[op]
            yield from _solved(slack, variables)


def _solved(slack: Expr, variables: frozenset[str]) -> Bounds:
    """From `slack >= 0`, affine in one variable with coefficient 1 or -1."""
    if len(slack.names & variables) != 1 or not slack.is_affine_in(variables):
        return
    (name,) = slack.names & variables
    rest = slack.without(variables)
    match slack.coefficient(name).constant:
        case 1:
            yield name, -rest, None
        case -1:
            yield name, None, rest
