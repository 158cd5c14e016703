"""The choice with the least sum of costs that depend on a few variables each: exact.

Variables are eliminated one by one: the tables that know a variable are added up, and the least
over it stays, with the choice that gave it. Time and memory grow with the largest such table, so
its size is the limit: unlike one of time it gives the same answer on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import prod

import numpy as np
from numpy.typing import NDArray

MOST_ENTRIES = 1 << 14
"""Of a table."""


@dataclass(frozen=True, slots=True)
class Table:
    """Costs of every choice of some variables: one dim for each, in their order."""

    variables: tuple[str, ...]
    costs: NDArray[np.float64]


def least_sum(tables: Sequence[Table], most: int = MOST_ENTRIES) -> dict[str, int] | None:
    """The choice of every variable for which the tables' costs add up to the least.

    Of equal sums that with the smaller numbers, in the order of elimination. None: it would take a
    table of more than `most` entries.
    """
    sizes: dict[str, int] = {}
    about: dict[str, list[Table]] = {}  # tables by variable
    for table in tables:
        sizes |= zip(table.variables, table.costs.shape, strict=True)
        for name in table.variables:
            about.setdefault(name, []).append(table)
    scopes = {name: _scope(name, about[name]) for name in sizes}
    place = {name: at for at, name in enumerate(sizes)}

    def size(name: str) -> int:
        return prod(sizes[other] for other in (name, *scopes[name]))

    waiting = [(size(name), at, name) for name, at in place.items()]
    heapify(waiting)
    told: list[tuple[str, tuple[str, ...], NDArray[np.intp]]] = []
    while scopes:
        entries, _, name = heappop(waiting)
        if name not in scopes or entries != size(name):
            continue  # it has been dealt with, or waits again
        if entries > most:
            return None
        scope = scopes.pop(name)
        gone = about.pop(name)
        together = _sum(gone, (*scope, name), sizes)
        told.append((name, scope, together.argmin(axis=-1)))
        rest = Table(scope, together.min(axis=-1))
        for other in scope:
            about[other] = [*(t for t in about[other] if name not in t.variables), rest]
            scopes[other] = _scope(other, about[other])
            heappush(waiting, (size(other), place[other], other))
    found: dict[str, int] = {}
    for name, scope, choice in reversed(told):
        found[name] = int(choice[tuple(found[other] for other in scope)])
    return found


def _scope(name: str, tables: Sequence[Table]) -> tuple[str, ...]:
    """The variables that share a table with one."""
    return tuple(dict.fromkeys(n for t in tables for n in t.variables if n != name))


def _sum(
    tables: Sequence[Table], names: tuple[str, ...], sizes: Mapping[str, int]
) -> NDArray[np.float64]:
    total = np.zeros([sizes[n] for n in names])
    for table in tables:
        order = sorted(range(len(table.variables)), key=lambda n: names.index(table.variables[n]))
        shape = [sizes[n] if n in table.variables else 1 for n in names]
        total = total + table.costs.transpose(order).reshape(shape)
    return total
