"""Products of fp8 matrices with scales: `aten._scaled_mm` and `_scaled_mm_v2`.

PT takes the codes as they are; scales, bias and the rounding to the result's dtype follow in
float32, in the order of PyTorch's CPU kernels. Scales per tensor and per row (of a) and column (of
b) are lowered; others (per block) go through the dispatcher, as does what PyTorch refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor.lowering import lowerings, to_dtype
from torch._inductor.virtualized import V

from openspyre.frontend import lowerings as ours
from openspyre.frontend.values import STORED

aten = torch.ops.aten
Box = Any
F32 = torch.float32
FP8 = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
_BY_TENSOR, _BY_ROW = 0, 1  # torch.nn.functional.ScalingType


def scaled_mm(
    a: Box,
    b: Box,
    scale_a: Box,
    scale_b: Box,
    bias: Box | None = None,
    scale_result: Box | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Box:
    """The product; None where the stock lowering serves."""
    given = (a, b, scale_a, scale_b, bias, scale_result, out_dtype)
    if not ours.on_card(a, b):
        return None
    dtype = out_dtype or a.get_dtype()
    if not (_matches(a, b, bias, dtype) and _is_scaled(a, b, scale_a, scale_b)):
        return ours.called(aten._scaled_mm.default, *given, use_fast_accum)
    divisor = scale_result if dtype in FP8 else None
    return _product(a, b, scale_a, scale_b, bias, divisor, dtype)


def scaled_mm_v2(
    a: Box,
    b: Box,
    scale_a: Sequence[Box],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[Box],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    bias: Box | None,
    out_dtype: torch.dtype | None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Box:
    """As `scaled_mm`, with the kind of scales in words."""
    given = (a, b, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias, out_dtype)
    if not ours.on_card(a, b):
        return None
    dtype = out_dtype or a.get_dtype()
    plain = (
        list(recipe_a) == list(recipe_b) in ([_BY_TENSOR], [_BY_ROW])
        and len(scale_a) == len(scale_b) == 1
        and not any((*swizzle_a, *swizzle_b, *contraction_dim))
    )
    if not (plain and _matches(a, b, bias, dtype) and _is_scaled(a, b, scale_a[0], scale_b[0])):
        return ours.called(aten._scaled_mm_v2.default, *given, contraction_dim, use_fast_accum)
    return _product(a, b, scale_a[0], scale_b[0], bias, None, dtype)


def _matches(a: Box, b: Box, bias: Box | None, dtype: torch.dtype) -> bool:
    """Whether sizes and dtypes are those of a matrix product."""
    return (
        {a.get_dtype(), b.get_dtype()} <= FP8
        and len(a.get_size()) == len(b.get_size()) == 2
        and _equal(a.get_size()[1], b.get_size()[0])
        and (bias is None or _has_size(bias, b.get_size()[1]))
        and dtype in STORED
    )


def _is_scaled(a: Box, b: Box, scale_a: Box, scale_b: Box) -> bool:
    """Whether the scales are one for each tensor, or one for each row and column."""
    if not scale_a.get_dtype() == scale_b.get_dtype() == F32:
        return False
    if all(_equal(n, 1) for scale in (scale_a, scale_b) for n in scale.get_size()):
        return True
    return _has_size(scale_a, a.get_size()[0], 1) and _has_size(scale_b, 1, b.get_size()[1])


def _has_size(box: Box, *size: Any) -> bool:
    found = box.get_size()
    return len(found) == len(size) and all(map(_equal, found, size))


def _equal(a: Any, b: Any) -> bool:
    return bool(V.graph.sizevars.statically_known_equals(a, b))


def _product(
    a: Box,
    b: Box,
    scale_a: Box,
    scale_b: Box,
    bias: Box | None,
    divisor: Box | None,
    dtype: torch.dtype,
) -> Box:
    a.realize()
    b.realize()
    left, right = a.make_loader(), b.make_loader()
    (m, k), n = a.get_size(), b.get_size()[1]

    def factors(index: Sequence[Any], r: Sequence[Any]) -> tuple[Any, Any]:
        row, column = index
        return left([row, *r]), right([*r, column])

    mul = lowerings[aten.mul]
    result = ours.dot(a.get_device(), F32, F32, [m, n], [k], factors)
    for scale in (scale_a, scale_b):
        result = mul(result, _as_matrix(scale))
    if bias is not None:
        result = lowerings[aten.add](result, to_dtype(bias, F32))
    if divisor is not None:
        result = lowerings[aten.div](result, _as_matrix(to_dtype(divisor, F32)))
    return to_dtype(result, dtype)


def _as_matrix(scale: Box) -> Box:
    """A scale of any shape with one element as one of two dims; a matrix stays."""
    return scale if len(scale.get_size()) == 2 else lowerings[aten.view](scale, [1, 1])
