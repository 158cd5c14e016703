"""Reads that walk the same elements with different dims: x[i, r] and x[i, a*16 + b].

They can share a tile in LX: where one op walks a row with one dim and another with two, or only the
first part of it, the tile that one loaded serves both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openspyre.compiler.addressing import address
from openspyre.compiler.axes import StepAxes
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Kernel, Op


@dataclass(frozen=True, slots=True)
class Elements:
    """The elements a read walks.

    Attributes:
        key: equal for reads that walk the same elements from equal axes of the step.
        steps: for every axis walked, elements from one point to the next in device memory.
        units: for every axis, the step of the dense run that it is a part of.
    """

    key: object
    steps: tuple[int, ...]
    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """The elements a read walks, from one on, by steps along axes.

    Attributes:
        start: (tensor, its first element).
        sides: for every axis walked the step between points in device memory, and the axis if it
            is the step's, else how many points there are.
    """

    start: object
    sides: tuple[tuple[Expr, tuple[int, int]], ...]

    def within(self, other: Box) -> bool:
        """Whether another box begins here, has the same axes, and no less of each."""
        if self.start != other.start or len(self.sides) != len(other.sides):
            return False
        pairs = zip(self.sides, other.sides, strict=True)
        return all(a == b and m[0] == n[0] and m[1] <= n[1] for (a, m), (b, n) in pairs)


def box_of(
    kernel: Kernel, axes: StepAxes, op: Op, tensor: str, index: Sequence[Expr], walked: list[int]
) -> Box | None:
    """The box of a plain read, or None where an own dim's size is a symbol."""
    at = address(kernel, kernel.tensors[tensor], index, op.dims + op.rdims)
    steps = {axes.of[op.name, dim]: by for dim, by in at.terms}
    sides = []
    for number in walked:
        extent = axes.axes[number].extent.constant
        if number >= axes.shared and extent is None:
            return None
        side = (number, 0) if number < axes.shared else (-1, extent or 0)
        sides.append((steps.get(number, Expr.of(0)), side))
    return Box((tensor, at.offset), tuple(sides))


def elements_of(
    kernel: Kernel, axes: StepAxes, op: Op, tensor: str, index: Sequence[Expr], walked: list[int]
) -> Elements | None:
    """What a plain read walks, or None where sizes are symbols or dims do not nest."""
    at = address(kernel, kernel.tensors[tensor], index, op.dims + op.rdims)
    by_axis = {axes.of[op.name, dim]: by.constant for dim, by in at.terms}
    steps = [by_axis.get(number) or 0 for number in walked]
    own = [n for n, number in enumerate(walked) if number >= axes.shared]
    shared = [n for n, number in enumerate(walked) if number < axes.shared]
    if len(by_axis) != len(walked) or min(steps, default=0) <= 0 or own != sorted(own):
        return None
    if [*shared, *own] != list(range(len(walked))):
        return None
    units = list(steps)
    runs: list[tuple[int, int]] = []  # (points, step), the smallest step first
    for place in reversed(own):
        extent = axes.axes[walked[place]].extent.constant
        if extent is None:
            return None
        if runs and steps[place] == runs[-1][0] * runs[-1][1]:
            units[place] = runs[-1][1]
            runs[-1] = (runs[-1][0] * extent, runs[-1][1])
        elif runs and steps[place] < runs[-1][0] * runs[-1][1]:
            return None
        else:
            runs.append((extent, steps[place]))
    outer = tuple((walked[n], steps[n]) for n in shared)
    return Elements((tensor, at.offset, outer, tuple(runs)), tuple(steps), tuple(units))


def pitches_in(
    loader: Elements, pitches: Sequence[int], reader: Elements
) -> tuple[int, ...] | None:
    """LX bytes between points of a reader's axes in the tile that another loaded.

    None where the tile has gaps inside of a run.
    """
    units = {
        step: pitch
        for step, unit, pitch in zip(loader.steps, loader.units, pitches, strict=True)
        if step == unit
    }
    for step, unit, pitch in zip(loader.steps, loader.units, pitches, strict=True):
        if pitch * unit != units[unit] * step:
            return None
    return tuple(
        units[unit] * (step // unit) for step, unit in zip(reader.steps, reader.units, strict=True)
    )
