"""Reads one Inductor loop body: an ops handler that turns it into ops of the region.

Nothing here decides anything about the card. What the IR cannot say in one op becomes several:
a lookup of a computed index, argmax, variance (Welford).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import sympy
import torch
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.virtualized import OpsWrapper
from torch.utils._sympy.functions import (
    FloatPow,
    FloatTrueDiv,
    IntTrueDiv,
    ToFloat,
)

from openspyre.errors import Unsupported
from openspyre.frontend.addresses import Domain, Interval, indices
from openspyre.frontend.functions import FUNCTIONS
from openspyre.frontend.regions import Region, Site
from openspyre.frontend.sizes import converted, simplified
from openspyre.frontend.values import STORED, Arithmetic, Operand, Value
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
    Role,
    Scalar,
    walk,
)

HEAVY = 400  # nodes; a larger expression is cut by a local tensor (shared parts count twice)
_SCANS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}


@dataclass(frozen=True, slots=True)
class Pending:
    """A reduction that is not stored yet: its store may go straight to the buffer."""

    kind: Kind
    body: Scalar
    reduce: str | None
    dtype: torch.dtype


Made = Union[Value, Pending]
Deferred = Callable[[], Made]


class Recorder(DefaultHandler):
    """One body over `dims` and `rdims`; its ops land in `region` when a value is stored."""

    def __init__(
        self,
        region: Region,
        sites: Callable[[str], Site],
        dims: tuple[Dim, ...],
        rdims: tuple[Dim, ...],
        hint: str,
    ) -> None:
        self.region, self.sites, self.hint = region, sites, hint
        self.dims, self.rdims = dims, rdims
        self.a = Arithmetic()
        self.lookups: dict[str, Lookup] = {}
        self.known: dict[str, Expr] = {}  # indirect symbols that are plain index expressions
        self.masks: list[Scalar] = []
        ranges = {d.name: (Expr.of(0), d.extent - 1) for d in (*dims, *rdims)}
        for dim in (*dims, *rdims):
            region.symbols.note(dim.extent)
        self.domain = Domain(ranges, region.symbols)

    # --- what every op may take ---

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        function = FUNCTIONS.get(name)
        if function is None:
            raise Unsupported(
                f"the scalar operation {name!r}",
                why="the card's op table has no such operation and it is not composed of others",
                hint="keep this operation outside the compiled function, or on the CPU",
                at=self.region.source,
            )
        return self._decided(function(self.a, *map(self._operand, args), **kwargs))

    def _operand(self, operand: Any) -> Operand:
        """An argument of an op: a value (stored first, where it is a reduction or large)."""
        match operand:
            case bool() | int() | float():
                return operand
            case sympy.Expr():
                return self._of_sympy(operand)
            case Pending():
                return self._settled(operand)
            case Value():
                return self._cut(operand) if self.a.weight(operand.scalar) > HEAVY else operand
        return self._operand(operand())

    def _decided(self, value: Value) -> Value:
        """A comparison of index expressions, decided where their ranges decide it."""
        match value.scalar:
            case Call(("eq" | "ne" | "lt" | "le" | "gt" | "ge") as op, (left, right)):
                a, b = _affine(left), _affine(right)
                if a is None or b is None:
                    return value
                if (known := self._compared(op, a - b)) is not None:
                    return self.a.constant(known, torch.bool)
                if self._fits_i32(a) and self._fits_i32(b):
                    return self.a.apply(
                        op, self.a.index(a, torch.int32), self.a.index(b, torch.int32)
                    )
        return value

    def _fits_i32(self, expr: Expr) -> bool:
        bounds = self.domain.number(expr)
        return bounds is not None and bounds[0] >= -(2**31) and bounds[1] < 2**31

    def _compared(self, op: str, difference: Expr) -> bool | None:
        bounds = self._refined().interval(difference)
        if bounds is None:
            return None
        nonnegative = self.region.symbols.nonnegative
        below, above = nonnegative(-bounds[1] - 1), nonnegative(bounds[0] - 1)
        at_most, at_least = nonnegative(-bounds[1]), nonnegative(bounds[0])
        match op:
            case "lt":
                return True if below else (False if at_least else None)
            case "ge":
                return True if at_least else (False if below else None)
            case "le":
                return True if at_most else (False if above else None)
            case "gt":
                return True if above else (False if at_most else None)
            case "eq" | "ne" if below or above:
                return op == "ne"
            case "eq" | "ne" if at_most and at_least:
                return op == "eq"
        return None

    # --- leaves ---

    def constant(self, value: Any, dtype: torch.dtype) -> Value:
        if isinstance(value, sympy.Expr):
            return self.a.converted(self._of_sympy(value), _computable(dtype))
        return self.a.constant(value, dtype)

    def index_expr(self, expr: Any, dtype: torch.dtype) -> Value:
        value = self._of_sympy(sympy.sympify(expr))
        return self.a.converted(value, _computable(dtype))

    value_expr = index_expr

    def _of_sympy(self, expr: sympy.Expr) -> Value:
        """A size or index expression as a value: integers as i64, the rest as float32."""
        match expr:
            case sympy.Float() | sympy.Rational() if not expr.is_integer:
                return self.a.constant(float(expr), torch.float32)
            case ToFloat(args=[inner]):
                return self.a.converted(self._of_sympy(inner), torch.float32)
            case FloatTrueDiv(args=[x, y]) | IntTrueDiv(args=[x, y]):
                return self._default("truediv", (self._of_sympy(x), self._of_sympy(y)), {})
            case FloatPow(args=[x, y]):
                power = self.a.converted(self._of_sympy(y), torch.float32)
                return self.a.apply("pow", self._of_sympy(x), power)
            case sympy.Add() | sympy.Mul() if not expr.is_integer:
                op = "add" if isinstance(expr, sympy.Add) else "mul"
                total = self._of_sympy(expr.args[0])
                for part in expr.args[1:]:
                    total = self.a.apply(op, total, self._of_sympy(part), dtype=torch.float32)
                return total
            case sympy.Pow(args=[x, y]) if not expr.is_integer:
                return self.a.apply(
                    "pow", self._of_sympy(x), self._of_sympy(y), dtype=torch.float32
                )
        return self.a.index(self._expr(expr))

    def _expr(self, expr: sympy.Expr) -> Expr:
        own = self.domain.ranges.keys() | self.known.keys()
        return self.region.symbols.note(
            converted(simplified(expr)).substitute(self.known), frozenset(own)
        )

    def load(self, name: str, index: sympy.Expr) -> Value:
        site = self.sites(name)
        domain = self._refined()
        found, safe = indices(self._expr(index) + site.shift, site.placement, domain)
        if self.masks and domain is not self.domain:
            safe = all(
                self.domain.inside(i, e) for i, e in zip(found, site.placement.shape, strict=True)
            )
        tensor = self.region.current(site.tensor)
        dtype = _computable(site.dtype)
        load = Load(tensor, found, STORED[dtype].compute, guarded=bool(self.masks) and not safe)
        return self.a.load(load, dtype)

    # --- masks ---

    def masked(self, mask: Any, body: Callable[[], Any], other: Any) -> Value:
        condition = self.a.truth(self.a.value(self._operand(mask)))
        if isinstance(condition.scalar, Const):
            if condition.scalar.value:
                return self.a.value(self._operand(body()))
            if not isinstance(other, Value):  # the body may read outside; only its dtype counts
                self.masks.append(condition.scalar)
                dtype = self.a.value(self._operand(body())).dtype
                self.masks.pop()
                return self.a.constant(other, dtype)
        self.masks.append(condition.scalar)
        try:
            result = self.a.value(self._operand(body()))
        finally:
            self.masks.pop()
        return self.a.where(condition, result, self._operand(other))

    def _refined(self) -> Domain:
        """The domain where the masks in force hold."""
        ranges: dict[str, Interval] = {}
        for mask in self.masks:
            for name, low, high in _bounds_of(mask, frozenset(self.domain.ranges)):
                old_low, old_high = ranges.get(name, self.domain.ranges[name])
                ranges[name] = (
                    old_low if low is None or not self._larger(low, old_low) else low,
                    old_high if high is None or not self._larger(old_high, high) else high,
                )
        return self.domain.refined(ranges) if ranges else self.domain

    def _larger(self, a: Expr, b: Expr) -> bool:
        return self.region.symbols.nonnegative(a - b)

    # --- conversion ---

    def to_dtype(
        self,
        x: Any,
        dtype: torch.dtype,
        src_dtype: torch.dtype | None = None,
        use_compute_types: bool = True,
    ) -> Value:
        value = self.a.value(self._operand(x))
        if dtype == torch.float64 and _from_host(value.scalar, self.region):
            return value
        return self.a.converted(value, dtype)

    def trunc_to_int(self, x: Any, dtype: torch.dtype) -> Value:
        return self.a.converted(self._default("trunc", (x,), {}), dtype)

    def floor_to_int(self, x: Any, dtype: torch.dtype) -> Value:
        return self.a.converted(self._default("floor", (x,), {}), dtype)

    def ceil_to_int(self, x: Any, dtype: torch.dtype) -> Value:
        return self.a.converted(self._default("ceil", (x,), {}), dtype)

    def round_to_int(self, x: Any, dtype: torch.dtype) -> Value:
        return self.a.converted(self._default("round", (x,), {}), dtype)

    def where(self, condition: Any, input: Any, other: Any) -> Value:
        return self.a.where(*map(self._operand, (condition, input, other)))

    def dot(self, x: Any, y: Any) -> Value:
        return self.a.apply("mul", self._operand(x), self._operand(y))

    # --- lookups ---

    def indirect_indexing(
        self, x: Any, size: Any, check: bool = True, wrap_neg: bool = True
    ) -> sympy.Expr:
        value = self.a.value(self._operand(x))
        extent = self._expr(sympy.sympify(size))
        name = f"t{len(self.lookups) + len(self.known)}"
        symbol = sympy.Symbol(name, integer=True, nonnegative=True)
        expr = _affine(value.scalar)
        if expr is not None and self._refined().inside(expr, extent):
            self.known[name] = expr
            return symbol
        source = self._index_source(value)
        lookup = Lookup(name, source.tensor, source.index, extent, wrap_neg)
        for known, old in self.lookups.items():
            if (old.tensor, old.index, old.size, old.wrap) == (
                lookup.tensor, lookup.index, lookup.size, lookup.wrap,
            ):  # fmt: skip
                self.known[name] = Expr.var(known)
                return symbol
        self.lookups[name] = lookup
        self.domain = self.domain.refined({name: (Expr.of(0), extent - 1)})
        return symbol

    def check_bounds(self, expr: Any, size: Any, lower: bool, upper: bool) -> None:
        """Lookups carry their own bounds."""

    def _index_source(self, value: Value) -> Load:
        """A plain load of an integer tensor that gives `value`."""
        scalar = value.scalar
        if isinstance(scalar, Call) and scalar.op == "cast" and scalar.dtype is DType.I64:
            inner = scalar.args[0]
            scalar = inner if inner.dtype is DType.I32 else scalar
        if isinstance(scalar, Load) and not scalar.guarded and not self._lookups_in(scalar):
            return scalar
        loaded = self._cut(self.a.converted(value, torch.int64)).scalar
        return loaded if isinstance(loaded, Load) else self._materialised(value)

    def _lookups_in(self, scalar: Scalar) -> set[str]:
        return {n for n in _names(scalar) if n in self.lookups}

    def _cut(self, value: Value) -> Value:
        """The same value read from a local tensor over the dims it depends on."""
        load = self._materialised(value)
        return self.a.load(load, value.dtype)

    def _materialised(self, value: Value) -> Load:
        names = set(_names(value.scalar))
        for lookup in self._lookups_in(value.scalar):
            for expr in self.lookups[lookup].index:
                names |= expr.names
        dims = tuple(d for d in (*self.dims, *self.rdims) if d.name in names)
        shape = tuple(d.extent for d in dims)
        index = tuple(Expr.var(d.name) for d in dims)
        tensor = self.region.local(f"{self.hint}.part", value.dtype, shape)
        name = self.region.emit(
            Kind.MAP, dims, value.scalar, Access(tensor.name, index),
            lookups=self.lookups.values(),
        )  # fmt: skip
        return Load(name, index, STORED[value.dtype].compute)

    # --- stores ---

    def store(self, name: str, index: sympy.Expr, value: Any, mode: Any = None) -> None:
        if mode not in (None, "atomic_add"):
            raise Unsupported(f"a store with mode {mode!r}", at=self.region.source)
        self._stored(name, index, self._made(value), accumulate=mode == "atomic_add")

    def store_reduction(self, name: str, index: sympy.Expr, value: Any) -> None:
        self._stored(name, index, self._made(value))

    def _made(self, value: Any) -> Made:
        return (
            value if isinstance(value, Pending) else self.a.value(self._operand_or_pending(value))
        )

    def _operand_or_pending(self, value: Any) -> Any:
        return self._operand(value)

    def _stored(
        self, name: str, index: sympy.Expr, made: Made, *, accumulate: bool = False
    ) -> None:
        site = self.sites(name)
        target = self.region.tensors[site.tensor]
        place, _ = indices(self._expr(index) + site.shift, site.placement, self._refined())
        out = Access(site.tensor, place)
        dtype = _computable(site.dtype)
        if isinstance(made, Pending) and made.kind is not Kind.SCAN:
            if made.dtype == torch.bool or dtype != torch.bool:
                self._reduce(made, out)
                return
            made = self._settled(made)
        if isinstance(made, Pending):
            self.region.emit(
                Kind.SCAN, self.dims, made.body, out, rdims=self.rdims, reduce=made.reduce,
                lookups=self.lookups.values(),
            )  # fmt: skip
            return
        value = self.a.converted(made, dtype)
        names = {n for expr in place for n in expr.names}
        kind = Kind.SCATTER if names & self.lookups.keys() or accumulate else Kind.MAP
        dims = (*self.dims, *(d for d in self.rdims if d.name in names | set(_names(value.scalar))))
        self.region.emit(
            kind, dims, value.scalar, out, lookups=self.lookups.values(), accumulate=accumulate
        )
        del target

    def _reduce(self, made: Pending, out: Access) -> str:
        return self.region.emit(
            made.kind, self.dims, made.body, out, rdims=self.rdims, reduce=made.reduce,
            lookups=self.lookups.values(),
        )  # fmt: skip

    def _settled(self, made: Pending) -> Value:
        """The result of a reduction, in a local tensor over the op's dims."""
        shape = tuple(d.extent for d in self.dims)
        index = tuple(Expr.var(d.name) for d in self.dims)
        tensor = self.region.local(f"{self.hint}.{made.reduce or 'dot'}", made.dtype, shape)
        name = self._reduce(made, Access(tensor.name, index))
        return self.a.load(Load(name, index, STORED[made.dtype].compute), made.dtype)

    def _saved(self, value: Value) -> Value:
        """A value over the op's dims (no reduced dim) in a local tensor."""
        return self._cut(value)

    # --- reductions ---

    def reduction(
        self, dtype: torch.dtype, src_dtype: torch.dtype, reduction_type: str, value: Any
    ) -> Any:
        if reduction_type == "welford_combine":
            return self._welford_combined(*map(self._operand, value))
        operand = self.a.value(self._operand(value))
        match reduction_type:
            case "dot":
                return self._contracted(operand)
            case "any":
                return Pending(Kind.REDUCE, self.a.truth(operand).scalar, "any", torch.bool)
            case "max" | "min" if operand.dtype == torch.bool:
                return self._bool_extreme(operand, reduction_type)
            case "sum" | "prod" | "max" | "min":
                wide = self.a.converted(operand, _accumulated(dtype, operand.dtype))
                return Pending(Kind.REDUCE, wide.scalar, reduction_type, wide.dtype)
            case "argmax" | "argmin":
                return self._first_extreme(operand, reduction_type[3:])
            case "welford_reduce":
                return self._welford(self.a.converted(operand, torch.float32))
        raise Unsupported(
            f"the reduction {reduction_type!r}",
            why="the card reduces by sum, prod, max, min and any",
            at=self.region.source,
        )

    def _contracted(self, product: Value) -> Pending:
        match product.scalar:
            case Call("mul", (Load() as x, Load() as y)) if self._contractible(x, y):
                return Pending(Kind.CONTRACT, product.scalar, None, torch.float32)
        return Pending(Kind.REDUCE, product.scalar, "sum", product.dtype)

    def _contractible(self, x: Load, y: Load) -> bool:
        first, second = self.region.tensors[x.tensor].dtype, self.region.tensors[y.tensor].dtype
        plain = not (x.guarded or y.guarded or self._lookups_in(x) or self._lookups_in(y))
        return first.is_float and first is second and plain

    def _bool_extreme(self, operand: Value, kind: str) -> Made:
        if kind == "max":
            return Pending(Kind.REDUCE, operand.scalar, "any", torch.bool)
        opposite = self.a.apply("not", operand)
        found = self._settled(Pending(Kind.REDUCE, opposite.scalar, "any", torch.bool))
        return self.a.apply("not", found)

    def _first_extreme(self, operand: Value, kind: str) -> Pending:
        """The first index of the extreme value; the first NaN where there is one."""
        if operand.dtype == torch.bool:
            operand = self.a.converted(operand, torch.int32)
        best = self._settled(Pending(Kind.REDUCE, operand.scalar, kind, operand.dtype))
        hit = self.a.apply("eq", operand, best)
        if operand.is_float:
            hit = self.a.apply("or", hit, self.a.apply("isnan", operand))
        position, count = Expr.of(0), Expr.of(1)
        for dim in reversed(self.rdims):
            position, count = position + count * Expr.var(dim.name), count * dim.extent
        at = self.a.where(hit, self.a.index(position), self.a.index(count))
        return Pending(Kind.REDUCE, at.scalar, "min", torch.int64)

    def _points(self) -> Value:
        count = Expr.of(1)
        for dim in self.rdims:
            count = count * dim.extent
        return self.a.index(count, torch.float32)

    def _sum(self, value: Value) -> Value:
        return self._settled(Pending(Kind.REDUCE, value.scalar, "sum", torch.float32))

    def _welford(self, x: Value) -> tuple[Deferred, Deferred, Deferred]:
        """Mean, sum of squared differences and count, each computed when it is used."""

        def mean() -> Value:
            return self._saved(self.a.apply("div", self._sum(x), self._points()))

        def squares() -> Pending:
            difference = self.a.apply("sub", x, mean())
            square = self.a.apply("mul", difference, difference)
            return Pending(Kind.REDUCE, square.scalar, "sum", torch.float32)

        return mean, squares, self._points

    def _welford_combined(
        self, mean: Operand, squares: Operand, count: Operand
    ) -> tuple[Deferred, Deferred, Deferred]:
        a = self.a
        m, s, n = (a.converted(a.value(v), torch.float32) for v in (mean, squares, count))

        def total() -> Value:
            return self._sum(n)

        def center() -> Value:
            return self._saved(a.apply("div", self._sum(a.apply("mul", m, n)), total()))

        def spread() -> Pending:
            off = a.apply("sub", m, center())
            part = a.apply("add", s, a.apply("mul", n, a.apply("mul", off, off)))
            return Pending(Kind.REDUCE, part.scalar, "sum", torch.float32)

        return center, spread, total

    # --- scans ---

    def scan(
        self, dtypes: Sequence[torch.dtype], combine_fn: Callable[..., Any], values: Sequence[Any]
    ) -> tuple[Made, ...]:
        if len(values) != 1:
            raise Unsupported("a scan over several values", at=self.region.source)
        wide = _computable(dtypes[0])
        value = self.a.converted(self.a.value(self._operand(values[0])), wide)
        left, right = (
            self.a.load(Load(f"scan {n}", (), STORED[value.dtype].compute), value.dtype)
            for n in "ab"
        )
        (combined,) = combine_fn((left,), (right,))
        match OpsWrapper._unwrap(combined).scalar:
            case Call(op, (x, y)) if op in _SCANS and x is left.scalar and y is right.scalar:
                return (Pending(Kind.SCAN, value.scalar, _SCANS[op], value.dtype),)
        raise Unsupported(
            "this scan", why="the card scans by sum, prod, max and min", at=self.region.source
        )


