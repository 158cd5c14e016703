"""Reductions over rows cut in two, where columns alone leave cores idle or come in short runs.

`m[i] <- max over r of x[r, i]` becomes p[a, i] <- max over b of x[a*B + b, i] and m <- max of p, so
that cores share the rows and read them in long runs. A softmax over rows is cut with its maximum
(`row_softmax.py`); the product of a row with a plain weight, w[k, n], along k.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, prod

from openspyre.compiler.addressing import lane_dim, unit_dims
from openspyre.compiler.bounds import highest
from openspyre.compiler.contraction import contraction
from openspyre.compiler.cost import best_splits
from openspyre.compiler.groups import Group, Grouping
from openspyre.compiler.joining import RunCosts, work_of
from openspyre.compiler.partials import in_two
from openspyre.compiler.rewrite import Fresh
from openspyre.compiler.row_softmax import RowSoftmax, cut_softmax, softmax_of
from openspyre.compiler.tilings import least_cycles
from openspyre.compiler.work import Works
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Dim, Kernel, Kind, Op, Role
from openspyre.spec import CardSpec

_WORTH = 1 << 14  # points: below, a second step takes as long
_SPLITS = 6  # that are compared with their tile loops
_FASTER = 0.7  # of the time in one: the cut must win more than fusion with neighbours would


def cut_rows(kernel: Kernel, card: CardSpec) -> Kernel:
    """Cuts the reductions over rows that are done sooner so, and softmaxes with them."""
    fresh, cut = Fresh(kernel), kernel
    for op in kernel.ops:
        if cut.by_name.get(op.name) != op:
            continue
        if not (_over_rows(op, cut, card) or _row_by_plain(op, cut) or _by_looked_up(op)):
            continue
        times = list(_times(op, cut, card))
        least, dim, parts = min(times, key=lambda t: t[0], default=(inf, None, 0))
        if dim is None or least > _cycles(replace(cut, ops=(op,)), card) * _FASTER:
            continue
        softmax = softmax_of(op, dim, cut)
        if softmax is None:
            cut = _cut(op, dim, parts, cut, fresh)
        else:
            parts = _parts_of_softmax(softmax, parts, cut, card)
            cut = cut_softmax(softmax, parts, cut, fresh)
    return cut


def _over_rows(op: Op, kernel: Kernel, card: CardSpec) -> bool:
    """Whether an op reduces enough points, and none along the lanes."""
    if op.kind is not Kind.REDUCE or op.lookups or not op.dims:
        return False
    points = prod(highest(d.extent, kernel.limits) for d in (*op.dims, *op.rdims))
    return points >= _WORTH and lane_dim(kernel, op) not in {d.name for d in op.rdims}


def _row_by_plain(op: Op, kernel: Kernel) -> bool:
    """Whether an op multiplies a row with a weight, of which cores would share short rows."""
    if op.kind is not Kind.CONTRACT:
        return False
    parts = contraction(kernel, op)
    weight = kernel.tensors[parts.b.tensor]
    rows = prod(highest(d.extent, kernel.limits) for d in op.dims if d.name not in parts.n)
    plain = unit_dims(kernel, weight, parts.b.index, op) & set(parts.n)
    return rows == 1 and weight.role is Role.INPUT and bool(plain)


def _by_looked_up(op: Op) -> bool:
    """Whether an op multiplies with rows that it looks up, which cores do not load together."""
    return op.kind is Kind.CONTRACT and bool(op.lookups)


def _times(op: Op, kernel: Kernel, card: CardSpec) -> Iterator[tuple[float, Dim, int]]:
    """(cycles, dim, parts) of the ways to cut an op."""
    alone = replace(kernel, ops=(op,))
    for dim in op.rdims:
        for parts in _divisors(dim, card):
            yield _cycles(_cut(op, dim, parts, alone, Fresh(alone)), card), dim, parts


def _cut(op: Op, dim: Dim, parts: int, kernel: Kernel, fresh: Fresh) -> Kernel:
    tensors = dict(kernel.tensors)
    pair = in_two(op, dim, Expr.of(parts), tensors, fresh, first=True)
    ops = tuple(new for old in kernel.ops for new in (pair if old is op else (old,)))
    return replace(kernel, tensors=tensors, ops=ops)


def _divisors(dim: Dim, card: CardSpec) -> Iterator[int]:
    extent = dim.extent.constant or 0
    yield from (n for n in range(2, card.cores + 1) if extent > n and extent % n == 0)


def _cycles(kernel: Kernel, card: CardSpec) -> float:
    """Of the ops, each in a step of its own."""
    works, grouping = Works(kernel, card), Grouping(kernel)
    times = (
        RunCosts(works).cycles(grouping.single(n), [op.out.tensor])
        for n, op in enumerate(kernel.ops)
    )
    return sum(inf if time is None else time for time in times)


def _parts_of_softmax(softmax: RowSoftmax, least: int, kernel: Kernel, card: CardSpec) -> int:
    """How many parts let exponentials run beside loads, and cost little to combine."""
    alone = replace(kernel, ops=(softmax.top, softmax.powers, softmax.total))
    alone_of = replace(softmax, readers=())

    def time(parts: int) -> float:
        cut = cut_softmax(alone_of, parts, alone, Fresh(alone))
        works, grouping = Works(cut, card), Grouping(cut)
        return sum(_run(grouping, works, *run) for run in ((0, 2), (3, 4)))

    counts = [n for n in _divisors(softmax.dim, card) if n >= least]
    return min(counts, key=time)


def _run(grouping: Grouping, works: Works, first: int, last: int) -> float:
    """Cycles of a run of ops, of which the reductions leave it."""
    ops = grouping.kernel.ops
    group: Group | None = grouping.single(first)
    for position in range(first + 1, last + 1):
        group = grouping.extended(group, first, position) if group else None
    if group is None:
        return inf
    leaving = [op.out.tensor for op in ops[first : last + 1] if op.kind is Kind.REDUCE]
    work = work_of(group, leaving, works)
    splits = best_splits(work, works.card, _SPLITS)
    return min(least_cycles(work, split, works.card) for _, split in splits)
