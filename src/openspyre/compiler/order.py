"""Ops in an order in which those that can share a step stand next to each other.

Inductor orders nests by their readers: the projection of V may come after the softmax. An op moves
up next to an op with the same iteration space, as far as its dependences allow. What waits for PT
moves not past ops that SFU can do in the meantime: maxima of scores that PT still makes would keep
it from exponentials that are ready.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from openspyre.compiler.rewrite import reads
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Kernel, Kind, Op

Space = tuple[Kind, frozenset[tuple[Expr, int]]]


@dataclass(frozen=True, slots=True)
class _Placed:
    """An op, what it reads, and what two ops that run well together have in common."""

    op: Op
    reads: frozenset[str]
    space: Space


def bring_together(kernel: Kernel) -> Kernel:
    """The same ops, each no later than the first run of ops like it that it can join."""
    placed: list[_Placed] = []
    for op in kernel.ops:
        found = _Placed(op, frozenset(t for t, _ in reads(op)), _space(op))
        placed.insert(_place(found, placed), found)
    ops = tuple(x.op for x in placed)
    return kernel if ops == kernel.ops else replace(kernel, ops=ops)


def _place(found: _Placed, before: list[_Placed]) -> int:
    """Where among the ops before it an op goes: behind the first run like it, or last."""
    earliest = _earliest(found, before)
    for position in range(max(earliest - 1, 0), len(before)):
        like = before[position].space == found.space
        if like and _brings_together(found, before[position]):
            while position < len(before) and before[position].space == found.space:
                position += 1
            position = max(position, earliest)
            return len(before) if _keeps_waiting(found, before, position) else position
    return len(before)


def _brings_together(found: _Placed, other: _Placed) -> bool:
    """Whether a like op may be followed: not by a product of other parts of the same tensors, as
    blocks of rows are, which would leave more in LX at a time and take nothing from each other."""
    if found.op.kind is not Kind.CONTRACT or not found.reads & other.reads:
        return True
    return not set(reads(found.op)).isdisjoint(reads(other.op))


def _keeps_waiting(found: _Placed, before: list[_Placed], position: int) -> bool:
    """Whether an op that waits for PT would stand before one of its step that does not."""
    made = {x.op.out.tensor: x.op.kind for x in before[:position]}
    waits = any(made.get(tensor) is Kind.CONTRACT for tensor in found.reads)
    if found.op.kind is Kind.CONTRACT or not waits:
        return False
    passed = before[position:]
    following = next((x for x in passed if x.op.kind is not Kind.CONTRACT), None)
    if following is None or not _walk_alike(found.op, following.op):
        return False
    return not following.reads & {x.op.out.tensor for x in passed}


def _walk_alike(op: Op, other: Op) -> bool:
    """Whether two ops have dims in common: all of one of them, or all but one of both."""
    mine, others = (Counter(d.extent for d in x.dims) for x in (op, other))
    common = (mine & others).total()
    return common > 0 and common >= max(len(op.dims), len(other.dims)) - 1


def _earliest(found: _Placed, before: list[_Placed]) -> int:
    """The first position behind everything that the op depends on."""
    out = found.op.out.tensor
    for position in range(len(before) - 1, -1, -1):
        other = before[position]
        written = other.op.out.tensor
        if written in found.reads or written == out or out in other.reads:
            return position + 1
    return 0


def _space(op: Op) -> Space:
    """Kind and extents of parallel dims."""
    kind = Kind.MAP if op.kind is Kind.GATHER else op.kind
    return kind, frozenset(Counter(d.extent for d in op.dims).items())
