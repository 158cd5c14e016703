"""Stage 4: every step split over the cores.

All splits over the step's axes are scored by `cost.py`. Uneven parts are fine; an axis that walks
sticks is split in whole sticks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import prod

from openspyre.compiler.agreed import Agreed, agree
from openspyre.compiler.cost import AS_FAST, Split, Work, best_splits
from openspyre.compiler.groups import Group
from openspyre.compiler.joining import work_of
from openspyre.compiler.rewrite import reads
from openspyre.compiler.segments import step_keys
from openspyre.compiler.tiles import Buffering
from openspyre.compiler.tilings import soonest
from openspyre.compiler.work import Works
from openspyre.ir.kernel import Division, Kernel, Part, Role, Step
from openspyre.spec import CardSpec

_MOST_TILED = 6  # splits that are compared with their tile loops


def divide(kernel: Kernel, card: CardSpec) -> Kernel:
    """Chooses the division of every step."""
    return _agreed(kernel, Works(kernel, card)).kernel


def divided_cycles(kernel: Kernel, works: Works) -> float:
    """The estimate of all steps with the divisions that `divide` gives them.

    Args:
        works: of the same ops, in steps or not.
    """
    return _agreed(kernel, works).cycles()


def _agreed(kernel: Kernel, works: Works) -> Agreed:
    done: dict[object, Division] = {}
    divisions, all_works, keys = {}, {}, {}
    card = works.card
    last_use = last_uses(kernel)
    for number, (step, key) in enumerate(step_keys(kernel)):
        work = all_works[step.name] = step_work(step, number, last_use, works)
        if key not in done:
            done[key] = _division(step, work, card)
        divisions[step.name], keys[step.name] = done[key], key
    again = partial(_division, card=card)
    return agree(replace(kernel, divisions=divisions), all_works, keys, card, again)


def _division(step: Step, work: Work, card: CardSpec) -> Division:
    split = _split(work, card)
    parts = []
    for at, axis in enumerate(step.axes):
        if split[at] > 1:
            stride = prod(split[at + 1 :])
            parts.append(Part(axis.name, split[at], stride, work.granules[at]))
    return Division(tuple(parts))


def _split(work: Work, card: CardSpec) -> Split:
    """The fastest split, each with the tile loops that suit it best."""
    best = best_splits(work, card, _MOST_TILED)
    timed = [(min(_tiled(work, s, card), default=time), s) for time, s in best]
    least = min(time for time, _ in timed) * AS_FAST
    return next(split for time, split in timed if time <= least)


def _tiled(work: Work, split: Split, card: CardSpec) -> Iterator[float]:
    for buffering in (Buffering.COPIES, Buffering.INNER):
        yield from (time for time, *_ in soonest(work, split, card, buffering))


def split_of(step: Step, division: Division) -> Split:
    """How many cores share each axis of a step."""
    parts = {p.axis: p.parts for p in division.parts}
    return tuple(parts.get(a.name, 1) for a in step.axes)


def step_work(step: Step, number: int, last_use: Mapping[str, int], works: Works) -> Work:
    """The work of step `number`."""
    kernel = works.kernel
    group = group_of(kernel, step)
    leaving = [
        t
        for t in group.inside
        if kernel.tensors[t].role is not Role.LOCAL or last_use.get(t, -1) > number
    ]
    return work_of(group, leaving, works)


def group_of(kernel: Kernel, step: Step) -> Group:
    """The group that a step was made from."""
    by_name = {op.name: op for op in kernel.ops}
    ops = tuple(by_name[n] for n in step.ops)
    inside = {op.out.tensor: () for op in ops}
    return Group(ops, step.axes, step.binding, inside, frozenset(), frozenset())


def last_uses(kernel: Kernel) -> dict[str, int]:
    """For every tensor the number of the last step that reads it."""
    by_name = {op.name: op for op in kernel.ops}
    found: dict[str, int] = {}
    for number, step in enumerate(kernel.steps):
        for name in step.ops:
            found.update({t: number for t, _ in reads(by_name[name])})
    return found
