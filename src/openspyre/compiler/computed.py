"""The general way out for indices that are not affine: compute them, then look them up.

`x[(3*i) // 7]` becomes a local index tensor k[i] <- (3*i) // 7 and a lookup of it. Values that use
`//` and the like (`Index`) become arithmetic on affine index values. Both are always right, so
nothing else needs to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import assert_never

from openspyre.compiler.rewrite import Fresh, rewritten, settled, vars_of
from openspyre.ir.index import Atom, Binary, Expr, Name
from openspyre.ir.kernel import (
    Access,
    Call,
    Const,
    Dim,
    DType,
    Index,
    Kernel,
    Kind,
    Load,
    Lookup,
    Op,
    Role,
    Scalar,
    Tensor,
)

_OPS = {"//": "floordiv", "%": "remainder", "min": "min", "max": "max"}


def compute_indices(kernel: Kernel) -> Kernel:
    """Makes every index affine in the op's dims (plus lookups), by index tensors where needed."""
    work = _Work(kernel, Fresh(kernel), dict(kernel.tensors))
    for op in kernel.ops:
        work.settle(op)
    return replace(kernel, tensors=work.tensors, ops=tuple(work.ops))


def is_affine(expr: Expr, dims: frozenset[str], lookups: frozenset[str]) -> bool:
    return expr.is_affine_in(dims | lookups)


@dataclass(slots=True)
class _Work:
    kernel: Kernel
    fresh: Fresh
    tensors: dict[str, Tensor]
    ops: list[Op] = field(default_factory=list)

    def settle(self, op: Op) -> None:
        op = self._plain_lookups(op)
        op = self._affine_values(op)
        op = self._affine_loads(op)
        if self._is_affine(op, op.out.index):
            self.ops.append(settled(op))
        else:
            self._scattered(op)

    def _is_affine(self, op: Op, index: tuple[Expr, ...]) -> bool:
        names = frozenset(d.name for d in (*op.dims, *op.rdims))
        lookups = frozenset(k.name for k in op.lookups)
        return all(is_affine(e, names, lookups) for e in index)

    def _plain_lookups(self, op: Op) -> Op:
        """Lookups whose own index is not affine, or uses lookups, read a computed tensor."""
        lookups: list[Lookup] = []
        for lookup in op.lookups:
            inside = {k.name for k in op.lookups} & frozenset().union(
                *(e.names for e in lookup.index)
            )
            names = frozenset(d.name for d in (*op.dims, *op.rdims))
            if inside or not all(is_affine(e, names, frozenset()) for e in lookup.index):
                dtype = self.tensors[lookup.tensor].dtype
                load = Load(lookup.tensor, lookup.index, dtype.compute)
                dims = self._dims_in(op, lookup.index)
                value = replace(op, lookups=tuple(lookups))
                name = self._computed(value, load, dims, dtype, "lookup")
                lookup = replace(lookup, tensor=name, index=vars_of(dims))
            lookups.append(lookup)
        return replace(op, lookups=tuple(lookups)) if tuple(lookups) != op.lookups else op

    def _affine_values(self, op: Op) -> Op:
        names = frozenset(d.name for d in (*op.dims, *op.rdims))

        def node(value: Scalar) -> Scalar:
            if isinstance(value, Index) and not value.value.is_affine_in(names):
                wide = scalar_of(value.value, names)
                same = value.dtype is wide.dtype
                return wide if same else Call("cast", (wide,), value.dtype)
            return value

        body = rewritten(op.body, node)
        return op if body is op.body else replace(op, body=body)

    def _affine_loads(self, op: Op) -> Op:
        lookups = list(op.lookups)

        def node(value: Scalar) -> Scalar:
            if not isinstance(value, Load):
                return value
            index = list(value.index)
            for position, expr in enumerate(value.index):
                if not self._is_affine(op, (expr,)) or self._leaves(op, value, position):
                    index[position] = self._looked_up(op, expr, value, position, lookups)
            return value if tuple(index) == value.index else replace(value, index=tuple(index))

        body = rewritten(op.body, node)
        if body is op.body:
            return op
        return replace(op, body=body, lookups=tuple(lookups))

    def _leaves(self, op: Op, load: Load, position: int) -> bool:
        """Whether a lookup inside its own range may lead a guarded load out of its tensor."""
        expr, extent = load.index[position], self.tensors[load.tensor].shape[position]
        used = [k for k in op.lookups if k.name in expr.names]
        exact = any(expr == Expr.var(k.name) and k.size == extent for k in used)
        return load.guarded and bool(used) and not exact

    def _looked_up(
        self, op: Op, expr: Expr, load: Load, position: int, lookups: list[Lookup]
    ) -> Expr:
        size = self.tensors[load.tensor].shape[position]
        dims = self._dims_in(op, (expr,))
        names = frozenset(d.name for d in (*op.dims, *op.rdims))
        tensor = self._computed(op, self._scalar(expr, op, names), dims, DType.I64, "index")
        lookup = Lookup(_unused(op, lookups), tensor, vars_of(dims), size)
        lookups.append(lookup)
        return Expr.var(lookup.name)

    def _scalar(self, expr: Expr, op: Op, names: frozenset[str]) -> Scalar:
        values = {k.name: looked_up_value(k, self.tensors) for k in op.lookups}
        return scalar_of(expr, names, values)

    def _dims_in(self, op: Op, exprs: tuple[Expr, ...]) -> tuple[Dim, ...]:
        names = set().union(*(e.names for e in exprs))
        for lookup in op.lookups:
            if lookup.name in names:
                names |= set().union(*(e.names for e in lookup.index))
        return tuple(d for d in (*op.dims, *op.rdims) if d.name in names)

    def _computed(
        self, op: Op, value: Scalar, dims: tuple[Dim, ...], dtype: DType, what: str
    ) -> str:
        """A new local tensor over `dims` with the value; returns its name."""
        name = self.fresh.name(f"{op.name}_{what}")
        self.tensors[name] = Tensor(name, dtype, tuple(d.extent for d in dims), Role.LOCAL)
        made = Op(
            name=name, kind=Kind.MAP, dims=dims, body=value,
            out=Access(name, vars_of(dims)), lookups=op.lookups, source=op.source,
        )  # fmt: skip
        self.settle(settled(made))
        return name

    def _scattered(self, op: Op) -> None:
        """The op's values in a tensor of their own, then a store through computed indices."""
        dims = (*op.dims, *(op.rdims if op.kind is Kind.SCAN else ()))
        target = self.tensors[op.out.tensor]
        name = self.fresh.name(f"{op.name}_values")
        self.tensors[name] = Tensor(name, target.dtype, tuple(d.extent for d in dims), Role.LOCAL)
        self.ops.append(
            settled(replace(op, name=name, out=Access(name, vars_of(dims)), accumulate=False))
        )
        names = frozenset(d.name for d in dims)
        lookups: list[Lookup] = list(op.lookups)
        index = []
        for position, expr in enumerate(op.out.index):
            if not is_affine(expr, names, frozenset(k.name for k in op.lookups)):
                load = Load(op.out.tensor, op.out.index, target.dtype.compute)
                expr = self._looked_up(op, expr, load, position, lookups)
            index.append(expr)
        body = Load(name, vars_of(dims), target.dtype.compute)
        stored = replace(
            op, kind=Kind.SCATTER, dims=dims, rdims=(), reduce=None, body=body,
            out=Access(op.out.tensor, tuple(index)), lookups=tuple(lookups),
        )  # fmt: skip
        self.ops.append(settled(stored))


