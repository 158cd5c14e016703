"""Inductor's reductions said with the card's: sum, prod, max, min, any and contraction.

A result is a `Pending` (stored where the body says), or a function that makes one when it is
used: of Welford's mean, squares and count a nest usually stores one.
"""

from __future__ import annotations

from typing import Any

import torch

from openspyre.errors import Unsupported
from openspyre.frontend.nest import Deferred, Made, Nest, Pending
from openspyre.frontend.values import Value
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Call, Kind, Load

F32 = torch.float32


def reduced(nest: Nest, kind: str, value: Value, dtype: torch.dtype) -> Any:
    """The reduction `kind` of a value over the nest's rdims, accumulated in `dtype`.

    Raises:
        Unsupported: the card cannot reduce this way.
    """
    match kind:
        case "dot":
            return _contracted(nest, value)
        case "any":
            return Pending(Kind.REDUCE, nest.a.truth(value).scalar, "any", torch.bool)
        case "max" | "min" if value.dtype == torch.bool:
            return _bool_extreme(nest, value, kind)
        case "sum" | "prod" if _accumulated(dtype, value.dtype) == torch.bool:
            return _bool_extreme(nest, value, "max" if kind == "sum" else "min")
        case "sum" | "prod" | "max" | "min":
            wide = nest.a.converted(value, _accumulated(dtype, value.dtype))
            return Pending(Kind.REDUCE, wide.scalar, kind, wide.dtype)
        case "argmax" | "argmin":
            return _first_extreme(nest, value, kind.removeprefix("arg"))
        case "welford_reduce":
            return _welford(nest, nest.a.converted(value, F32))
    raise Unsupported(
        f"the reduction {kind!r}", why="the card reduces by sum, prod, max, min and any"
    )


def _accumulated(dtype: torch.dtype, operand: torch.dtype) -> torch.dtype:
    if operand.is_floating_point or dtype.is_floating_point:
        return F32
    return torch.promote_types(dtype, operand)


def _contracted(nest: Nest, product: Value) -> Pending:
    """A matrix product where both factors are plain loads of one float dtype, else a sum."""
    match product.scalar:
        case Call("mul", (Load() as x, Load() as y)):
            first, second = (nest.region.tensors[load.tensor].dtype for load in (x, y))
            plain = not (x.guarded or y.guarded or nest.lookups_in(product.scalar))
            if plain and first.is_float and first is second:
                return Pending(Kind.CONTRACT, product.scalar, None, F32)
    return Pending(Kind.REDUCE, product.scalar, "sum", product.dtype)


def _bool_extreme(nest: Nest, value: Value, kind: str) -> Made:
    if kind == "max":
        return Pending(Kind.REDUCE, value.scalar, "any", torch.bool)
    opposite = nest.a.apply("not", value)
    found = nest.settled(Pending(Kind.REDUCE, opposite.scalar, "any", torch.bool))
    return nest.a.apply("not", found)


def _first_extreme(nest: Nest, value: Value, kind: str) -> Pending:
    """The first index of the extreme value; the first NaN where there is one."""
    a = nest.a
    if value.dtype == torch.bool:
        value = a.converted(value, torch.int32)
    best = nest.settled(Pending(Kind.REDUCE, value.scalar, kind, value.dtype))
    hit = a.apply("eq", value, best)
    if value.is_float:
        hit = a.apply("or", hit, a.apply("isnan", value))
    position, count = Expr.of(0), Expr.of(1)
    for dim in reversed(nest.rdims):
        position, count = position + count * Expr.var(dim.name), count * dim.extent
    at = a.where(hit, a.index(position), a.index(count))
    return Pending(Kind.REDUCE, at.scalar, "min", torch.int64)


def _sum(nest: Nest, value: Value) -> Value:
    return nest.settled(Pending(Kind.REDUCE, value.scalar, "sum", F32))


def _points(nest: Nest) -> Value:
    count = Expr.of(1)
    for dim in nest.rdims:
        count = count * dim.extent
    return nest.a.index(count, F32)


def _welford(nest: Nest, x: Value) -> tuple[Deferred, Deferred, Deferred]:
    """Mean, sum of squared differences from it, and count."""
    a = nest.a

    def mean() -> Value:
        return nest.saved(a.apply("div", _sum(nest, x), _points(nest)))

    def squares() -> Pending:
        difference = a.apply("sub", x, mean())
        square = a.apply("mul", difference, difference)
        return Pending(Kind.REDUCE, square.scalar, "sum", F32)

    return mean, squares, lambda: _points(nest)


def combined(
    nest: Nest, mean: Value, squares: Value, count: Value
) -> tuple[Deferred, Deferred, Deferred]:
    """Mean, squares and count of groups, from theirs."""
    a = nest.a
    m, s, n = (a.converted(v, F32) for v in (mean, squares, count))

    def total() -> Value:
        return _sum(nest, n)

    def center() -> Value:
        return nest.saved(a.apply("div", _sum(nest, a.apply("mul", m, n)), total()))

    def spread() -> Pending:
        off = a.apply("sub", m, center())
        part = a.apply("add", s, a.apply("mul", n, a.apply("mul", off, off)))
        return Pending(Kind.REDUCE, part.scalar, "sum", F32)

    return center, spread, total
