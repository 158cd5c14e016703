"""Reductions cut in two.

`y <- sum over r of x[r]` becomes p[a] <- sum over b of x[a*B + b] and y <- sum over a of p[a], so
that many cores can share the work; or p[b] <- sum over a of x[a*B + b] and y <- sum over b of p[b],
so that only B points go across the SFU's lanes, at the low rate of that.
Exact for everything but float sums and products, which are f32 in another order.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from openspyre.compiler.addressing import lane_dim
from openspyre.compiler.bounds import highest
from openspyre.compiler.lanes import lanes_of, rounds
from openspyre.compiler.rewrite import Fresh, substituted, vars_of
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Access, Dim, Kernel, Kind, Load, Op, Role, Tensor
from openspyre.spec import CardSpec

_WORTH_A_ROW = 1 << 12  # points: below, one instruction more takes as long
_WORTH = 1 << 12  # points: below, one core is done before a second step has begun


def share_reductions(kernel: Kernel, card: CardSpec) -> Kernel:
    """Cuts the reductions that would leave most cores idle."""
    fresh, tensors, ops = Fresh(kernel), dict(kernel.tensors), list[Op]()
    for op in kernel.ops:
        shared = _shared_dim(op, kernel, card)
        if shared is None:
            ops.append(op)
        else:
            ops += in_two(op, *shared, tensors, fresh)
    return replace(kernel, tensors=tensors, ops=tuple(ops))


def narrow_rows(kernel: Kernel, card: CardSpec) -> Kernel:
    """Cuts the sums along lanes into partial sums side by side."""
    fresh, tensors, ops = Fresh(kernel), dict(kernel.tensors), list[Op]()
    for op in kernel.ops:
        cut = _row(op, kernel, card)
        if cut is None:
            ops.append(op)
        else:
            ops += in_two(op, *cut, tensors, fresh, inner=True)
    return replace(kernel, tensors=tensors, ops=tuple(ops))


def _row(op: Op, kernel: Kernel, card: CardSpec) -> tuple[Dim, Expr] | None:
    """The reduced dim along the lanes, and how many partial sums it is worth."""
    if op.kind is not Kind.REDUCE or op.lookups:
        return None
    lane = next((d for d in op.rdims if d.name == lane_dim(kernel, op)), None)
    extent = lane.extent.constant if lane else None
    points = prod(highest(d.extent, kernel.limits) for d in (*op.dims, *op.rdims))
    if lane is None or extent is None or points < _WORTH_A_ROW:
        return None
    across = card.clock_ghz / card.sfu_reduce_rate
    lanes = lanes_of(kernel, op, card)
    pass_ = max(1, lanes.passes) / card.corelets  # cycles of the op on all lanes, per lane
    best, parts = extent * across, 0
    if not rounds(op):  # lanes may walk rows instead
        size = highest(
            next(d.extent for d in op.dims + op.rdims if d.name == lanes.dim), kernel.limits
        )
        best = min(best, lanes.cycles(points, size, card) * extent / points)
    for width in range(card.sfu_lanes, 1, -1):
        time = extent / width * pass_ + width * across
        if extent % width == 0 and time < best:
            best, parts = time, width
    return (lane, Expr.of(parts)) if parts and parts < extent else None


def _shared_dim(op: Op, kernel: Kernel, card: CardSpec) -> tuple[Dim, Expr] | None:
    """A reduced dim, and into how many parts to cut it."""
    if op.kind is not Kind.REDUCE:
        return None
    sizes = {d.name: highest(d.extent, kernel.limits) for d in (*op.dims, *op.rdims)}
    results = prod(sizes[d.name] for d in op.dims)
    if results * 4 > card.cores or prod(sizes.values()) < _WORTH:
        return None
    if len(op.rdims) > 1:
        lane = lane_dim(kernel, op)

        def sharers(dim: Dim) -> int:  # cores share a dim that fills sticks in whole sticks
            stick = card.elements_per_stick(op.body.dtype.bytes) if dim.name == lane else 1
            return min(-(-sizes[dim.name] // stick), card.cores)

        whole = max(op.rdims, key=lambda d: (sharers(d), -sizes[d.name]))
        if sharers(whole) * 4 > card.cores:
            return whole, whole.extent
    for dim in op.rdims:
        extent = dim.extent.constant
        for parts in range(card.cores, 3, -1):
            if extent is not None and extent % parts == 0 and extent > parts:
                return dim, Expr.of(parts)
    return None


def in_two(
    op: Op,
    dim: Dim,
    parts: Expr,
    tensors: dict[str, Tensor],
    fresh: Fresh,
    *,
    inner: bool = False,
    first: bool = False,
) -> tuple[Op, Op]:
    """Partial results and the op that combines them.

    Args:
        tensors: takes the tensor of partial results.
        inner: neighbours go to different parts.
        first: parts are the first dim of partial results, not the last.
    """
    taken = {d.name for d in (*op.dims, *op.rdims)}
    name = next(n for k in range(1, 3) if (n := dim.name + "_part" * k) not in taken)
    outer = Dim(name, parts)
    within = dim.extent // parts
    rdims = tuple(
        Dim(d.name, within) if d == dim else d for d in op.rdims if d != dim or within.constant != 1
    )
    rest = Expr.var(dim.name) if within.constant != 1 else Expr.of(0)
    place = rest * parts + Expr.var(outer.name) if inner else Expr.var(outer.name) * within + rest
    dims = (outer, *op.dims) if first else (*op.dims, outer)
    kind = op.body.dtype.compute
    name = fresh.name(f"{op.name}_parts")
    tensors[name] = Tensor(name, kind, tuple(d.extent for d in dims), Role.LOCAL)
    moved = substituted(replace(op, out=Access(op.out.tensor, ())), {dim.name: place})
    partial = replace(moved, name=name, dims=dims, rdims=rdims, out=Access(name, vars_of(dims)))
    body = Load(name, vars_of(dims), kind)
    both = Kind.REDUCE if op.kind is Kind.CONTRACT else op.kind
    whole = replace(op, kind=both, rdims=(outer,), body=body, lookups=())
    return partial, whole
