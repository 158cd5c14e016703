"""Masked concatenations (`cat`, `pad`, rope's half rotation) cut into one op per piece.

`where(i < n, a[i], b[i - n])` with loads that leave their tensors becomes two ops, i in [0, n)
and in [n, extent), in which the condition is decided and the loads stay inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from openspyre.compiler.fold import as_expr, folded
from openspyre.compiler.ranges import Facts
from openspyre.compiler.rewrite import Fresh, facts_of, local, settled, substituted, vars_of
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Access, Call, Dim, Kernel, Kind, Load, Op, Tensor, walk

_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_MOST_PIECES = 16


def split_pieces(kernel: Kernel) -> Kernel:
    """Cuts ops with guarded loads along the bounds of their conditions where that frees loads."""
    fresh, tensors = Fresh(kernel), dict(kernel.tensors)
    ops: list[Op] = []
    for op in kernel.ops:
        if op.kind is Kind.SCATTER and not op.accumulate:
            ops += _values_first(op, kernel, fresh, tensors)
        else:
            ops += _pieces(op, kernel, fresh)
    return replace(kernel, tensors=tensors, ops=tuple(ops))


def _values_first(op: Op, kernel: Kernel, fresh: Fresh, tensors: dict[str, Tensor]) -> list[Op]:
    """A scatter's values, in pieces, then the store: whole rows, in the scatter's order."""
    if not _guards(op):
        return [op]
    name = fresh.name(f"{op.name}_values")
    values = local(name, kernel.tensors[op.out.tensor], op.dims)
    made = replace(op, name=name, kind=Kind.MAP, out=Access(name, vars_of(op.dims)))
    pieces = _pieces(made, replace(kernel, tensors={**kernel.tensors, name: values}), fresh)
    if len(pieces) == 1:
        return [op]
    tensors[name] = values
    body = Load(name, vars_of(op.dims), values.dtype.compute)
    return [*pieces, settled(replace(op, body=body))]


def _pieces(op: Op, kernel: Kernel, fresh: Fresh) -> list[Op]:
    if op.kind in (Kind.SCATTER, Kind.SCAN, Kind.CONTRACT) or not _guards(op):
        return [op]
    done: list[Op] = []
    waiting = [op]
    while waiting:
        piece = waiting.pop(0)
        cut = _cut(piece, kernel) if _guards(piece) else None
        if cut is None:
            done.append(piece)
        else:
            waiting = [*_halves(piece, *cut, kernel), *waiting]
        if len(done) + len(waiting) > _MOST_PIECES:
            return [op]
    if len(done) == 1 or sum(map(_guards, done)) >= len(done) * _guards(op):
        return [op]
    named = [done[0], *(replace(p, name=fresh.name(p.name)) for p in done[1:])]
    return [settled(p) for p in named]


def _guards(op: Op) -> int:
    return len({n for n in walk(op.body) if isinstance(n, Load) and n.guarded})


def _cut(op: Op, kernel: Kernel) -> tuple[Dim, Expr] | None:
    """A dim and a bound strictly inside it at which a condition changes."""
    facts = facts_of(op, kernel)
    for difference, name in _conditions(op, facts):
        for dim in op.dims:
            bound = _bound(difference, name, dim, frozenset(facts.extents))
            if bound is None:
                continue
            for at in (bound, bound + 1) if name in ("eq", "ne") else (bound,):
                if facts.nonnegative(at - 1) and facts.nonnegative(dim.extent - at - 1):
                    return dim, at
    return None


def _conditions(op: Op, facts: Facts) -> Iterator[tuple[Expr, str]]:
    for node in walk(op.body):
        if isinstance(node, Call) and node.op in _COMPARISONS:
            left, right = as_expr(node.args[0], facts), as_expr(node.args[1], facts)
            if left is not None and right is not None:
                yield _quotient(left - right, node.op, facts)


def _quotient(difference: Expr, comparison: str, facts: Facts) -> tuple[Expr, str]:
    """The condition without what cannot decide it: `64*b + j < 64` with j < 64 is `b < 1`."""
    strict = {"lt": "lt", "ge": "ge", "le": "lt", "gt": "ge"}.get(comparison)
    if strict is None:
        return difference, comparison
    below = difference - (comparison in ("le", "gt"))
    factors = {abs(factor) for terms, factor in below.terms if terms}
    for size in sorted(factors - {1}, reverse=True):
        whole = Expr(tuple((terms, f // size) for terms, f in below.terms if f // size))
        low, high = facts.interval(below - whole * size)
        if low >= 0 and high < size:
            return whole, strict
    return difference, comparison


def _bound(difference: Expr, comparison: str, dim: Dim, others: frozenset[str]) -> Expr | None:
    """The first point of `dim` at which `difference <comparison> 0` has its other value."""
    try:
        slope = difference.coefficient(dim.name).constant
    except ValueError:
        return None
    zero = difference.without(frozenset({dim.name}))
    if slope not in (1, -1) or zero.names & others:
        return None
    at = -zero if slope == 1 else zero  # where the difference is 0
    rising = slope == 1
    match comparison:
        case "lt" | "ge":
            return at if rising else at + 1
        case "le" | "gt":
            return at + 1 if rising else at
        case _:
            return at


def _halves(op: Op, dim: Dim, at: Expr, kernel: Kernel) -> list[Op]:
    halves = []
    for start, extent in ((Expr.of(0), at), (at, dim.extent - at)):
        dims = tuple(Dim(d.name, extent) if d == dim else d for d in op.dims)
        shifted = substituted(op, {dim.name: Expr.var(dim.name) + start})
        halves.append(folded(replace(shifted, dims=dims), kernel))
    return halves
