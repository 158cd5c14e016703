"""Dims under `//` and `%` split in two, so that index expressions become affine.

With r in [0, 384), `c[r // 32, r % 32]` is c[ro, ri] over ro in [0, 12), ri in [0, 32). The
split is exact: it happens only where the divisor divides the extent for every size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from openspyre.compiler.ranges import Facts, exact_quotient
from openspyre.compiler.rewrite import facts_of, indices, substituted, with_indices
from openspyre.ir.index import Binary, Expr
from openspyre.ir.kernel import Dim, Kernel, Kind, Op

_MOST_SPLITS = 16


def split_dims(kernel: Kernel) -> Kernel:
    """Simplifies every index and splits what still stands under `//` and `%`."""
    return replace(kernel, ops=tuple(_split(op, kernel) for op in kernel.ops))


def _split(op: Op, kernel: Kernel) -> Op:
    for _ in range(_MOST_SPLITS):
        facts = facts_of(op, kernel)
        op = with_indices(op, facts.simplify)
        found = next(_divisions(op, facts), None)
        if found is None:
            break
        op = divided_dim(op, *found)
    return op


def _divisions(op: Op, facts: Facts) -> Iterator[tuple[Dim, Expr, Expr]]:
    """(dim, outer extent, inner extent) of splits that help, smallest divisor first."""
    found: list[tuple[Dim, Expr, Expr]] = []
    splittable = [*op.dims, *(() if op.kind is Kind.SCAN else op.rdims)]
    by_name = {d.name: d for d in splittable}
    for expr in indices(op):
        for left, right in _atoms(expr):
            for name in left.names & by_name.keys():
                outer = _outer(left, right, by_name[name], facts)
                if outer is not None:
                    found.append((by_name[name], *outer))
    found.sort(key=lambda f: f[2].constant or 1 << 62)
    yield from found


def _atoms(expr: Expr) -> Iterator[tuple[Expr, Expr]]:
    """(left, right) of every `//` and `%` in the expression, inner ones first."""
    for monomial, _ in expr.terms:
        for atom in monomial:
            if isinstance(atom, Binary):
                yield from _atoms(atom.left)
                yield from _atoms(atom.right)
                if atom.op in ("//", "%"):
                    yield atom.left, atom.right


def _outer(left: Expr, right: Expr, dim: Dim, facts: Facts) -> tuple[Expr, Expr] | None:
    """The extents of the two dims that `left // right` wants `dim` split into."""
    try:
        step = left.coefficient(dim.name)
    except ValueError:
        return None
    inner = right if step.constant == 1 else exact_quotient(right, step) if step.terms else None
    if inner is None or inner.constant == 1 or not facts.nonnegative(inner - 1):
        return None
    outer = exact_quotient(dim.extent, inner)
    if outer is None or outer.constant == 1:
        return None
    return outer, inner


def divided_dim(op: Op, dim: Dim, outer: Expr, inner: Expr) -> Op:
    """The op with `dim` walked by two dims, of the outer and of the inner extent."""
    names = {d.name for d in (*op.dims, *op.rdims)} | {k.name for k in op.lookups}
    high, low = _unused(dim.name + "o", names), _unused(dim.name + "i", names)
    op = substituted(op, {dim.name: Expr.var(high) * inner + Expr.var(low)})
    pair = (Dim(high, outer), Dim(low, inner))

    def replaced(dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return tuple(d for old in dims for d in (pair if old == dim else (old,)))

    return replace(op, dims=replaced(op.dims), rdims=replaced(op.rdims))


def _unused(stem: str, taken: set[str]) -> str:
    while stem in taken:
        stem += "x"
    return stem
