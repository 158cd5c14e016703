"""How a tensor lies in LX: the tile of one step, or a core's whole slice kept across steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openspyre.compiler.addressing import tensor_pitches
from openspyre.compiler.axes import StepAxes
from openspyre.compiler.bounds import highest
from openspyre.errors import BrokenInvariant
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Kernel, Op
from openspyre.ir.program import Origin
from openspyre.spec import CardSpec

_WHOLE_SHARE = 0.7  # of LX; the rest is for panels of the other operand, twice, and results


def kept_whole(size: int, card: CardSpec) -> bool:
    """Whether an operand of so many bytes is loaded whole, before the loops of a step that do not
    change it, rather than in parts again and again.
    """
    return size <= card.lx_usable * _WHOLE_SHARE


def kept_weights(kernel: Kernel) -> tuple[str, ...]:
    """The local tensors that the prologue of a kernel makes."""
    if not kernel.prologue:
        return ()
    steps = kernel.steps[: kernel.prologue]
    return tuple(kernel.by_name[name].out.tensor for step in steps for name in step.ops)


@dataclass(frozen=True, slots=True)
class LxTensor:
    """A tensor in LX, dim by dim.

    Attributes:
        buffer: the name of its LX buffer.
        pitches: bytes from one point to the next.
        origins: where a dim starts: whole (ABSOLUTE), the core's slice, or the trip's tile. In the
            last two its readers index it by exactly one axis.
    """

    buffer: str
    pitches: tuple[int, ...]
    origins: tuple[Origin, ...]
    bytes: int

    def terms(
        self, axes: StepAxes, op: Op, index: Sequence[Expr]
    ) -> tuple[list[tuple[int, Expr, Origin]], Expr]:
        """(axis, bytes, origin) terms and the byte offset of an access."""
        found: dict[tuple[int, Origin], Expr] = {}
        offset = Expr.of(0)
        numbers = axes.numbers(op)
        for pitch, origin, position in zip(self.pitches, self.origins, index, strict=True):
            offset = offset + position.without(frozenset(numbers)) * pitch
            for dim, number in numbers.items():
                if (by := position.coefficient(dim)).constant != 0:
                    found[number, origin] = found.get((number, origin), Expr.of(0)) + by * pitch
        if len({number for number, _ in found}) < len(found):
            raise BrokenInvariant(
                f"{op.name} walks two dims of a tensor in LX with one shared axis"
            )
        return [(number, by, origin) for (number, origin), by in found.items()], offset

    def coefficient(self, index: Sequence[Expr], dim: str) -> Expr:
        """Bytes that an access moves on when a dim of its op does."""
        total = Expr.of(0)
        for pitch, position in zip(self.pitches, index, strict=True):
            total = total + position.coefficient(dim) * pitch
        return total


def lx_tensor(
    kernel: Kernel, axes: StepAxes, producer: Op, *, buffer: str, tiled: bool
) -> LxTensor:
    """How the tensor that `producer` writes lies in LX.

    With `tiled` a tile of the producer's step, else the core's whole slice.
    """
    tensor = kernel.tensors[producer.out.tensor]
    loops = {x.axis: x.tile for x in axes.loops[producer.name][: axes.outer]}
    capacities: list[int] = []
    origins: list[Origin] = []
    for extent, index in zip(tensor.shape, producer.out.index, strict=True):
        axis = axes.exact(producer, index)
        split = axes.axes[axis].split if axis >= 0 else None
        if tiled and axis in loops:
            capacities.append(min(axes.axes[axis].part, loops[axis]))
            origins.append(Origin.TILE)
        elif split and split.parts > 1:
            capacities.append(axes.axes[axis].part)
            origins.append(Origin.CORE)
        else:
            capacities.append(highest(extent, kernel.limits))
            origins.append(Origin.ABSOLUTE)
    steps, total = tensor_pitches(kernel, tensor, capacities)
    return LxTensor(buffer, steps, tuple(origins), total)
