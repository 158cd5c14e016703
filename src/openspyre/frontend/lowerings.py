"""ATen ops -> Inductor loop IR, where the stock lowering would leave the card.

Matrix products become `dot` reductions, which the region takes like any other nest. Functions
that the card cannot evaluate become calls through the dispatcher, counted as fallbacks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import sympy
import torch
from torch._inductor import ir
from torch._inductor.codegen.common import pointwise_overrides_data
from torch._inductor.lowering import (
    fallback_handler,
    lowerings,
    make_pointwise,
    register_lowering,
    transform_args,
    user_lowerings,
)
from torch._inductor.virtualized import V, ops
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND

from openspyre.frontend.functions import FUNCTIONS

aten, prims = torch.ops.aten, torch.ops.prims
Box = Any  # Inductor's TensorBox
Factors = Callable[[Sequence[Any], Sequence[Any]], tuple[Any, Any]]

# Scans that are not sums, lookups that reach past what Inductor knows of them, assertions, and
# functions of one number; those outside the op table are found by `_without_row`.
FALLBACKS = (
    "aten.lgamma aten.nextafter aten.frexp.Tensor aten.logcumsumexp aten.view.dtype "
    "aten.fractional_max_pool2d aten.fractional_max_pool3d "
    "aten._assert_async.msg aten._functional_assert_async.msg"
)


@functools.cache
def register() -> None:
    """Put the lowerings into Inductor's tables; graphs of other devices keep the stock ones."""
    from openspyre.frontend import composite_nests, convolution, running, scaled_matmul, sorting

    for op, lowering in (
        (aten.mm.default, mm),
        (aten.bmm.default, mm),
        (aten.addmm.default, addmm),
        (aten.baddbmm.default, addmm),
        (aten._scaled_mm.default, scaled_matmul.scaled_mm),
        (aten._scaled_mm_v2.default, scaled_matmul.scaled_mm_v2),
        (aten.convolution.default, convolution.convolution),
        (aten.convolution_backward.default, convolution.convolution_backward),
        (aten.sort.default, sorting.sort),
        (aten.sort.stable, sorting.sort_stable),
        (aten.topk.default, sorting.topk),
        (aten.kthvalue.default, sorting.kthvalue),
        (aten.median.dim, sorting.median),
        (aten.median.default, sorting.median_of_all),
        (aten.searchsorted.Tensor, sorting.searchsorted),
        (aten.bucketize.Tensor, sorting.bucketize),
        (aten.histc.default, sorting.histc),
        (aten.cummax.default, running.cummax),
        (aten.cummin.default, running.cummin),
        (aten.nanmedian.dim, sorting.nanmedian),
        (aten.nanmedian.default, sorting.nanmedian_of_all),
        (aten.mode.default, sorting.mode),
        (aten.avg_pool2d_backward.default, functools.partial(averaged_backward, 2)),
        (aten.avg_pool3d_backward.default, functools.partial(averaged_backward, 3)),
        (aten.scatter_add.default, scatter_add),
        (aten.var_mean.correction, var_mean),
        (aten.div.Tensor, quotient),
        (aten.true_divide.Tensor, quotient),
        (aten.div.Tensor_mode, divided),
        (aten.div.Scalar_mode, divided),
    ):
        user_lowerings[op] = lowering
    for op in (*_overloads(FALLBACKS), *_without_row()):
        user_lowerings[op] = functools.partial(called, op)
    own = torch.ops.spyre
    register_lowering(own.linear.default, type_promotion_kind=None)(composite_nests.linear)
    register_lowering(own.attention.default, type_promotion_kind=None)(composite_nests.attention)
    register_lowering(own.layer_norm.default, type_promotion_kind=None)(composite_nests.layer_norm)


def _overloads(names: str) -> list[Any]:
    found = []
    for name in names.split():
        space, packet, *overload = name.split(".")
        holder = getattr(getattr(torch.ops, space), packet)
        found.append(getattr(holder, overload[0] if overload else "default"))
    return found


