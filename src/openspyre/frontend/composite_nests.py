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
    *batch, heads, rows, depth = query.get_size()
    shared, keys = key.get_size()[-3], key.get_size()[-2]
    device, dtype = query.get_device(), query.get_dtype()
    result = [*batch, heads, rows, value.get_size()[-1]]
    if V.graph.sizevars.statically_known_equals(keys, 0):
        return lowerings[aten.full](result, 0.0, dtype=dtype, device=device)
    q, k, v = query.make_loader(), key.make_loader(), value.make_loader()
    same_heads = V.graph.sizevars.statically_known_equals(heads, shared)

    def of_group(head: Any) -> Any:
        return head if same_heads else FloorDiv(head, FloorDiv(heads, shared))

    def score_factors(index: Index, r: Index) -> tuple[Any, Any]:
        *outer, h, s, t = index
        return q([*outer, h, s, *r]), k([*outer, of_group(h), t, *r])

    whole = [*batch, heads, rows, keys]
    scores = ours.dot(device, F32, dtype, whole, [depth], score_factors)
    score = _masked(scores, mask, causal, scale, whole)
    may_be_empty = mask is not None
    reduced = [*batch, heads, rows, 1]

    def reduce(kind: Literal["max", "sum"], body: Callable[[Index], Any]) -> Callable[[Index], Any]:
        row = ir.Reduction.create(
            device=device, dst_dtype=F32, src_dtype=F32, ranges=reduced, reduction_ranges=[keys],
            reduction_type=kind, inner_fn=lambda i, r: body([*i[:-1], r[0]]),
        )  # fmt: skip
        row.realize()
        load = row.make_loader()
        return lambda i: load([*i[:-1], sympy.S.Zero])

    def bounded(index: Index) -> Any:
        # A finite maximum for a row of -inf, so that its exponentials are 0 and not NaN.
        bare = score(index)
        return ops.maximum(bare, ops.constant(LOWEST, F32)) if may_be_empty else bare

    top = reduce("max", bounded)

    def power(index: Index) -> Any:
        return ops.exp(ops.sub(score(index), top(index)))

    total = reduce("sum", power)

    def probability(index: Index) -> Any:
        # Where a key counts, its row's sum is at least 1; an empty row's is 0.
        below = total(index)
        below = ops.maximum(below, ops.constant(1.0, F32)) if may_be_empty else below
        return ops.to_dtype(ops.truediv(power(index), below), dtype, src_dtype=F32)

    weights = ir.Pointwise.create(device=device, dtype=dtype, inner_fn=probability, ranges=whole)
    weights.realize()
    p = weights.make_loader()

    def output_factors(index: Index, r: Index) -> tuple[Any, Any]:
        *outer, h, s, d = index
        return p([*outer, h, s, *r]), v([*outer, of_group(h), *r, d])

    return ours.dot(device, dtype, dtype, result, [keys], output_factors)


def _masked(
    scores: Box, mask: Box | None, causal: bool, scale: float, whole: Sequence[Any]
) -> Callable[[Index], Any]:
    """The scaled score at an index, -inf where the mask hides the key."""
    load = scores.make_loader()
    seen = lowerings[aten.expand](mask, list(whole)).make_loader() if mask is not None else None
    is_bool = mask is not None and mask.get_dtype() == torch.bool

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
        return ops.add(scaled, ops.to_dtype(seen(index), F32))

    return score
