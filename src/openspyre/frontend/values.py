"""Typed scalar values: Inductor's arithmetic said with the ops of the op table.

A `Value` is a scalar expression with the torch dtype PyTorch gives it. Floats are float32 between
load and store; the other dtypes are kept, so that narrow integers wrap where torch wraps them.
Equal expressions are one object, and what costs nothing to see is folded (`True & x`, `x * 1.0`,
a comparison that an index range decides).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Union

import torch

from openspyre.errors import Unsupported
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Call, Const, DType, Index, Load, Scalar
from openspyre.ir.ops import TABLE

STORED: Mapping[torch.dtype, DType] = MappingProxyType(
    {
        torch.float16: DType.F16,
        torch.bfloat16: DType.BF16,
        torch.float32: DType.F32,
        torch.int64: DType.I64,
        torch.int32: DType.I32,
        torch.int16: DType.I16,
        torch.int8: DType.I8,
        torch.uint8: DType.U8,
        torch.bool: DType.BOOL,
        torch.float8_e4m3fn: DType.F8E4M3,
        torch.float8_e5m2: DType.F8E5M2,
    }
)
_NARROW = frozenset({torch.int16, torch.int8, torch.uint8})
_WRAPPING = frozenset(
    {"add", "sub", "mul", "neg", "abs", "shl", "pow", "truncdiv", "floordiv", "not"}
)
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


def stored(dtype: torch.dtype, what: str, at: str = "") -> DType:
    """The element type of a tensor on the card.

    Raises:
        Unsupported: the card has no such dtype.
    """
    if dtype not in STORED:
        raise Unsupported(
            f"{what} of dtype {dtype}",
            why=f"the card stores {', '.join(str(d).removeprefix('torch.') for d in STORED)}",
            hint="convert the tensor first, for example with .float(), or keep it on the CPU",
            at=at,
        )
    return STORED[dtype]


def computed(dtype: torch.dtype) -> torch.dtype:
    """The dtype a value of `dtype` is computed in."""
    return torch.float32 if dtype.is_floating_point else dtype


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    scalar: Scalar
    dtype: torch.dtype

    @property
    def is_float(self) -> bool:
        return self.dtype.is_floating_point


Operand = Union[Value, bool, int, float]


class Arithmetic:
    """Builds values; one per loop nest."""

    def __init__(self) -> None:
        self._interned: dict[object, Scalar] = {}
        self._weights: dict[int, int] = {}

    # --- leaves ---

    def constant(self, value: float | int | bool, dtype: torch.dtype) -> Value:
        if dtype.is_complex:
            raise Unsupported(f"a constant of dtype {dtype}", why="the card has no complex numbers")
        if dtype.is_floating_point:
            return Value(self._leaf(Const(float(value), DType.F32)), torch.float32)
        if dtype == torch.bool:
            return Value(self._leaf(Const(int(bool(value)), DType.BOOL)), dtype)
        wrapped = (int(value) + 2**63) % 2**64 - 2**63  # folded sums may leave int64
        return Value(self._leaf(Const(wrapped, stored(dtype, "a constant").compute)), dtype)

    def index(self, expr: Expr, dtype: torch.dtype = torch.int64) -> Value:
        """An index expression as a value of an integer dtype (or converted to a float one)."""
        if expr.constant is not None:
            return self.constant(expr.constant, dtype)
        if dtype == torch.int32:
            return Value(self._leaf(Index(expr, DType.I32)), dtype)
        return self.converted(Value(self._leaf(Index(expr)), torch.int64), dtype)

    def load(self, load: Load, dtype: torch.dtype) -> Value:
        return Value(self._leaf(load), computed(dtype))

    def _leaf(self, scalar: Scalar) -> Scalar:
        return self._interned.setdefault(("leaf", repr(scalar)), scalar)

    def weight(self, scalar: Scalar) -> int:
        """Nodes of the expression, shared ones counted each time they occur."""
        return self._weights.get(id(scalar), 1)

    def call(self, op: str, *args: Scalar, dtype: DType) -> Scalar:
        key = (op, tuple(id(a) for a in args), dtype)
        if key not in self._interned:
            made = Call(op, args, dtype)
            self._interned[key] = made
            self._weights[id(made)] = 1 + sum(map(self.weight, args))
        return self._interned[key]

    # --- conversion ---

    def value(self, operand: Operand, like: torch.dtype | None = None) -> Value:
        """An operand as a value; Python numbers take the dtype of the other operand."""
        match operand:
            case Value():
                return operand
            case bool():
                return self.constant(operand, torch.bool)
            case int():
                fits = like is not None and like != torch.bool
                return self.constant(operand, like if fits and like else torch.int64)
            case float():
                return self.constant(operand, torch.float32)

    def converted(self, value: Value, dtype: torch.dtype) -> Value:
        """`value` as if stored in a tensor of `dtype` and loaded again."""
        if dtype == torch.float64:
            raise Unsupported(
                "arithmetic in float64",
                why="the card computes in float32 at most",
                hint="use float32, or keep this part of the model on the CPU",
            )
        target = stored(dtype, "a value")
        if dtype == torch.bool:
            return self.truth(value)
        if isinstance(value.scalar, Const) and dtype in (torch.float32, torch.int64, torch.int32):
            return self._constant_as(value.scalar, value, dtype)
        if value.dtype == dtype or (value.is_float and dtype == torch.float32):
            return Value(value.scalar, dtype)
        if value.dtype in _NARROW and dtype == torch.int32:
            return Value(value.scalar, dtype)
        match value.scalar:
            case Call("cast", _, given) if given is target and value.is_float:
                return value
        return Value(self.call("cast", value.scalar, dtype=target), computed(dtype))

    def _constant_as(self, const: Const, value: Value, dtype: torch.dtype) -> Value:
        if dtype.is_floating_point or (dtype == torch.int64 and not value.is_float):
            return self.constant(const.value, dtype)
        if math.isfinite(const.value) and abs(const.value) < 2**31:
            return self.constant(int(const.value), dtype)
        return Value(self.call("cast", const, dtype=STORED[dtype]), dtype)

    def truth(self, value: Value) -> Value:
        """`value != 0`, NaN being true."""
        scalar = value.scalar
        if value.dtype == torch.bool:
            return value
        if isinstance(scalar, Const):
            return self.constant(scalar.value != 0, torch.bool)
        if isinstance(scalar, Call) and scalar.op == "cast" and not value.is_float:
            inner = scalar.args[0]
            if inner.dtype == DType.BOOL:
                return Value(inner, torch.bool)
        zero = self.constant(0, value.dtype)
        return Value(self.call("ne", scalar, zero.scalar, dtype=DType.BOOL), torch.bool)

    def _class(self, dtype: torch.dtype) -> DType:
        return STORED[dtype].compute

    # --- operations ---

    def apply(self, op: str, *operands: Operand, dtype: torch.dtype | None = None) -> Value:
        """A row of the op table on operands promoted as torch promotes them.

        Args:
            dtype: the operand dtype, where it is not the promoted one (float functions).
        """
        given = [v for v in operands if isinstance(v, Value)]
        like = given[0].dtype if given else None
        for value in given[1:]:
            like = torch.promote_types(like, value.dtype) if like else value.dtype
        values = [self.value(v, like) for v in operands]
        if dtype is None:
            dtype = values[0].dtype
            for value in values[1:]:
                dtype = torch.promote_types(dtype, value.dtype)
        values = [self.converted(v, dtype) for v in values]
        if (known := self._folded(op, values, dtype)) is not None:
            return known
        kind = self._class(dtype)
        result_class = DType.BOOL if TABLE[op].result == "b" else kind
        scalar = self.call(op, *(v.scalar for v in values), dtype=result_class)
        if result_class == DType.BOOL:
            return Value(scalar, torch.bool)
        if dtype in _NARROW and op in _WRAPPING:
            scalar = self.call("cast", scalar, dtype=STORED[dtype])
        return Value(scalar, dtype)

    def where(self, condition: Operand, yes: Operand, no: Operand) -> Value:
        mask = self.truth(self.value(condition))
        given = [v.dtype for v in (yes, no) if isinstance(v, Value)]
        dtype = given[0] if given else None
        a, b = self.value(yes, dtype), self.value(no, dtype)
        dtype = torch.promote_types(a.dtype, b.dtype)
        a, b = self.converted(a, dtype), self.converted(b, dtype)
        if isinstance(mask.scalar, Const):
            return a if mask.scalar.value else b
        if a.scalar is b.scalar:
            return a
        scalar = self.call("where", mask.scalar, a.scalar, b.scalar, dtype=self._class(dtype))
        return Value(scalar, dtype)

    def _folded(self, op: str, values: list[Value], dtype: torch.dtype) -> Value | None:
        """The result, where it is one of the operands or known."""
        scalars = [v.scalar for v in values]
        if op in ("and", "or") and dtype == torch.bool:
            for scalar, other in (scalars, scalars[::-1]):
                if isinstance(scalar, Const):
                    absorbs = bool(scalar.value) == (op == "or")
                    return Value(scalar if absorbs else other, dtype)
            return values[0] if scalars[0] is scalars[1] else None
        if op == "not" and isinstance(scalars[0], Const) and dtype == torch.bool:
            return self.constant(not scalars[0].value, torch.bool)
        if op in ("mul", "div") and dtype.is_floating_point:
            if isinstance(scalars[1], Const) and scalars[1].value == 1.0:
                return values[0]
            if op == "mul" and isinstance(scalars[0], Const) and scalars[0].value == 1.0:
                return values[1]
        if dtype == torch.int64 and op in ("add", "sub", "mul"):
            return self._folded_index(op, values)
        return None

    def _folded_index(self, op: str, values: list[Value]) -> Value | None:
        """Integer arithmetic of index expressions stays an index expression."""
        exprs: list[Expr | None] = []
        for scalar in (v.scalar for v in values):
            match scalar:
                case Const(value):
                    exprs.append(Expr.of(int(value)))
                case Index(expr):
                    exprs.append(expr)
                case _:
                    exprs.append(None)
        left, right = exprs
        if left is not None and right is not None:
            match op:
                case "add":
                    return self.index(left + right)
                case "sub":
                    return self.index(left - right)
                case "mul" if left.constant is not None or right.constant is not None:
                    return self.index(left * right)
        if op in ("add", "sub") and right is not None and right.constant == 0:
            return values[0]
        if op == "add" and left is not None and left.constant == 0:
            return values[1]
        if op == "mul" and right is not None and right.constant == 1:
            return values[0]
        if op == "mul" and left is not None and left.constant == 1:
            return values[1]
        return None