def _without_row() -> Iterator[Any]:
    """The ops of Inductor's scalar functions that the card has neither a row for nor composes."""
    for name, facts in pointwise_overrides_data.items():
        packet = getattr(aten, facts.name, None)
        if name in FUNCTIONS or packet is None:
            continue
        for overload in packet.overloads():
            op = getattr(packet, overload)
            if not op._schema.is_mutable:
                yield op


def on_card(*boxes: Any) -> bool:
    devices = [b.get_device() for b in boxes if isinstance(b, ir.IRNode)]
    return any(d is not None and d.type == "spyre" for d in devices)


def quotient(a: Box, b: Any) -> Box:
    """The rounded quotient; stock multiplies by a constant's reciprocal, rounded before."""
    if not on_card(a, b):
        return None
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.INT_TO_FLOAT
    return _pointwise(lambda x, y: ops.truediv(x, y), a, b, kind)


def divided(a: Box, b: Any, *, rounding_mode: str | None = None) -> Box:
    """Floor division as torch has it; stock takes the floor of the quotient: 1 // 0.1 is 9."""
    if not on_card(a, b):
        return None
    match rounding_mode:
        case "floor":
            kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
            return _pointwise(lambda x, y: ops.floordiv(x, y), a, b, kind)
        case "trunc" if not _whole(a) or not _whole(b):
            return lowerings[aten.trunc](quotient(a, b))
        case None:
            return quotient(a, b)
        case _:
            return None


def _whole(number: Any) -> bool:
    dtype = number.get_dtype() if isinstance(number, ir.IRNode) else torch.result_type(number, 0)
    return not dtype.is_floating_point


def _pointwise(
    function: Callable[[Any, Any], Any], a: Box, b: Any, kind: ELEMENTWISE_TYPE_PROMOTION_KIND
) -> Box:
    operands, _ = transform_args([a, b], {}, True, kind, False)
    return make_pointwise(function)(*operands)


