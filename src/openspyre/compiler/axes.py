"""The axes of a step: the shared ones, then the private dims of its ops."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from openspyre.compiler.bounds import highest
from openspyre.errors import BrokenInvariant
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Division, Kernel, Kind, Op, Part, Step


@dataclass(frozen=True, slots=True)
class StepAxis:
    """One axis; `highest` is its largest extent, `part` the most points one core gets of it."""

    name: str
    extent: Expr
    highest: int
    part: int
    split: Part | None = None


@dataclass(frozen=True, slots=True)
class TripLoop:
    """A tile loop around an op, over an axis of the step."""

    axis: int
    tile: int


@dataclass(frozen=True, slots=True)
class StepAxes:
    """The axes of a step and how ops walk them.

    Private dims of different ops share an axis when their extents are equal: an axis says no more
    than how far to count.

    Attributes:
        shared: how many of the axes, the first ones, are the step's.
        of: for (op, dim) the number of the axis it walks.
        loops: for every op the tile loops around it, outermost first.
        outer: how many of the loops, the first ones, are the step's.
        unit: an axis of extent 1 for matmuls that lack an n dim, or -1.
    """

    axes: tuple[StepAxis, ...]
    shared: int
    of: Mapping[tuple[str, str], int]
    loops: Mapping[str, tuple[TripLoop, ...]]
    outer: int
    unit: int = -1

    def numbers(self, op: Op) -> dict[str, int]:
        """The axis number of every dim of an op."""
        return {d.name: self.of[op.name, d.name] for d in op.dims + op.rdims}

    def exact(self, op: Op, index: Expr) -> int:
        """The shared axis that an index of an op is exactly, or -1."""
        for dim in op.dims:
            number = self.of[op.name, dim.name]
            if number < self.shared and index == Expr.var(dim.name):
                return number
        return -1

    def depth(self, op: Op, walked: Collection[int]) -> int:
        """The number of loops around an op up to the innermost one over one of the axes."""
        return max((d for d, x in enumerate(self.loops[op.name], 1) if x.axis in walked), default=0)

    def finished_depth(self, op: Op) -> int:
        """The number of loops around an op that stand outside of every loop over a reduced dim."""
        reduced = {self.of[op.name, d.name] for d in op.rdims}
        loops = self.loops[op.name]
        return next((d for d, x in enumerate(loops) if x.axis in reduced), len(loops))


def step_ops(kernel: Kernel, step: Step) -> tuple[Op, ...]:
    """The ops of a step, in its order."""
    return tuple(kernel.by_name[name] for name in step.ops)


def largest_part(extent: int, part: Part | None) -> int:
    """The most points that one core gets of an axis."""
    if part is None:
        return extent
    granules = -(-extent // part.granule)
    return min(extent, -(-granules // part.parts) * part.granule)


def step_axes(kernel: Kernel, step: Step, division: Division) -> StepAxes:
    """Number the axes of a step."""
    parts = {p.axis: p for p in division.parts}
    axes: list[StepAxis] = []
    for dim in step.axes:
        top, part = highest(dim.extent, kernel.limits), parts.get(dim.name)
        axes.append(StepAxis(dim.name, dim.extent, top, largest_part(top, part), part))
    shared = {axis.name: number for number, axis in enumerate(axes)}
    private: dict[tuple[Expr, int], int] = {}
    of: dict[tuple[str, str], int] = {}
    ops = step_ops(kernel, step)
    for op in ops:
        seen: dict[Expr, int] = {}
        for dim in op.dims + op.rdims:
            bound = step.binding.get(op.name, {}).get(dim.name)
            if bound is not None:
                of[op.name, dim.name] = shared[bound]
                continue
            rank = seen[dim.extent] = seen.get(dim.extent, 0) + 1
            if (dim.extent, rank) not in private:
                private[dim.extent, rank] = len(axes)
                top = highest(dim.extent, kernel.limits)
                axes.append(StepAxis(f"{op.name}.{dim.name}", dim.extent, top, top))
            of[op.name, dim.name] = private[dim.extent, rank]
    unit = -1
    if any(op.kind is Kind.CONTRACT for op in ops):
        unit = len(axes)
        axes.append(StepAxis("one", Expr.of(1), 1, 1))
    outer = tuple(TripLoop(shared[loop.axis], loop.tile) for loop in step.loops)
    loops = {
        op.name: outer
        + tuple(TripLoop(of[op.name, loop.axis], loop.tile) for loop in step.inner.get(op.name, ()))
        for op in ops
    }
    _check_reduced(ops, step)
    return StepAxes(tuple(axes), len(shared), of, loops, len(outer), unit)


def _check_reduced(ops: tuple[Op, ...], step: Step) -> None:
    for op in ops:
        bound = step.binding.get(op.name, {})
        if any(dim.name in bound for dim in op.rdims):
            raise BrokenInvariant(f"step {step.name} splits a reduced dim of {op.name}")
