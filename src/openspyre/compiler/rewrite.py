"""Ops with something replaced: index names, loads, bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from openspyre.compiler.ranges import Facts
from openspyre.ir.index import Expr, Size
from openspyre.ir.kernel import (
    Access,
    Call,
    Dim,
    DType,
    Index,
    Kernel,
    Kind,
    Load,
    Op,
    Role,
    Scalar,
    Tensor,
    walk,
)

Change = Callable[[Scalar], Scalar]


def rewritten(body: Scalar, change: Change) -> Scalar:
    """The body with `change` applied to every node, arguments first."""
    if isinstance(body, Call):
        args = tuple(rewritten(a, change) for a in body.args)
        if any(new is not old for new, old in zip(args, body.args, strict=True)):
            body = replace(body, args=args)
    return change(body)


def with_indices(op: Op, change: Callable[[Expr], Expr]) -> Op:
    """The op with every index expression changed: loads, index values, lookups, the store."""

    def each(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(change(e) for e in index)

    def node(value: Scalar) -> Scalar:
        match value:
            case Load(index=index):
                new = each(index)
                return value if new == index else replace(value, index=new)
            case Index(value=expr):
                changed = change(expr)
                return value if changed == expr else replace(value, value=changed)
        return value

    lookups = tuple(replace(k, index=each(k.index)) for k in op.lookups)
    body = rewritten(op.body, node)
    return replace(op, body=body, lookups=lookups, out=Access(op.out.tensor, each(op.out.index)))


def substituted(op: Op, values: Mapping[str, Size]) -> Op:
    """The op with names in its index expressions replaced (its dims stay as they are)."""
    return with_indices(op, lambda e: e.substitute(values))


def facts_of(op: Op, kernel: Kernel) -> Facts:
    return Facts({d.name: d.extent for d in (*op.dims, *op.rdims)}, kernel.limits)


def indices(op: Op) -> Iterator[Expr]:
    """Every index expression of an op."""
    for node in walk(op.body):
        match node:
            case Load(index=index):
                yield from index
            case Index(value=expr):
                yield expr
    for lookup in op.lookups:
        yield from lookup.index
    yield from op.out.index


def reads(op: Op) -> Iterator[tuple[str, tuple[Expr, ...]]]:
    """(tensor, index) of everything an op reads, lookups' tensors included."""
    for node in walk(op.body):
        if isinstance(node, Load):
            yield node.tensor, node.index
    for lookup in op.lookups:
        yield lookup.tensor, lookup.index


def names_walked(op: Op, load: Load) -> frozenset[str]:
    """The names that a load's index depends on, those of what it looks up included."""
    names = frozenset[str]().union(*(e.names for e in load.index))
    looked = (k for k in op.lookups if k.name in names)
    return names.union(*(e.names for k in looked for e in k.index))


def lookups_used(op: Op) -> frozenset[str]:
    """Names of lookups that loads of the body use."""
    names = {k.name for k in op.lookups}
    used: set[str] = set()
    for node in walk(op.body):
        if isinstance(node, Load):
            for expr in node.index:
                used |= expr.names & names
    return frozenset(used)


def settled(op: Op) -> Op:
    """The op with its unused lookups dropped and the kind that its lookups imply."""
    stored = frozenset[str]().union(*(e.names for e in op.out.index))
    loaded = lookups_used(op)
    used = set(stored | loaded)
    for lookup in reversed(op.lookups):  # a lookup may use the ones before it
        if lookup.name in used:
            used |= {n for e in lookup.index for n in e.names}
    kept = tuple(k for k in op.lookups if k.name in used)
    kind = op.kind
    if kind in (Kind.MAP, Kind.GATHER, Kind.SCATTER):
        if op.accumulate or any(k.name in stored for k in kept):
            kind = Kind.SCATTER
        else:
            kind = Kind.GATHER if kept else Kind.MAP
    if kept == op.lookups and kind is op.kind:
        return op
    return replace(op, lookups=kept, kind=kind)


def writes_whole(op: Op, tensor: Tensor) -> bool:
    """True when the op writes every element of the tensor, each once."""
    dims = (*op.dims, *(op.rdims if op.kind is Kind.SCAN else ()))
    return point_for_point(op.out.index, tensor, dims)


def point_for_point(index: Sequence[Expr], tensor: Tensor, dims: Sequence[Dim]) -> bool:
    """True when the points of a space and the elements of a tensor are each other's."""
    extents = {d.name: d.extent for d in dims}
    seen: set[str] = set()
    for expr, size in zip(index, tensor.shape, strict=True):
        if expr.constant == 0 and size.constant == 1:
            continue
        name = sole_name(expr)
        if name is None or name in seen or extents.get(name) != size:
            return False
        seen.add(name)
    return seen == extents.keys()


def body_at(op: Op, index: Sequence[Expr]) -> Scalar:
    """What an op that writes a whole tensor stores at an index of it."""
    at = {
        name: here
        for e, here in zip(op.out.index, index, strict=True)
        if (name := sole_name(e)) is not None
    }
    return substituted(op, at).body


def sole_name(expr: Expr) -> str | None:
    """The name that the expression is, if it is nothing but a name."""
    if len(expr.terms) != 1 or len(expr.names) != 1:
        return None
    (name,) = expr.names
    return name if expr == Expr.var(name) else None


class Fresh:
    """Names that a kernel does not use yet."""

    def __init__(self, kernel: Kernel) -> None:
        self._taken = {*kernel.tensors, *(op.name for op in kernel.ops), *kernel.symbols}

    def name(self, stem: str) -> str:
        candidate, count = stem, 0
        while candidate in self._taken:
            count += 1
            candidate = f"{stem}_{count}"
        self._taken.add(candidate)
        return candidate


def local(name: str, like: Tensor, dims: tuple[Dim, ...]) -> Tensor:
    """A local tensor of `like`'s dtype over a space."""
    return Tensor(name, like.dtype, tuple(d.extent for d in dims), Role.LOCAL)


def vars_of(dims: tuple[Dim, ...]) -> tuple[Expr, ...]:
    return tuple(Expr.var(d.name) for d in dims)


def neutral(reduce: str, dtype: DType) -> float | int:
    """What a reduction over nothing gives."""
    if reduce in ("max", "min") and dtype.is_float:
        return -inf if reduce == "max" else inf
    top = 1 if dtype is DType.BOOL else (1 << (8 * dtype.bytes - 1)) - 1
    low = 0 if dtype is DType.BOOL else -top - 1
    return {"max": low, "min": top, "prod": 1}.get(reduce, 0)
