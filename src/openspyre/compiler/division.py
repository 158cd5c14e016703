"""Stage 4: every step split over the cores.

All splits over the step's axes are scored by `cost.py`. Uneven parts are fine; an axis that walks
sticks is split in whole sticks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from openspyre.compiler.cost import best_split, granules, work_of
from openspyre.compiler.groups import Group
from openspyre.compiler.rewrite import reads
from openspyre.compiler.segments import step_keys
from openspyre.ir.kernel import Division, Kernel, Part, Role, Step
from openspyre.spec import CardSpec


def divide(kernel: Kernel, card: CardSpec) -> Kernel:
    """Chooses the division of every step."""
    done: dict[object, Division] = {}
    divisions = {}
    last_use = _last_uses(kernel)
    for number, (step, key) in enumerate(step_keys(kernel)):
        if key not in done:
            done[key] = _division(kernel, step, number, last_use, card)
        divisions[step.name] = done[key]
    return replace(kernel, divisions=divisions)


def _division(
    kernel: Kernel, step: Step, number: int, last_use: Mapping[str, int], card: CardSpec
) -> Division:
    group = group_of(kernel, step)
    leaving = [
        t
        for t in group.inside
        if kernel.tensors[t].role is not Role.LOCAL or last_use.get(t, -1) > number
    ]
    work = work_of(group, kernel, leaving, card)
    _, split = best_split(work, card)
    grains = granules(group, kernel, card)
    parts = []
    for at, axis in enumerate(step.axes):
        if split[at] > 1:
            stride = prod(split[at + 1 :])
            parts.append(Part(axis.name, split[at], stride, grains[at]))
    return Division(tuple(parts))


def group_of(kernel: Kernel, step: Step) -> Group:
    """The group that a step was made from."""
    by_name = {op.name: op for op in kernel.ops}
    ops = tuple(by_name[n] for n in step.ops)
    inside = {op.out.tensor: () for op in ops}
    return Group(ops, step.axes, step.binding, inside, frozenset(), frozenset())


def _last_uses(kernel: Kernel) -> dict[str, int]:
    """For every tensor the number of the last step that reads it."""
    by_name = {op.name: op for op in kernel.ops}
    found: dict[str, int] = {}
    for number, step in enumerate(kernel.steps):
        for name in step.ops:
            found.update({t: number for t, _ in reads(by_name[name])})
    return found
