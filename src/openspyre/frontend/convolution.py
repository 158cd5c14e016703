"""Convolution and its gradients as loop nests.

The input lies padded in a tensor of its own; a point of the result is then a contraction over
channels and taps of plain loads, a matrix product whose left operand is read through windows.
A transposed convolution is one over an input with zeros between its points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.lowering import lowerings
from torch._inductor.virtualized import V, ops
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from openspyre.frontend import lowerings as ours

aten = torch.ops.aten
Box = Any
Index = Sequence[Any]


@dataclass(frozen=True, slots=True)
class _Spread:
    """How a dim of `size` points lies in its padded copy: point i at `before` + i * `step`."""

    size: Any
    before: Any
    step: Any
    length: Any


def convolution(
    x: Box,
    weight: Box,
    bias: Box | None,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: Any,
) -> Box | None:
    """aten.convolution on the card; None where the stock lowering serves."""
    if not ours.on_card(x, weight):
        return None
    rank = len(x.get_size()) - 2
    stride, padding, dilation, extra = (
        _per_dim(v, rank) for v in (stride, padding, dilation, output_padding)
    )
    call = _transposed if transposed else _direct
    result = call(x, weight, stride, padding, dilation, extra, groups)
    if bias is None:
        return result
    return lowerings[aten.add](result, lowerings[aten.view](bias, [-1, *[1] * rank]))


def convolution_backward(
    gradient: Box,
    x: Box,
    weight: Box,
    bias_sizes: Sequence[Any] | None,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: Any,
    output_mask: Sequence[bool],
) -> Any:
    """The gradients of input, weight and bias that are asked for; None for the stock lowering."""
    if not ours.on_card(gradient, x, weight):
        return None
    rank = len(x.get_size()) - 2
    stride, padding, dilation = (_per_dim(v, rank) for v in (stride, padding, dilation))
    of_x = of_weight = of_bias = None
    if output_mask[0]:
        if transposed:
            # Output padding of a stride or more makes places of no point of the input.
            places = x.get_size()[2:]
            of_x = _direct(gradient, weight, stride, padding, dilation, (), groups, places)
        else:
            extra = _left_over(gradient, x, weight, stride, padding, dilation)
            of_x = _transposed(gradient, weight, stride, padding, dilation, extra, groups)
    if output_mask[1]:
        small, large = (x, gradient) if transposed else (gradient, x)
        of_weight = _of_weight(small, large, weight, stride, padding, dilation, groups)
    if output_mask[2]:
        of_bias = lowerings[aten.sum](gradient, [0, *range(2, rank + 2)])
    return of_x, of_weight, of_bias


def _per_dim(values: Sequence[Any], rank: int) -> list[Any]:
    return list(values) if len(values) == rank else [values[0]] * rank


def _direct(
    x: Box,
    weight: Box,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    _: Sequence[Any],
    groups: Any,
    places: Sequence[Any] | None = None,
) -> Box:
    batch, _, *sizes = x.get_size()
    outs, channels, *taps = weight.get_size()
    reach = [d * (k - 1) for d, k in zip(dilation, taps, strict=True)]
    sides = list(zip(sizes, padding, reach, stride, strict=True))
    padded = _padded(x, [_Spread(size, p, 1, size + 2 * p) for size, p, *_ in sides])
    if places is None:
        places = [FloorDiv(size + 2 * p - r - 1, s) + 1 for size, p, r, s in sides]
    shape = [batch, outs, *places]
    return _windows(padded, weight, shape, [channels, *taps], stride, dilation, groups, flip=False)


def _transposed(
    x: Box,
    weight: Box,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    extra: Sequence[Any],
    groups: Any,
) -> Box:
    batch, _, *sizes = x.get_size()
    ins, outs, *taps = weight.get_size()
    reach = [d * (k - 1) for d, k in zip(dilation, taps, strict=True)]
    places = [
        (size - 1) * s - 2 * p + r + e + 1
        for size, s, p, r, e in zip(sizes, stride, padding, reach, extra, strict=True)
    ]
    padded = _padded(
        x,
        [
            _Spread(size, r - p, s, place + r)
            for size, r, p, s, place in zip(sizes, reach, padding, stride, places, strict=True)
        ],
    )
    shape, ones = [batch, outs * groups, *places], [1] * len(taps)
    reduced = [FloorDiv(ins, groups), *taps]
    return _windows(padded, weight, shape, reduced, ones, dilation, groups, flip=True)


def _windows(
    x: Box,
    weight: Box,
    shape: Sequence[Any],
    reduced: Sequence[Any],
    stride: Sequence[Any],
    dilation: Sequence[Any],
    groups: Any,
    *,
    flip: bool,
) -> Box:
    """Sums over channels and taps of padded input times weight.

    Args:
        reduced: channels of a group, and the taps.
        flip: taps run backwards, and the weight's first dim are the channels.
    """
    weight.realize()
    left, right = x.make_loader(), weight.make_loader()
    channels, *taps = reduced
    outs = FloorDiv(shape[1], groups)

    def factors(index: Index, r: Index) -> tuple[Any, Any]:
        n, out, *places = index
        channel, *tap = r
        group = FloorDiv(out, outs) if groups != 1 else sympy.S.Zero
        at = [p * s + t * d for p, s, t, d in zip(places, stride, tap, dilation, strict=True)]
        value = left([n, group * channels + channel, *at])
        if not flip:
            return value, right([out, channel, *tap])
        back = [k - 1 - t for k, t in zip(taps, tap, strict=True)]
        return value, right([group * channels + channel, out - group * outs, *back])

    def of_rows(index: Index, r: Index) -> tuple[Any, Any]:
        n, *places, out = index
        *tap, channel = r
        return factors([n, out, *places], [channel, *tap])

    device, dtype = x.get_device(), x.get_dtype()
    if V.graph.sizevars.statically_known_equals(outs, 1):
        return ours.weighted_sum(device, dtype, dtype, shape, list(reduced), factors)
    # As rows of channels: PT's columns are then the channels of a group, whose weights are loaded
    # once, and windows are read in runs of channels or of taps.
    rows = [shape[0], *shape[2:], shape[1]]
    product = ours.dot(device, dtype, dtype, rows, [*taps, channels], of_rows)
    load = product.make_loader()
    # Readers take it in the order of the shape, not as a view: what Inductor asks of the strides of
    # views, it cannot answer for sizes such as s0 - s1 + 3.
    return ir.Pointwise.create(
        device=device, dtype=dtype, ranges=list(shape),
        inner_fn=lambda index: load([index[0], *index[2:], index[1]]),
    )  # fmt: skip


def _of_weight(
    small: Box,
    large: Box,
    weight: Box,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    groups: Any,
) -> Box:
    """The weight's gradient: sums over batch and places of `small` (one value per place) times the
    padded `large` (which the windows walk over)."""
    small.realize()
    sizes = large.get_size()[2:]
    sides = zip(sizes, padding, strict=True)
    padded = _padded(large, [_Spread(size, p, 1, size + 2 * p) for size, p in sides])
    left, right = small.make_loader(), padded.make_loader()
    batch, _, *places = small.get_size()
    first, second, *_ = weight.get_size()
    own = FloorDiv(first, groups)

    def factors(index: Index, r: Index) -> tuple[Any, Any]:
        out, channel, *tap = index
        n, *place = r
        group = FloorDiv(out, own) if groups != 1 else sympy.S.Zero
        at = [p * s + t * d for p, s, t, d in zip(place, stride, tap, dilation, strict=True)]
        return left([n, out, *place]), right([n, group * second + channel, *at])

    dtype, shape = weight.get_dtype(), weight.get_size()
    return ours.dot(weight.get_device(), dtype, dtype, shape, [batch, *places], factors)


def _left_over(
    gradient: Box,
    x: Box,
    weight: Box,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
) -> list[Any]:
    """Points at the end of each dim of the input that no window reaches."""
    found = []
    for d, size in enumerate(x.get_size()[2:]):
        places, taps = gradient.get_size()[d + 2], weight.get_size()[d + 2]
        reached = (places - 1) * stride[d] - 2 * padding[d] + dilation[d] * (taps - 1) + 1
        found.append(size - reached)
    return found


def _padded(x: Box, dims: Sequence[_Spread]) -> Box:
    """x with its trailing dims spread out and zeros everywhere else, in memory."""
    known = V.graph.sizevars.statically_known_equals
    x.realize()
    if all(known(d.before, 0) and known(d.step, 1) and known(d.length, d.size) for d in dims):
        return x
    load, dtype = x.make_loader(), x.get_dtype()

    def inner(index: Index) -> Any:
        outer, places = index[:2], index[2:]
        condition: Any = None
        inside = []
        for place, d in zip(places, dims, strict=True):
            offset = place - d.before
            tests = [_test(ops.ge, offset, 0), _test(ops.le, offset, (d.size - 1) * d.step)]
            if not known(d.step, 1):
                tests.append(_test(ops.eq, ModularIndexing(offset, 1, d.step), 0))
                offset = FloorDiv(offset, d.step)
            inside.append(offset)
            for test in tests:
                condition = test if condition is None else ops.and_(condition, test)
        return ops.masked(condition, lambda: load([*outer, *inside]), 0)

    shape = [*x.get_size()[:2], *(d.length for d in dims)]
    padded: Any = ir.Pointwise.create(
        device=x.get_device(), dtype=dtype, inner_fn=inner, ranges=shape
    )
    padded.realize()
    return padded


def _test(compare: Any, left: Any, right: Any) -> Any:
    return compare(ops.index_expr(left, torch.int64), ops.index_expr(right, torch.int64))
