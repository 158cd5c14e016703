"""Stage 1: the Kernel in the form that planning understands (docs/decisions/0001.md).

Values do not change. Afterwards every index is affine in the op's dims (plus lookups), CONTRACT is
a matmul of two plain loads, guarded loads are gone where a condition on one dim explains them, and
copies, repeated work and dead ops are out of the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from openspyre.compiler.computed import compute_indices
from openspyre.compiler.contracts import normalize_contracts
from openspyre.compiler.fold import fold_scalars
from openspyre.compiler.gathered import read_where_it_lies
from openspyre.compiler.narrow import read_narrow
from openspyre.compiler.order import bring_together
from openspyre.compiler.partials import narrow_rows, share_reductions
from openspyre.compiler.pieces import split_pieces
from openspyre.compiler.redundant import (
    drop_dead,
    merge_equal_ops,
    read_only_what_is_kept,
    substitute_copies,
)
from openspyre.compiler.repeated import share_transcendentals
from openspyre.compiler.rewrite import neutral, settled, substituted
from openspyre.compiler.row_blocks import cut_masked_rows
from openspyre.compiler.row_parts import cut_rows
from openspyre.compiler.scans import cut_scans
from openspyre.compiler.splits import split_dims
from openspyre.compiler.unmerged import take_dims_apart
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Const, Dim, Kernel, Kind, Op
from openspyre.spec import CardSpec


def canonicalize(kernel: Kernel, card: CardSpec) -> Kernel:
    """The same values from an equal kernel in canonical form."""
    for change in CHANGES:
        kernel = change(kernel)
    kernel = read_where_it_lies(kernel, card)
    cut = cut_masked_rows(kernel, card)
    if cut is not kernel:  # blocks of rows walk tensors of all rows
        kernel = take_dims_apart(cut)
    kernel = share_transcendentals(cut_scans(kernel, card), card)
    kernel = narrow_rows(cut_rows(share_reductions(kernel, card), card), card)
    return bring_together(name_dims(kernel))


def drop_unit_dims(kernel: Kernel) -> Kernel:
    """Parallel dims of extent 1 go away (a contraction keeps them: it needs m and n)."""
    return replace(kernel, ops=tuple(_without_unit_dims(op) for op in kernel.ops))


def _without_unit_dims(op: Op) -> Op:
    units = {d.name: Expr.of(0) for d in op.dims if d.extent.constant == 1}
    if not units or op.kind is Kind.CONTRACT:
        return op
    dims = tuple(d for d in op.dims if d.name not in units)
    return replace(substituted(op, units), dims=dims)


def name_dims(kernel: Kernel) -> Kernel:
    """Dims are i0, i1, ...; reduced dims r0, ...; lookups k0, ... so that equal ops are equal."""
    return replace(kernel, ops=tuple(_named(op, frozenset(kernel.symbols)) for op in kernel.ops))


def _named(op: Op, taken: frozenset[str]) -> Op:
    names: dict[str, str] = {}
    for letter, old in (
        ("i", [d.name for d in op.dims]),
        ("r", [d.name for d in op.rdims]),
        ("k", [k.name for k in op.lookups]),
    ):
        for count, name in enumerate(old):
            new = f"{letter}{count}"
            names[name] = f"{new}_" if new in taken else new
    if all(new == old for old, new in names.items()):
        return op
    op = substituted(op, {old: Expr.var(new) for old, new in names.items()})
    return replace(
        op,
        dims=tuple(Dim(names[d.name], d.extent) for d in op.dims),
        rdims=tuple(Dim(names[d.name], d.extent) for d in op.rdims),
        lookups=tuple(replace(k, name=names[k.name]) for k in op.lookups),
    )


def fill_empty_reductions(kernel: Kernel) -> Kernel:
    """A reduction over nothing, whatever the sizes, is its neutral element."""
    return replace(kernel, ops=tuple(_filled(op) for op in kernel.ops))


def _filled(op: Op) -> Op:
    reduces = op.kind in (Kind.REDUCE, Kind.CONTRACT)
    if not reduces or all(d.extent.constant != 0 for d in op.rdims):
        return op
    value = Const(neutral(op.reduce or "sum", op.body.dtype.compute), op.body.dtype.compute)
    return replace(op, kind=Kind.MAP, rdims=(), reduce=None, body=value, lookups=())


def settle_kinds(kernel: Kernel) -> Kernel:
    """Drops lookups that folding has made unused."""
    return replace(kernel, ops=tuple(settled(op) for op in kernel.ops))


CHANGES: tuple[Callable[[Kernel], Kernel], ...] = (
    drop_unit_dims,
    fill_empty_reductions,
    read_only_what_is_kept,
    fold_scalars,
    split_pieces,
    split_dims,
    split_pieces,  # a condition may decide one of two dims that were one
    split_dims,
    fold_scalars,
    settle_kinds,
    compute_indices,
    substitute_copies,
    read_narrow,
    normalize_contracts,
    take_dims_apart,
    name_dims,
    merge_equal_ops,
    drop_dead,
)
