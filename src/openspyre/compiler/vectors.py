"""Scalar expressions as vector programs of the SFU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, assert_never

from openspyre.ir.index import Expr
from openspyre.ir.kernel import Call, Const, DType, Index, Load, Scalar
from openspyre.ir.ops import CONST, INDEX, LOAD, SLOT, TABLE
from openspyre.ir.program import Place, Slot, VecIndex, VecOp

Item = TypeVar("Item", Place, VecIndex)


@dataclass(slots=True)
class VectorProgram:
    """The parts of a `Vec` while an expression is written down. Equal values are one value.

    Attributes:
        place: where a load's operand lies, or the slot of a host scalar.
        index: an index expression as a `VecIndex`.
    """

    place: Callable[[Load], Place | Slot]
    index: Callable[[Expr], VecIndex]
    inputs: list[Place] = field(default_factory=list)
    indices: list[VecIndex] = field(default_factory=list)
    ops: list[VecOp] = field(default_factory=list)
    known: dict[int, int] = field(default_factory=dict)  # by id: nodes shared in a body are many
    numbers: dict[object, int] = field(default_factory=dict)

    def value(self, node: Scalar) -> int:
        """The number of the value of a node, whose ops are added where they are missing."""
        if id(node) not in self.known:
            self.known[id(node)] = self._add(self._op(node))
        return self.known[id(node)]

    def _add(self, op: VecOp) -> int:
        # Literals that compare equal may differ in bits: 0.0 and -0.0.
        key = (op.code, op.dtype, op.args, repr(op.number))
        if key not in self.numbers:
            self.numbers[key] = len(self.ops)
            self.ops.append(op)
        return self.numbers[key]

    def _op(self, node: Scalar) -> VecOp:
        match node:
            case Load():
                place = self.place(node)
                if isinstance(place, Slot):
                    return VecOp(SLOT, node.dtype, (place.index,))
                return VecOp(LOAD, node.dtype, (_position(self.inputs, place),))
            case Const(value, dtype):
                return VecOp(CONST, dtype, (), float(value) if dtype.is_float else int(value))
            case Index(value, dtype):
                return VecOp(INDEX, dtype, (_position(self.indices, self.index(value)),))
            case Call(op, args, dtype):
                return VecOp(TABLE[op].code, dtype, tuple(self.value(a) for a in args))
            case _:
                assert_never(node)

    def stored(self, node: Scalar, dtype: DType) -> int:
        """The number of a value in the class of what it is stored to."""
        value = self.value(node)
        if node.dtype.compute is dtype.compute:
            return value
        return self._add(VecOp(TABLE["cast"].code, dtype, (value,)))


def moved(source: Place, target: Place) -> tuple[VecOp, ...]:
    """The ops that load an input to store it at `target`; the last one's value is stored."""
    load = VecOp(LOAD, source.dtype.compute, (0,))
    if source.dtype.compute is target.dtype.compute:
        return (load,)
    return (load, VecOp(TABLE["cast"].code, target.dtype, (0,)))


def _position(items: list[Item], item: Item) -> int:
    if item not in items:
        items.append(item)
    return items.index(item)
