"""How the composites of `composites.py` become loop nests.

The statistics of attention and layer_norm are float32 rows; scores are float32, probabilities go
back to the operands' dtype for the second product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import sympy
import torch
from torch._inductor import ir
from torch._inductor.lowering import lowerings, to_dtype
from torch._inductor.virtualized import V, ops
from torch.utils._sympy.functions import FloorDiv

from openspyre.frontend import lowerings as ours

aten = torch.ops.aten
Box = Any
F32 = torch.float32
LOWEST = torch.finfo(F32).min
Index = Sequence[Any]


def linear(x: Box, weight: Box, bias: Box | None = None) -> Box:
    """`x @ weight.T + bias` over all leading dims of x."""
    x.realize()
    weight.realize()
    left, right = x.make_loader(), weight.make_loader()
    *rows, k = x.get_size()
    n = weight.get_size()[0]

    def factors(index: Index, r: Index) -> tuple[Any, Any]:
        *outer, column = index
        return left([*outer, *r]), right([column, *r])

    dtype = x.get_dtype()
    product = ours.dot(x.get_device(), dtype, dtype, [*rows, n], [k], factors)
    return product if bias is None else lowerings[aten.add](product, bias)


def layer_norm(
    x: Box, shape: Sequence[Any], weight: Box | None, bias: Box | None, eps: float
) -> Box:
    """Mean, then the mean of squared differences, then one map; all in float32."""
    size = x.get_size()
    dims = list(range(len(size) - len(shape), len(size)))
    points = sympy.prod([sympy.sympify(s) for s in size[dims[0] :]]) if dims else 1
    if V.graph.sizevars.statically_known_equals(points, 0):
        return lowerings[aten.full](size, 0.0, dtype=x.get_dtype(), device=x.get_device())
    mul, add, sub = lowerings[aten.mul], lowerings[aten.add], lowerings[aten.sub]
    x.realize()
    wide = to_dtype(x, F32)

    def mean(value: Box) -> Box:
        total = lowerings[aten.sum](value, dims, keepdims=True)
        total.realize()
        if isinstance(points, sympy.Integer):
            return mul(total, 1.0 / int(points))
        return lowerings[aten.div](total, points)

    center = mean(wide)
    center.realize()
    difference = sub(wide, center)
    scale = lowerings[aten.rsqrt](add(mean(mul(difference, difference)), eps))
    result = mul(difference, scale)
    if weight is not None:
        result = mul(result, to_dtype(weight, F32))
    if bias is not None:
        result = add(result, to_dtype(bias, F32))
    return to_dtype(result, x.get_dtype())


def attention(
    query: Box, key: Box, value: Box, mask: Box | None, causal: bool, scale: float
) -> Box:
    """softmax(query . key^T * scale) . value; heads of key and value may be shared by groups.

    A row whose every key is masked gives zeros, as PyTorch's own kernels do.
    """
    for operand in (query, key, value):
        operand.realize()
    result = [*query.get_size()[:-1], value.get_size()[-1]]
    if V.graph.sizevars.statically_known_equals(key.get_size()[-2], 0):
        device, dtype = query.get_device(), query.get_dtype()
        return lowerings[aten.full](result, 0.0, dtype=dtype, device=device)
    return _Rows(query, key, value, mask, causal, scale).weighted()


class _Rows:
    """Attention; making one makes its scores."""

    def __init__(
        self, query: Box, key: Box, value: Box, mask: Box | None, causal: bool, scale: float
    ) -> None:
        *batch, heads, rows, depth = query.get_size()
        shared, self.keys = key.get_size()[-3], key.get_size()[-2]
        self.device, self.dtype = query.get_device(), query.get_dtype()
        self.whole = [*batch, heads, rows, self.keys]
        self.result = [*batch, heads, rows, value.get_size()[-1]]
        self.value, self.may_be_empty = value, mask is not None
        same_heads = V.graph.sizevars.statically_known_equals(heads, shared)
        group = FloorDiv(heads, shared) if not same_heads else 1
        self.of_group: Callable[[Any], Any] = lambda h: h if same_heads else FloorDiv(h, group)
        q, k = query.make_loader(), key.make_loader()

        def factors(index: Index, r: Index) -> tuple[Any, Any]:
            *outer, h, s, t = index
            return q([*outer, h, s, *r]), k([*outer, self.of_group(h), t, *r])

        scores = ours.dot(self.device, F32, self.dtype, self.whole, [depth], factors)
        self.score = _masked(scores, mask, causal, scale, self.whole)

    def reduce(
        self, kind: Literal["max", "sum"], body: Callable[[Index], Any]
    ) -> Callable[[Index], Any]:
        row = ir.Reduction.create(
            device=self.device, dst_dtype=F32, src_dtype=F32, ranges=[*self.whole[:-1], 1],
            reduction_ranges=[self.keys], reduction_type=kind,
            inner_fn=lambda i, r: body([*i[:-1], r[0]]),
        )  # fmt: skip
        row.realize()
        load = row.make_loader()
        return lambda i: load([*i[:-1], sympy.S.Zero])

    def weighted(self) -> Box:
        """Probabilities times values: exponentials times values, divided by their sums."""

        def bounded(index: Index) -> Any:
            # A finite maximum for a row of -inf, so that its exponentials are 0 and not NaN.
            bare = self.score(index)
            return ops.maximum(bare, ops.constant(LOWEST, F32)) if self.may_be_empty else bare

        top = self.reduce("max", bounded)

        def power(index: Index) -> Any:
            raised = ops.exp(ops.sub(self.score(index), top(index)))
            return ops.to_dtype(raised, self.dtype, src_dtype=F32)

        weights = ir.Pointwise.create(
            device=self.device, dtype=self.dtype, inner_fn=power, ranges=self.whole
        )
        weights.realize()
        p, v = weights.make_loader(), self.value.make_loader()
        total = self.reduce("sum", lambda i: ops.to_dtype(p(i), F32))

        def factors(index: Index, r: Index) -> tuple[Any, Any]:
            *outer, h, s, d = index
            return p([*outer, h, s, *r]), v([*outer, self.of_group(h), *r, d])

        product = ours.dot(self.device, F32, self.dtype, self.result, [self.keys], factors)
        product.realize()
        sums = product.make_loader()

        def normal(index: Index) -> Any:
            # Where a key counts, its row's sum is at least 1; an empty row's is 0.
            below = total(index)
            below = ops.maximum(below, ops.constant(1.0, F32)) if self.may_be_empty else below
            return ops.to_dtype(ops.truediv(sums(index), below), self.dtype, src_dtype=F32)

        return ir.Pointwise.create(
            device=self.device, dtype=self.dtype, inner_fn=normal, ranges=self.result
        )


def _masked(
    scores: Box, mask: Box | None, causal: bool, scale: float, whole: Sequence[Any]
) -> Callable[[Index], Any]:
    """The scaled score at an index, -inf where the mask hides the key."""
    load = scores.make_loader()
    seen = lowerings[aten.expand](mask, list(whole)).make_loader() if mask is not None else None
    is_bool = mask is not None and mask.get_dtype() == torch.bool
    may_hide = mask is not None and _is_formula(mask)

    def score(index: Index) -> Any:
        scaled = ops.mul(load(index), ops.constant(scale, F32))
        hidden = ops.constant(-math.inf, F32)
        if causal:
            *_, s, t = index
            order = ops.le(ops.index_expr(t, torch.int64), ops.index_expr(s, torch.int64))
            return ops.where(order, scaled, hidden)
        if seen is None:
            return scaled
        if is_bool:
            return ops.where(seen(index), scaled, hidden)
        added = ops.to_dtype(seen(index), F32)
        total = ops.add(scaled, added)
        # Said as a choice, so that what is hidden by the numbers of rows and keys can be left out.
        return ops.where(ops.eq(added, hidden), hidden, total) if may_hide else total

    return score


def _is_formula(mask: Box) -> bool:
    """Whether a mask is computed where it is used, as from numbers of rows and keys."""
    inner = mask.data
    while isinstance(inner, (ir.BaseView, ir.MutableBox)):
        inner = inner.data
    return isinstance(inner, ir.Pointwise)
