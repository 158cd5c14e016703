"""Ops in an order in which those that can share a step stand next to each other.

Inductor orders nests by their readers: the projection of V may come after the softmax. An op moves
up next to an op with the same iteration space, as far as its dependences allow. What waits for PT
moves not past ops that SFU can do in the meantime: maxima of scores that PT still makes would keep
it from exponentials that are ready.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from openspyre.compiler.rewrite import reads
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Kernel, Kind, Op

Space = tuple[Kind, frozenset[tuple[Expr, int]]]


def bring_together(kernel: Kernel) -> Kernel:
    """The same ops, each no later than the first run of ops like it that it can join."""
    ops: list[Op] = []
    for op in kernel.ops:
        ops.insert(_place(op, ops), op)
    return kernel if tuple(ops) == kernel.ops else replace(kernel, ops=tuple(ops))


def _place(op: Op, before: list[Op]) -> int:
    """Where among the ops before it an op goes: behind the first run like it, or last."""
    earliest = _earliest(op, before)
    space = _space(op)
    for position in range(max(earliest - 1, 0), len(before)):
        if _space(before[position]) == space:
            while position < len(before) and _space(before[position]) == space:
                position += 1
            position = max(position, earliest)
            return len(before) if _keeps_waiting(op, before, position) else position
    return len(before)


def _keeps_waiting(op: Op, before: list[Op], position: int) -> bool:
    """Whether an op that waits for PT would stand before one of its step that does not."""
    made = {x.out.tensor: x.kind for x in before[:position]}
    if op.kind is Kind.CONTRACT or all(made.get(t) is not Kind.CONTRACT for t, _ in reads(op)):
        return False
    passed = before[position:]
    following = next((x for x in passed if x.kind is not Kind.CONTRACT), None)
    if following is None or not _walk_alike(op, following):
        return False
    return not {t for t, _ in reads(following)} & {x.out.tensor for x in passed}


def _walk_alike(op: Op, other: Op) -> bool:
    """Whether two ops have dims in common: all of one of them, or all but one of both."""
    mine, others = (Counter(d.extent for d in x.dims) for x in (op, other))
    common = (mine & others).total()
    return common > 0 and common >= max(len(op.dims), len(other.dims)) - 1


def _earliest(op: Op, before: list[Op]) -> int:
    """The first position behind everything that the op depends on."""
    needed = {t for t, _ in reads(op)}
    for position in range(len(before) - 1, -1, -1):
        other = before[position]
        written = other.out.tensor
        overwrites = any(t == op.out.tensor for t, _ in reads(other))
        if written in needed or written == op.out.tensor or overwrites:
            return position + 1
    return 0


def _space(op: Op) -> Space:
    """What two ops that run well together have in common: kind and extents of parallel dims."""
    kind = Kind.MAP if op.kind is Kind.GATHER else op.kind
    return kind, frozenset(Counter(d.extent for d in op.dims).items())
