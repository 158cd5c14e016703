"""Reads one Inductor loop body: an ops handler that fills a nest.

Nothing here decides anything about the card. Values are built as the body asks for them; ops are
emitted when it stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.virtualized import OpsValue
from torch.utils._sympy.functions import (
    FloatPow,
    FloatTrueDiv,
    FloorDiv,
    IntTrueDiv,
    Mod,
    ModularIndexing,
    PythonMod,
    ToFloat,
)
from torch.utils._sympy.symbol import SymT, symbol_is_type

from openspyre.errors import Unsupported
from openspyre.frontend.addresses import indices
from openspyre.frontend.functions import FUNCTIONS
from openspyre.frontend.nest import Made, Nest, Pending, names_in
from openspyre.frontend.reductions import combined, reduced
from openspyre.frontend.regions import Region, Site
from openspyre.frontend.sizes import converted, simplified
from openspyre.frontend.values import STORED, Operand, Value
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Access, Call, Const, DType, Index, Kind, Load, Role, Scalar, walk

HEAVY = 200  # nodes; a larger expression is cut by a local tensor (shared parts count twice)
_SCANS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
F32 = torch.float32


class Recorder(DefaultHandler):
    """Handles the operations of one loop body; `sites` says where a buffer's addresses lead."""

    def __init__(self, nest: Nest, sites: Callable[[str], Site]) -> None:
        self.nest, self.sites, self.a = nest, sites, nest.a
        self._loaded: dict[tuple[str, sympy.Expr, tuple[int, ...]], Value] = {}

    # --- what every op may take ---

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
        function = FUNCTIONS.get(name)
        if function is None:
            raise Unsupported(
                f"the scalar operation {name!r}",
                why="the card's op table has no such operation and it is not composed of others",
                hint="keep this operation outside the compiled function, or on the CPU",
            )
        return self.nest.decided(function(self.a, *map(self._operand, args), **kwargs))

    def _operand(self, operand: Any) -> Operand:
        """An argument of an op: a number or a value that is not pending and not too large."""
        match operand:
            case bool() | int() | float():
                return operand
            case sympy.Expr():
                return self._of_sympy(operand)
            case Pending():
                return self.nest.settled(operand)
            case Value():
                heavy = self.a.weight(operand.scalar) > HEAVY
                return self.nest.saved(operand) if heavy else operand
            case OpsValue():
                return self._operand(operand.value)
        return self._operand(operand())

    def _value(self, operand: Any) -> Value:
        return self.a.value(self._operand(operand))

    # --- leaves ---

    def constant(self, value: Any, dtype: torch.dtype) -> Value:
        if isinstance(value, sympy.Expr):
            return self.a.converted(self._of_sympy(value), _computable(dtype))
        return self.a.constant(value, dtype)

    def index_expr(self, expr: Any, dtype: torch.dtype) -> Value:
        if _is_number(expr) and dtype.is_floating_point:
            return self._of_sympy(expr)  # as a constant: not rounded to a narrow dtype
        return self.a.converted(self._of_sympy(sympy.sympify(expr)), _computable(dtype))

    value_expr = index_expr

    def _of_sympy(self, expr: sympy.Expr) -> Value:
        """A size or index expression as a value: integers as i64, the rest as float32."""
        match expr:
            case sympy.Symbol() if _is_number(expr):
                return self.a.load(Load(self.sites(expr.name).tensor, (), DType.F32), F32)
            case sympy.Float() | sympy.Rational() if not expr.is_integer:
                return self.a.constant(float(expr), F32)
            case ToFloat(args=[inner]):
                return self.a.converted(self._of_sympy(inner), F32)
            case FloatTrueDiv(args=[x, y]) | IntTrueDiv(args=[x, y]):
                return self.a.apply("div", self._of_sympy(x), self._of_sympy(y), dtype=F32)
            case FloatPow(args=[x, y]):
                return self.a.apply("pow", self._of_sympy(x), self._of_sympy(y), dtype=F32)
            case sympy.Add() | sympy.Mul() if not expr.is_integer:
                op = "add" if isinstance(expr, sympy.Add) else "mul"
                total = self._of_sympy(expr.args[0])
                for part in expr.args[1:]:
                    total = self.a.apply(op, total, self._of_sympy(part), dtype=F32)
                return total
            case sympy.Pow(args=[x, y]) if not expr.is_integer:
                return self.a.apply("pow", self._of_sympy(x), self._of_sympy(y), dtype=F32)
        if any(self.nest.lookup_of(symbol.name) is not None for symbol in expr.free_symbols):
            return self._of_looked_up(expr)
        return self.a.index(self._expr(expr))

    def _of_looked_up(self, expr: sympy.Expr) -> Value:
        """An integer expression over lookups, computed from what they read."""
        match expr:
            case sympy.Symbol() if (lookup := self.nest.lookup_of(expr.name)) is not None:
                dtype = self.nest.region.tensors[lookup.tensor].dtype.compute
                stored = torch.int64 if dtype is DType.I64 else torch.int32
                load = self.a.load(Load(lookup.tensor, lookup.index, dtype), stored)
                value = self.a.converted(load, torch.int64)
                if not lookup.wrap:
                    return value
                wrapped = self.a.apply("add", value, self.a.index(lookup.size))
                return self.a.where(self.a.apply("lt", value, 0), wrapped, value)
            case sympy.Add() | sympy.Mul():
                op = "add" if isinstance(expr, sympy.Add) else "mul"
                total = self._of_sympy(expr.args[0])
                for part in expr.args[1:]:
                    total = self.a.apply(op, total, self._of_sympy(part))
                return total
            case FloorDiv(args=[x, y]):
                return self.a.apply("floordiv", self._of_sympy(x), self._of_sympy(y))
            case Mod(args=[x, y]) | PythonMod(args=[x, y]):
                return self.a.apply("remainder", self._of_sympy(x), self._of_sympy(y))
            case ModularIndexing(args=[x, y, z]):
                quotient = self.a.apply("floordiv", self._of_sympy(x), self._of_sympy(y))
                return self.a.apply("remainder", quotient, self._of_sympy(z))
        raise Unsupported(f"the value {expr} of an index that was looked up")

    def _expr(self, expr: sympy.Expr) -> Expr:
        own = frozenset(self.nest.domain.ranges.keys() | self.nest.known.keys())
        found = converted(simplified(expr)).substitute(self.nest.known)
        return self.nest.region.symbols.note(found, own)

    def load(self, name: str, index: sympy.Expr) -> Value:
        key = (name, index, tuple(map(id, self.nest.masks)))
        if key not in self._loaded:
            self._loaded[key] = self._load(name, index)
        return self._loaded[key]

    def _load(self, name: str, index: sympy.Expr) -> Value:
        site, nest = self.sites(name), self.nest
        domain = nest.masked_domain()
        found, safe = indices(self._expr(index) + site.shift, site.placement, domain)
        if nest.masks:
            shape = site.placement.shape
            safe = all(nest.domain.inside(i, e) for i, e in zip(found, shape, strict=True))
        dtype = _computable(site.dtype)
        load = Load(
            nest.region.current(site.tensor),
            found,
            STORED[dtype].compute,
            guarded=bool(nest.masks) and not safe,
        )
        return self.a.load(load, dtype)

    def load_seed(self, name: str, offset: Any) -> Value:
        return self.load(name, sympy.sympify(offset))

    # --- conditions and conversions ---

    def masked(self, mask: Any, body: Callable[[], Any], other: Any) -> Value:
        condition = self.a.truth(self._value(mask))
        if isinstance(condition.scalar, Const) and condition.scalar.value:
            return self._value(body())
        self.nest.masks.append(condition.scalar)
        try:
            result = self._value(body())
        finally:
            self.nest.masks.pop()
        if isinstance(other, float) and not result.dtype.is_floating_point:
            other = int(other)  # Inductor means a value of the body's dtype
        return self.a.where(condition, result, self._operand(other))

    def where(self, condition: Any, input: Any, other: Any) -> Value:
        return self.a.where(*map(self._operand, (condition, input, other)))

    def to_dtype(
        self,
        x: Any,
        dtype: torch.dtype,
        src_dtype: torch.dtype | None = None,
        use_compute_types: bool = True,
    ) -> Value:
        value = self._value(x)
        if dtype == torch.float64 and _from_host(value.scalar, self.nest.region):
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

    def dot(self, x: Any, y: Any) -> Value:
        return self.a.apply("mul", self._operand(x), self._operand(y))

    # --- lookups ---

    def indirect_indexing(
        self, x: Any, size: Any, check: bool = True, wrap_neg: bool = True
    ) -> sympy.Expr:
        nest = self.nest
        name = f"t{len(nest.lookups) + len(nest.known)}"
        nest.look_up(name, self._value(x), self._expr(sympy.sympify(size)), wrap=wrap_neg)
        return sympy.Symbol(name, integer=True, nonnegative=True)

    def check_bounds(self, expr: Any, size: Any, lower: bool, upper: bool) -> None:
        """Lookups carry their own bounds."""

    # --- stores ---

    def store(self, name: str, index: sympy.Expr, value: Any, mode: Any = None) -> None:
        if mode not in (None, "atomic_add"):
            raise Unsupported(f"a store with mode {mode!r}")
        self._stored(name, index, value, accumulate=mode == "atomic_add")

    def store_reduction(self, name: str, index: sympy.Expr, value: Any) -> None:
        self._stored(name, index, value)

    def _stored(
        self, name: str, index: sympy.Expr, value: Any, *, accumulate: bool = False
    ) -> None:
        site, nest = self.sites(name), self.nest
        if site.placement.shared:
            raise Unsupported(
                f"a write into {site.tensor}, several of whose elements lie in one place",
                why="the cores write in no order",
                hint="clone() the tensor before the function changes it",
            )
        address = self._expr(index) + site.shift
        place, _ = indices(address, site.placement, nest.masked_domain())
        out, dtype = Access(site.tensor, place), _computable(site.dtype)
        made = self._made(value)
        if isinstance(made, Pending):
            if made.dtype == torch.bool or dtype != torch.bool:
                nest.reduce(made, out)
                return
            made = nest.settled(made)
        stored = self.a.converted(made, dtype)
        placing = {n for expr in place for n in expr.names}
        used = placing | set(names_in(stored.scalar))
        kind = Kind.SCATTER if placing & nest.lookups.keys() or accumulate else Kind.MAP
        dims = (*nest.dims, *(d for d in nest.rdims if d.name in used))
        nest.emit(kind, stored.scalar, out, dims=dims, accumulate=accumulate)

    def _made(self, value: Any) -> Made:
        """A value to store; a deferred one is made now."""
        match value:
            case Pending():
                return value
            case OpsValue():
                return self._made(value.value)
            case Value() | bool() | int() | float() | sympy.Expr():
                return self._value(value)
        return self._made(value())

    # --- reductions and scans ---

    def reduction(
        self, dtype: torch.dtype, src_dtype: torch.dtype, reduction_type: str, value: Any
    ) -> Any:
        if reduction_type == "welford_combine":
            mean, squares, count = map(self._value, value)
            return combined(self.nest, mean, squares, count)
        return reduced(self.nest, reduction_type, self._value(value), dtype)

    def scan(
        self, dtypes: Sequence[torch.dtype], combine_fn: Callable[..., Any], values: Sequence[Any]
    ) -> tuple[Made, ...]:
        if len(values) != 1:
            raise Unsupported("a scan over several values")
        value = self.a.converted(self._value(values[0]), _computable(dtypes[0]))
        left, right = (
            self.a.load(Load(f"scan {n}", (), STORED[value.dtype].compute), value.dtype)
            for n in "ab"
        )
        (result,) = combine_fn((left,), (right,))
        match self._value(result).scalar:
            case Call(op, (x, y)) if op in _SCANS and x is left.scalar and y is right.scalar:
                return (Pending(Kind.SCAN, value.scalar, _SCANS[op], value.dtype),)
        raise Unsupported("this scan", why="the card scans by sum, prod, max and min")


def _computable(dtype: torch.dtype) -> torch.dtype:
    """A float64 host scalar enters as float32; every other dtype must be one of the card's."""
    return F32 if dtype == torch.float64 else dtype


def _is_number(expr: Any) -> bool:
    """Whether an expression is a float that the graph takes as an argument."""
    return isinstance(expr, sympy.Symbol) and symbol_is_type(expr, SymT.FLOAT)


def _from_host(scalar: Scalar, region: Region) -> bool:
    """True for a value made of launch scalars and literals only."""
    for node in walk(scalar):
        match node:
            case Load(tensor) if region.tensors[tensor].role is not Role.SCALAR:
                return False
            case Index():
                return False
    return True