def scalar_of(
    expr: Expr, dims: frozenset[str], values: Mapping[str, Scalar] = MappingProxyType({})
) -> Scalar:
    """The expression as i64 arithmetic on affine index values; `values` stand for names."""
    varying = dims | values.keys()
    plain = [t for t in expr.terms if _is_plain(Expr((t,)), dims, varying)]
    total: Scalar | None = Index(Expr(tuple(plain))) if plain else None
    for monomial, coefficient in (t for t in expr.terms if t not in plain):
        term: Scalar | None = None if coefficient == 1 else Const(coefficient, DType.I64)
        for atom in monomial:
            factor = _scalar_of_atom(atom, dims, values)
            term = factor if term is None else Call("mul", (term, factor), DType.I64)
        if term is not None:
            total = term if total is None else Call("add", (total, term), DType.I64)
    return Const(0, DType.I64) if total is None else total


def _is_plain(term: Expr, dims: frozenset[str], varying: frozenset[str]) -> bool:
    return term.is_affine_in(dims) and not term.names & (varying - dims)


def _scalar_of_atom(atom: Atom, dims: frozenset[str], values: Mapping[str, Scalar]) -> Scalar:
    match atom:
        case Name(name):
            return values[name] if name in values else Index(Expr.var(name))
        case Binary(op, left, right):
            args = (scalar_of(left, dims, values), scalar_of(right, dims, values))
            return Call(_OPS[op], args, DType.I64)
        case _:
            assert_never(atom)


def looked_up_value(lookup: Lookup, tensors: Mapping[str, Tensor]) -> Scalar:
    """What a lookup stands for, as an i64 value."""
    kind = tensors[lookup.tensor].dtype.compute
    value: Scalar = Load(lookup.tensor, lookup.index, kind)
    if kind is not DType.I64:
        value = Call("cast", (value,), DType.I64)
    if not lookup.wrap:
        return value
    negative = Call("lt", (value, Const(0, DType.I64)), DType.BOOL)
    wrapped = Call("add", (value, Index(lookup.size)), DType.I64)
    return Call("where", (negative, wrapped, value), DType.I64)


def _unused(op: Op, lookups: list[Lookup]) -> str:
    taken = {d.name for d in (*op.dims, *op.rdims)} | {k.name for k in (*op.lookups, *lookups)}
    count = 0
    while f"k{count}" in taken:
        count += 1
    return f"k{count}"
