"""The soonest of several whole plans, by a clock that is handed in (docs/decisions/0024.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf, prod

from openspyre.compiler.emit import emit
from openspyre.compiler.ways import Way
from openspyre.errors import BrokenInvariant, SpyreError
from openspyre.ir.kernel import Kernel
from openspyre.ir.program import Axis, Node, Program, Slot, TileLoop
from openspyre.spec import CardSpec

Timer = Callable[[Program], float]
"""Cycles of a program without size symbols: always the same for the same program.

Raises SpyreError for one that it cannot time.
"""
Stages = tuple[tuple[str, Kernel], ...]  # every stage and the kernel after it

_MOST = 4  # ways that are tried
_LARGEST = 1 << 19  # instructions of a program that is timed: a second
_TOO_LARGE = "it is too large to be timed"
_WORTH = 0.95  # of the soonest so far: what a way may take at best, to be tried


@dataclass(frozen=True, slots=True)
class Tried:
    """A way to plan that was tried.

    Attributes:
        cycles: what the timer says, if it was asked and could tell.
        problem: why not, if it could not; empty where it was not asked.
    """

    way: str
    cycles: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned kernel; its program, if that had to be made."""

    way: Way
    stages: Stages
    program: Program | None
    tried: Tried
    apart: float = inf  # cycles as `place` leaves it, as estimates have it: nothing loaded early

    @property
    def kernel(self) -> Kernel:
        return self.stages[-1][1]


def soonest(
    every: Iterable[Way], finish: Callable[[Way], Stages], card: CardSpec, timer: Timer
) -> tuple[Plan, tuple[Tried, ...]]:
    """The plan that takes the least time, and all ways that were tried.

    The first of equal ones. A way that fails is passed over, one that cannot be timed is taken if
    none can. The timer is not asked where there is nothing to choose: one way, equal plans, or
    others that the soonest so far beats even if what they fetch came for nothing. Nor is it for
    programs that take long to time; then other ways are not asked for.

    Args:
        finish: the stages that follow on a way.

    Raises:
        SpyreError: what the first way failed with, where all do.
    """
    plans: list[Plan] = []
    failed: list[tuple[SpyreError, Tried]] = []
    waiting = iter(every)
    alone = True
    while (way := next(waiting, None)) is not None:
        if len(plans) + len(failed) == _MOST or _beaten(way, plans):
            continue
        try:
            stages = finish(way)
        except SpyreError as problem:
            failed.append((problem, Tried(way.name, None, problem.what)))
            alone = False  # the next one has that before it
            continue
        if any(stages[-1][1] == plan.kernel for plan in plans):
            continue
        program = emit(stages[-1][1], card)
        if instructions(program) > _LARGEST:
            plans.append(Plan(way, stages, program, Tried(way.name, None, _TOO_LARGE)))
            break  # so are the others
        if alone:
            second = next(waiting, None)
            alone = second is None
            waiting = waiting if second is None else chain((second,), waiting)
        plans.append(_timed(way, stages, program, card, None if alone else timer))
    if not plans:
        raise failed[0][0]
    tried = (*(plan.tried for plan in plans), *(tried for _, tried in failed))
    return min(plans, key=_cycles), tried


def _cycles(plan: Plan) -> float:
    return inf if plan.tried.cycles is None else plan.tried.cycles


def _beaten(way: Way, plans: Sequence[Plan]) -> bool:
    return any(way.free > plan.apart * _WORTH for plan in plans)


def _timed(way: Way, stages: Stages, program: Program, card: CardSpec, timer: Timer | None) -> Plan:
    if timer is None:
        return Plan(way, stages, program, Tried(way.name))
    try:
        cycles = timer(program)
        placed = dict(stages)["place"]
        apart = cycles if placed == stages[-1][1] else timer(emit(placed, card))
        return Plan(way, stages, program, Tried(way.name, cycles), apart)
    except SpyreError as problem:
        return Plan(way, stages, program, Tried(way.name, None, problem.what))


def instructions(program: Program) -> int:
    """At most so many run on all cores together."""
    return sum(
        prod(axis.parts for axis in section.axes) * _trips(node, section.axes)
        for section in program.sections
        for node in section.body
    )


def _trips(node: Node, axes: tuple[Axis, ...]) -> int:
    if not isinstance(node, TileLoop):
        return 1
    axis = axes[node.axis]
    if isinstance(axis.extent, Slot):
        raise BrokenInvariant("a program to be timed has a size symbol")
    whole = -(-axis.extent // axis.granule)
    points = -(-whole // axis.parts) * axis.granule
    return max(1, -(-points // node.tile)) * sum(_trips(inner, axes) for inner in node.body)
