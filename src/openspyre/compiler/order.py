"""Ops in an order in which those that can share a step stand next to each other.

Inductor orders nests by their readers: the projection of V may come after the softmax. An op moves
up next to an op with the same iteration space, as far as its dependences allow.
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
            return max(position, earliest)
    return len(before)


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