def _computable(dtype: torch.dtype) -> torch.dtype:
    """A float64 host scalar enters as float32; every other dtype must be one of the card's."""
    return torch.float32 if dtype == torch.float64 else dtype


def _accumulated(dtype: torch.dtype, operand: torch.dtype) -> torch.dtype:
    if operand.is_floating_point or dtype.is_floating_point:
        return torch.float32
    return torch.promote_types(dtype, operand)


def _from_host(scalar: Scalar, region: Region) -> bool:
    """True for a value made of launch scalars and literals only."""
    for node in walk(scalar):
        match node:
            case Load(tensor) if region.tensors[tensor].role is not Role.SCALAR:
                return False
            case Index():
                return False
    return True


def _affine(scalar: Scalar) -> Expr | None:
    match scalar:
        case Index(expr):
            return expr
        case Const(value, dtype) if dtype in (DType.I64, DType.I32):
            return Expr.of(int(value))
    return None


def _names(scalar: Scalar) -> Iterator[str]:
    for node in walk(scalar):
        match node:
            case Load(_, index):
                for expr in index:
                    yield from expr.names
            case Index(expr):
                yield from expr.names


def _bounds_of(
    mask: Scalar, variables: frozenset[str]
) -> Iterator[tuple[str, Expr | None, Expr | None]]:
    """Inclusive bounds of single variables that a mask implies."""
    match mask:
        case Call("and", (left, right)):
            yield from _bounds_of(left, variables)
            yield from _bounds_of(right, variables)
        case Call(("lt" | "le" | "gt" | "ge") as op, (left, right)):
            a, b = _affine(left), _affine(right)
            if a is None or b is None:
                return
            slack = {"lt": b - a - 1, "le": b - a, "gt": a - b - 1, "ge": a - b}[op]
            yield from _solved(slack, variables)


def _solved(
    slack: Expr, variables: frozenset[str]
) -> Iterator[tuple[str, Expr | None, Expr | None]]:
    """From `slack >= 0`, affine in one variable with coefficient 1 or -1."""
    if len(slack.names & variables) != 1:
        return
    (name,) = slack.names & variables
    if not slack.is_affine_in(variables):
        return
    rest = slack.without(variables)
    match slack.coefficient(name).constant:
        case 1:
            yield name, -rest, None
        case -1:
            yield name, None, rest


Ranges = Mapping[str, Interval]