def var_mean(x: Box, axis: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """The mean of nothing is NaN; stock makes it 0."""
    places = range(len(x.get_size())) if axis is None or axis == [] else axis
    extents = [x.get_size()[place] for place in places]
    if not on_card(x) or not any(V.graph.sizevars.statically_known_equals(e, 0) for e in extents):
        return None
    mean = lowerings[aten.mean](x, axis, keepdim=keepdim)
    nothing = lowerings[aten.full](
        mean.get_size(), math.nan, dtype=x.get_dtype(), device=x.get_device()
    )
    return nothing, mean


def averaged_backward(dims: int, *args: Any) -> Any:
    """The last windows of pooling with ceil_mode may be short; stock divides by whole ones."""
    *_, ceil_mode, _, divisor = args
    if not ceil_mode or divisor is not None:
        return None
    op = aten.avg_pool2d_backward if dims == 2 else aten.avg_pool3d_backward
    return called(op.default, *args)


def scatter_add(x: Box, dim: int, index: Box, src: Box) -> Any:
    """Sums of int64, which stock leaves to ATen; None where the stock lowering serves."""
    if not on_card(x) or x.get_dtype() != torch.int64 or not (x.get_size() and index.get_size()):
        return None
    total = lowerings[aten.clone](x)
    total.realize()
    places, dim = index.make_loader(), dim % len(x.get_size())

    def target(at: Sequence[Any]) -> Sequence[Any]:
        place = ops.indirect_indexing(places(at), x.get_size()[dim], wrap_neg=False)
        return [*at[:dim], place, *at[dim + 1 :]]

    scatter = ir.Scatter(
        device=x.get_device(), dtype=torch.int64, inner_fn=src.make_loader(),
        ranges=index.get_size(), output_indexer=target, scatter_mode="atomic_add",
    )  # fmt: skip
    layout = ir.MutationLayoutSHOULDREMOVE(total)
    buffer = ir.ComputedBuffer(name=None, layout=layout, data=scatter)
    buffer.name = V.graph.register_buffer(buffer)
    V.graph.register_operation(buffer)
    return total


def called(op: Any, *args: Any, **kwargs: Any) -> Any:
    """A call of the op through the dispatcher, for tensors of the card."""
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    if not on_card(*leaves):
        return None
    result = fallback_handler(op, add_to_fallback_set=False)(*args, **kwargs)
    return args[0] if result is None else result  # None would mean: use the stock lowering


def dot(
    device: torch.device,
    dtype: torch.dtype,
    operand_dtype: torch.dtype,
    ranges: Sequence[sympy.Expr],
    contracted: Sequence[sympy.Expr],
    factors: Factors,
) -> Box:
    """A buffer of sums of products on PT; `factors(index, r)` gives the two loaded values.

    Sums are float32 for floats, whatever the operands; the buffer's dtype rounds once.
    """
    return _products(device, dtype, operand_dtype, ranges, contracted, factors, "dot")


def weighted_sum(
    device: torch.device,
    dtype: torch.dtype,
    operand_dtype: torch.dtype,
    ranges: Sequence[sympy.Expr],
    contracted: Sequence[sympy.Expr],
    factors: Factors,
) -> Box:
    """As `dot`, on SFU: for products that would use one column of PT."""
    return _products(device, dtype, operand_dtype, ranges, contracted, factors, "sum")


def _products(
    device: torch.device,
    dtype: torch.dtype,
    operand_dtype: torch.dtype,
    ranges: Sequence[sympy.Expr],
    contracted: Sequence[sympy.Expr],
    factors: Factors,
    kind: Literal["dot", "sum"],
) -> Box:
    if any(V.graph.sizevars.statically_known_equals(extent, 0) for extent in contracted):
        return lowerings[aten.full](list(ranges), 0, dtype=dtype, device=device)

    def inner(index: Sequence[Any], reduced: Sequence[Any]) -> Any:
        left, right = factors(index, reduced)
        return ops.dot(left, right) if kind == "dot" else ops.mul(left, right)

    product: Any = ir.Reduction.create(
        device=device,
        dst_dtype=dtype,
        src_dtype=operand_dtype,
        inner_fn=inner,
        ranges=list(ranges),
        reduction_ranges=list(contracted),
        reduction_type=kind,
    )
    product.realize()
    if isinstance(product.data.data.layout, ir.FlexibleLayout):
        # Readers would have it transposed to suit them; a matrix product writes rows.
        product.data.data.freeze_layout()
    return product


def mm(a: Box, b: Box, **options: Any) -> Box:
    """mm and bmm as a `dot` over buffers; None where the stock lowering serves."""
    if not on_card(a, b) or options.get("out_dtype") is not None:
        return None
    *batch, m, k = a.get_size()
    a.realize()
    b.realize()
    left, right = a.make_loader(), b.make_loader()

    def factors(index: Sequence[Any], r: Sequence[Any]) -> tuple[Any, Any]:
        *outer, row, column = index
        return left([*outer, row, *r]), right([*outer, *r, column])

    dtype = a.get_dtype()
    return dot(a.get_device(), dtype, dtype, [*batch, m, b.get_size()[-1]], [k], factors)


def addmm(
    added: Box, a: Box, b: Box, out_dtype: Any = None, *, beta: Any = 1, alpha: Any = 1
) -> Box:
    """addmm and baddbmm: the product, then stock arithmetic; None as for mm."""
    if not on_card(added, a, b) or out_dtype is not None:
        return None
    if not added.get_dtype().is_floating_point:  # PyTorch cuts the factors of integers
        if not all(isinstance(factor, (int, float)) for factor in (beta, alpha)):
            return None
        beta, alpha = int(beta), int(alpha)
    total = mm(a, b)
    if alpha != 1:
        total = lowerings[aten.mul](total, alpha)
    if beta == 0:
        return lowerings[aten.expand](total, total.get_size())
    return lowerings[aten.add](added if beta == 1 else lowerings[aten.mul](added, beta), total)
