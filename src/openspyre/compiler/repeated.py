"""Transcendentals are computed once: for two ops that need the same one, and for all points of an
op that need the same one.

A softmax's sum and its quotient both need exp(x - max); every element of a row that is normalized
needs the same rsqrt(variance). The value goes to a local f32 tensor, which tiling keeps in LX;
where a row of it would not fit there, the ops go on computing it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from openspyre.compiler.bounds import highest
from openspyre.compiler.rewrite import Fresh, reads, rewritten, substituted, vars_of
from openspyre.ir.index import Expr
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
from openspyre.ir.ops import TABLE, Cost
from openspyre.spec import CardSpec

_APART = 8  # ops: two further apart hardly share a step
_ROW_SHARE = 8  # a row takes at most this part of LX


@dataclass(frozen=True, slots=True)
class _Use:
    """A transcendental of an op, the dims of the op that it walks, and its form without names."""

    position: int
    node: Call
    dims: tuple[Dim, ...]
    form: object


def share_transcendentals(kernel: Kernel, card: CardSpec) -> Kernel:
    """Keeps repeated transcendentals in local tensors: the outermost, then those within them."""
    outer = _shared(kernel, card, inner=False)
    return _shared(outer, card, inner=True)


def _shared(kernel: Kernel, card: CardSpec, *, inner: bool) -> Kernel:
    found: dict[object, list[_Use]] = defaultdict(list)
    for position, op in enumerate(kernel.ops):
        for use in _uses(position, op, kernel, inner=inner):
            found[use.form].append(use)
    fresh, tensors = Fresh(kernel), dict(kernel.tensors)
    made: dict[int, list[Op]] = defaultdict(list)
    ops = list(kernel.ops)
    for uses in found.values():
        near = [u for u in uses if u.position - uses[0].position <= _APART]
        once = len({u.position for u in near}) < 2
        if (once and not _spares(near[0], kernel, card)) or not _shareable(near, kernel, card):
            continue
        masked = any(isinstance(n, Index) for n in walk(near[0].node))
        if (inner or masked) and not _fill_pt(near, kernel, card):
            continue
        first = near[0]
        source = kernel.ops[first.position]
        name = fresh.name(f"{source.name}_{first.node.op}")
        shape = tuple(d.extent for d in first.dims)
        tensors[name] = Tensor(name, DType.F32, shape, Role.LOCAL)
        out = Access(name, vars_of(first.dims))
        made[first.position].append(
            Op(name, Kind.MAP, first.dims, first.node, out, source=source.source)
        )
        for use in near:
            load = Load(name, vars_of(use.dims), DType.F32)
            ops[use.position] = _replaced(ops[use.position], use.node, load)
    if not made:
        return kernel
    listed = [op for n, old in enumerate(ops) for op in (*made[n], old)]
    return replace(kernel, tensors=tensors, ops=tuple(listed))


def _uses(position: int, op: Op, kernel: Kernel, *, inner: bool) -> Iterator[_Use]:
    """The transcendentals of an op that depend on loads without conditions.

    Positions count where something of the kernel's own is read as well, as in masked scores.
    A load whose index is looked up does not count: what a lookup's name means, the op says.
    """
    if op.kind not in (Kind.MAP, Kind.REDUCE, Kind.SCATTER):
        return
    dims = {d.name: d for d in (*op.dims, *op.rdims)}
    looked_up = {k.name for k in op.lookups}
    covered: set[int] = set()
    for node in reversed(list(walk(op.body))):
        if not isinstance(node, Call) or TABLE[node.op].cost is not Cost.TRANSCENDENTAL:
            continue
        within = list(walk(node))
        if id(node) in covered:
            continue
        covered |= set() if inner else {id(n) for n in within}
        loaded = [n for n in within if isinstance(n, Load)]
        if node.dtype is not DType.F32 or not loaded or any(n.guarded for n in loaded):
            continue
        own = any(kernel.tensors[n.tensor].role is Role.LOCAL for n in loaded)
        positions = [n for n in within if isinstance(n, Index)]
        if positions and not own:
            continue
        if any(e.names & looked_up for n in loaded for e in n.index):
            continue
        if positions:  # as what is masked has them
            loaded.sort(key=lambda n: -len({x for e in n.index for x in e.names}))
        places = [*(e for n in loaded for e in n.index), *(n.value for n in positions)]
        # dims in the order of their first use, so that equal values have equal forms
        order = dict.fromkeys(name for e in places for name in sorted(e.names & dims.keys()))
        walked = tuple(dims[name] for name in order)
        names = {d.name: Expr.var(f"at{n}") for n, d in enumerate(walked)}
        plain = replace(op, body=node, out=Access(op.out.tensor, ()), lookups=())
        form = substituted(plain, names).body
        yield _Use(position, node, walked, (form, tuple(d.extent for d in walked)))


def _spares(use: _Use, kernel: Kernel, card: CardSpec) -> bool:
    """Whether an op repeats the value at so many points that a step more would cost less."""
    op = kernel.ops[use.position]
    points, own = (
        prod(highest(d.extent, kernel.limits) for d in dims)
        for dims in ((*op.dims, *op.rdims), use.dims)
    )
    repeated = (points - own) / card.cores / card.sfu_transcendental_rate  # ns
    return repeated >= 2 * card.dram_latency_ns


def _shareable(uses: list[_Use], kernel: Kernel, card: CardSpec) -> bool:
    """A row fits LX, and what is read is the same for the first user and the last."""
    first, last = uses[0], uses[-1]
    read = {t for t, _ in reads(replace(kernel.ops[first.position], body=first.node, lookups=()))}
    if any(op.out.tensor in read for op in kernel.ops[first.position : last.position]):
        return False
    return 0 < _row(uses, kernel) * DType.F32.bytes * _ROW_SHARE <= card.lx_usable


def _row(uses: list[_Use], kernel: Kernel) -> int:
    """Points of what the users reduce."""
    dims, ops = uses[0].dims, kernel.ops
    reduced = {u.dims.index(d) for u in uses for d in ops[u.position].rdims if d in u.dims}
    return prod(highest(dims[n].extent, kernel.limits) for n in reduced)


def _fill_pt(uses: list[_Use], kernel: Kernel, card: CardSpec) -> bool:
    """Whether LX holds two such values for as many rows as fill PT: with fewer, products of the
    same step would load their other operand more often."""
    return _row(uses, kernel) * 2 * DType.F32.bytes * card.pt_fill_rows <= card.lx_usable


def _replaced(op: Op, node: Call, load: Load) -> Op:
    def change(value: Scalar) -> Scalar:
        return load if value == node else value

    return replace(op, body=rewritten(op.body, change))
