"""Stage 2: how region-local tensors lie: which dim fills their sticks, and the order of the others.

The PT wants sticks along k in its left operand and along n in its right one and writes them along
n; the SFU is content with any that all its operands share. First every tensor gets what weighs
most by itself: an op's own order, so that what it makes is stored in long runs, then P.V as the
projection after it reads it. Where ops disagree, other orders are looked at, of all tensors
together: those with which the ops take the least time (docs/decisions/0026.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from openspyre.compiler.contracts import operands, roles
from openspyre.compiler.layout_choice import Order, Orders, laid_out, sooner_together
from openspyre.compiler.layout_cost import small_enough_to_stay
from openspyre.compiler.rewrite import reads
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Kernel, Kind, Op, Role, StickLayout, loads
from openspyre.spec import CardSpec

# A stick dim that PT does not want costs one turn at the transpose rate, on the way into LX or in
# it. Stored against the grain of the op that makes it, a tensor goes to device memory in short
# runs, and each takes a request.
_RESULT, _LEFT, _RIGHT = 4, 3, 1
_MOST_ORDERS = 4  # of a tensor


def choose_layouts(kernel: Kernel, card: CardSpec) -> Kernel:
    """A stick layout for every local tensor.

    By themselves where sizes are symbols: estimates are of the largest ones, which hardly ever
    come.
    """
    alone = laid_out_alone(kernel)
    possible = {} if kernel.symbols else _possible(alone, card)
    return laid_out(alone, sooner_together(alone, possible, card)) if possible else alone


# --- every tensor by itself ---------------------------------------------------------------------


def laid_out_alone(kernel: Kernel) -> Kernel:
    """The kernel with every local tensor as it lies by itself."""
    wishes: dict[str, dict[Order, int]] = defaultdict(lambda: defaultdict(int))
    for op in kernel.ops:
        if op.kind is not Kind.CONTRACT:
            made = [d.name for d in (*op.dims, *(op.rdims if op.kind is Kind.SCAN else ()))]
            wishes[op.out.tensor][_positions(op.out.index, made[-1:])] += _RESULT
            continue
        a, b = operands(op)
        n, k = roles(op)[2:]
        wishes[a.tensor][_positions(a.index, k)] += _LEFT
        wishes[b.tensor][_positions(b.index, n[-1:])] += _RIGHT
        wishes[op.out.tensor][_positions(op.out.index, n[-1:])] += _RESULT
    layouts = {
        t.name: StickLayout(_order(len(t.shape), wishes.get(t.name, {})))
        for t in kernel.tensors.values()
        if t.role is Role.LOCAL
    }
    return replace(kernel, layouts=MappingProxyType(layouts))


def _positions(index: Sequence[Expr], dims: Sequence[str]) -> tuple[int, ...]:
    """The positions of an index that walk the dims, in the dims' order."""
    found: list[int] = []
    for dim in dims:
        found += [i for i, e in enumerate(index) if dim in e.names and i not in found]
    return tuple(found)


def _order(rank: int, wishes: Mapping[Order, int]) -> Order:
    """Dims outermost first: as they are, but for those that the heaviest wish puts last."""
    weights: dict[int, int] = defaultdict(int)
    for tail, weight in wishes.items():
        if tail:
            weights[tail[-1]] += weight
    if not weights:
        return tuple(range(rank))
    stick = max(weights, key=lambda d: (weights[d], d))
    tails = [t for t in wishes if t and t[-1] == stick]
    return _with_last(rank, max(tails, key=lambda t: (len(t), t)))


def _with_last(rank: int, tail: Order, first: Order = ()) -> Order:
    """Dims in order, but for some that come first and some that come last."""
    front = tuple(d for d in first if d not in tail)
    return (*front, *(d for d in range(rank) if d not in (*front, *tail)), *tail)


# --- what else there is -------------------------------------------------------------------------


def _possible(kernel: Kernel, card: CardSpec) -> Orders:
    """The orders of the tensors that have more than one, first the one that they lie in.

    A matmul asks for batches outermost, and for its sticks where it would have to turn an operand;
    what maps make such an operand of may lie alike. Other sticks are only for what chains of ops
    begin with: later ops go on sharing the rows of what they read, and rows that fill sticks could
    not be shared finely.
    """
    found = {name: [layout.order] for name, layout in kernel.layouts.items()}
    begins = _beginnings(kernel, card)

    def add(name: str, order: Order) -> None:
        if name in found and (name in begins or order[-1] == found[name][0][-1]):
            _add(found, kernel, name, order)

    for op in kernel.ops:
        if op.kind is Kind.CONTRACT:
            for name, order in _asked(op, kernel):
                add(name, order)
    for op in reversed(kernel.ops):
        if op.kind is Kind.MAP and op.out.tensor in found:
            for order in found[op.out.tensor][1:]:
                for name, alike in _alike(op, order):
                    add(name, alike)
    return {name: orders for name, orders in found.items() if len(orders) > 1}


def _beginnings(kernel: Kernel, card: CardSpec) -> frozenset[str]:
    """Local tensors that one op makes of arguments, or maps of what one op made of them.

    Not what maps make of arguments and leave in LX: they would load against the grain, where the
    matmul can turn as well.
    """
    depth: dict[str, int] = {}
    for op in kernel.ops:
        before = max((depth.get(name, 0) for name, _ in reads(op)), default=0)
        made = before + (op.kind is not Kind.MAP)
        depth[op.out.tensor] = max(depth.get(op.out.tensor, 0), made)
    return frozenset(
        name
        for name, made in depth.items()
        if made == 1 or (made == 0 and not small_enough_to_stay(kernel, kernel.tensors[name], card))
    )


def _asked(op: Op, kernel: Kernel) -> Iterator[tuple[str, Order]]:
    """Orders that a matmul would like its operands to have."""
    batch, _, n, k = roles(op)
    for load, row in zip(operands(op), (k, n[-1:]), strict=True):
        if load.tensor in kernel.layouts:
            rank, outer = len(load.index), _positions(load.index, batch)
            yield load.tensor, _with_last(rank, kernel.layouts[load.tensor].order[-1:], outer)
            yield load.tensor, _with_last(rank, _positions(load.index, row), outer)


def _alike(op: Op, order: Order) -> Iterator[tuple[str, Order]]:
    """The orders in which what an op reads lies as what it makes does."""
    stick = sorted(op.out.index[order[-1]].names)
    for load in loads(op):
        if tail := _positions(load.index, stick):
            yield load.tensor, _with_last(len(load.index), tail)


def _add(found: dict[str, list[Order]], kernel: Kernel, name: str, order: Order) -> None:
    """Notes an order that is new, leaving out dims of one element."""
    shape = kernel.tensors[name].shape
    told = [[d for d in o if shape[d].constant != 1] for o in (*found[name], order)]
    if told[-1] not in told[:-1] and len(found[name]) < _MOST_ORDERS:
        found[name].append(order)
