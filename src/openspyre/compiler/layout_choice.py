"""Orders of all local tensors together: those with which the ops take the least time.

What an op takes depends on how the tensors lie that it touches, and nothing else does; so the sum
over all ops has its minimum where variable after variable is eliminated (`least_sum.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from types import MappingProxyType

import numpy as np

from openspyre.compiler.cost import AS_FAST
from openspyre.compiler.layout_cost import op_cycles
from openspyre.compiler.least_sum import MOST_ENTRIES, Table, least_sum
from openspyre.compiler.rewrite import reads
from openspyre.compiler.segments import op_form
from openspyre.ir.kernel import Kernel, Kind, Op, StickLayout
from openspyre.spec import CardSpec

Order = tuple[int, ...]  # dims of a tensor, outermost first, the stick dim last
Orders = Mapping[str, Sequence[Order]]  # of a tensor, the one that it has by itself first
_MOST_COMPARED = 256  # for one op
_RATHER = 1.0  # cycles: what an order is charged that a tensor does not have by itself


def laid_out(kernel: Kernel, orders: Mapping[str, Order]) -> Kernel:
    """The kernel with some tensors in other orders, and maps that walk what they make as it lies:
    their last dim fills sticks, as division and tiling expect.
    """
    layouts = {name: StickLayout(order) for name, order in orders.items()}
    return replace(
        kernel,
        layouts=MappingProxyType({**kernel.layouts, **layouts}),
        ops=tuple(_following(op, orders.get(op.out.tensor)) for op in kernel.ops),
    )


def _following(op: Op, order: Order | None) -> Op:
    if order is None or op.kind is not Kind.MAP:
        return op
    depth = {name: at for at, d in enumerate(order) for name in op.out.index[d].names}
    return replace(op, dims=tuple(sorted(op.dims, key=lambda d: depth.get(d.name, -1))))


def sooner_together(
    kernel: Kernel, orders: Orders, card: CardSpec, most: int = MOST_ENTRIES
) -> dict[str, Order]:
    """The tensors that should lie otherwise than by themselves, and how.

    None where that would not make the kernel sooner by more than estimates can tell, nor where so
    many tensors depend on each other that it cannot be found within `most` entries of a table.

    Args:
        kernel: with every tensor as it lies by itself.
        orders: of the tensors that have a choice.
    """
    known = _Known(kernel, card)
    orders = _few_enough(kernel, orders)
    tables = [known.table(op, orders) for op in kernel.ops if _touched(op, orders)]
    saved, chosen = 0.0, dict[str, Order]()
    for group in _apart(tables):
        best = least_sum([*group, *_preferences(group)], most)
        if best is None:
            continue
        before = sum(table.costs.flat[0] for table in group)
        after = sum(table.costs[tuple(best[n] for n in table.variables)] for table in group)
        if after * AS_FAST < before:
            saved += before - after
            chosen |= {name: orders[name][at] for name, at in best.items() if at}
    if not chosen:
        return {}
    every = sum(known.cycles(op, {}) for op in kernel.ops)
    return chosen if (every - saved) * AS_FAST < every else {}


def _few_enough(kernel: Kernel, orders: Orders) -> Orders:
    """Without the tensors of ops for which there is too much to compare."""
    for op in kernel.ops:
        names = _touched(op, orders)
        if prod(len(orders[name]) for name in names) > _MOST_COMPARED:
            orders = {name: orders[name] for name in orders if name not in names}
    return orders


def _touched(op: Op, orders: Orders) -> tuple[str, ...]:
    names = dict.fromkeys([op.out.tensor, *(name for name, _ in reads(op))])
    return tuple(name for name in names if name in orders)


def _preferences(tables: Sequence[Table]) -> Iterator[Table]:
    """A little for every order that a tensor does not have by itself."""
    sizes = {n: s for t in tables for n, s in zip(t.variables, t.costs.shape, strict=True)}
    for name, size in sizes.items():
        yield Table((name,), np.array([0.0, *[_RATHER] * (size - 1)]))


def _apart(tables: Sequence[Table]) -> Iterator[list[Table]]:
    """Groups of tables that have no variable in common."""
    group: dict[str, int] = {}
    members: dict[int, list[Table]] = {}
    for number, table in enumerate(tables):
        met = sorted({group[name] for name in table.variables if name in group})
        into = met[0] if met else number
        for other in met[1:]:
            moved = members.pop(other)
            members[into] += moved
            group |= {name: into for one in moved for name in one.variables}
        members.setdefault(into, []).append(table)
        group |= dict.fromkeys(table.variables, into)
    yield from members.values()


class _Known:
    """What ops take; equal ops are looked at once."""

    def __init__(self, kernel: Kernel, card: CardSpec) -> None:
        self.kernel, self.card = kernel, card
        self._forms: dict[str, object] = {}
        self._cycles: dict[object, float] = {}

    def table(self, op: Op, orders: Orders) -> Table:
        """With every order of the tensors that have a choice."""
        names = _touched(op, orders)
        costs = np.zeros([len(orders[name]) for name in names])
        for at in product(*(range(n) for n in costs.shape)):
            taken = {name: orders[name][n] for name, n in zip(names, at, strict=True)}
            costs[at] = self.cycles(op, {n: o for n, o in taken.items() if o != orders[n][0]})
        return Table(names, costs)

    def cycles(self, op: Op, orders: Mapping[str, Order]) -> float:
        """With some of its tensors in other orders."""
        if op.name not in self._forms:
            self._forms[op.name] = op_form(self.kernel, op)
        places = tuple(orders.get(n) for n in (op.out.tensor, *(n for n, _ in reads(op))))
        key = (self._forms[op.name], places)
        if key not in self._cycles:
            lying = laid_out(replace(self.kernel, ops=(op,)), orders)
            self._cycles[key] = op_cycles(lying, lying.ops[0], self.card)
        return self._cycles[key]
