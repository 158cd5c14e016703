"""Stage 2: how region-local tensors lie, above all which dim fills their sticks.

The PT wants sticks along k in its left operand and along n in its right one and writes them along
n; the SFU is content with any. An op's own order comes first, so that what it makes is stored in
long runs; then P.V lies as the projection after it reads it. K of an attention keeps the sticks
along the head dim with which it is projected, and is turned when it is loaded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from openspyre.compiler.contracts import operands, roles
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Kernel, Kind, Role, StickLayout
from openspyre.spec import CardSpec

# A stick dim that PT does not want costs one turn at the transpose rate, on the way into LX or in
# it. Stored against the grain of the op that makes it, a tensor goes to device memory in short
# runs, and each takes a request.
_RESULT, _LEFT, _RIGHT = 4, 3, 1


def choose_layouts(kernel: Kernel, card: CardSpec) -> Kernel:
    """A stick layout for every local tensor."""
    wishes: dict[str, dict[tuple[int, ...], int]] = defaultdict(lambda: defaultdict(int))
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
    return replace(kernel, layouts=layouts)


def _positions(index: Sequence[Expr], dims: Sequence[str]) -> tuple[int, ...]:
    """The positions of an index that walk the dims, in the dims' order."""
    found: list[int] = []
    for dim in dims:
        found += [i for i, e in enumerate(index) if dim in e.names and i not in found]
    return tuple(found)


def _order(rank: int, wishes: dict[tuple[int, ...], int]) -> tuple[int, ...]:
    """Dims outermost first: as they are, but for those that the heaviest wish puts last."""
    weights: dict[int, int] = defaultdict(int)
    for tail, weight in wishes.items():
        if tail:
            weights[tail[-1]] += weight
    if not weights:
        return tuple(range(rank))
    stick = max(weights, key=lambda d: (weights[d], d))
    tails = [t for t in wishes if t and t[-1] == stick]
    tail = max(tails, key=lambda t: (len(t), t))
    return (*(d for d in range(rank) if d not in tail), *tail)
