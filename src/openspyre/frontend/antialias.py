"""Resizing with a filter that is as wide as the step, one dim after the other.

Each result sums what lies under a filter around its centre. The filter of the width is as much
wider as the image gets smaller, so that nothing between two results is lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_Filter = Callable[[Tensor], Tensor]


def bilinear(
    x: Tensor, size: Sequence[Any], align_corners: bool,
    scale_rows: float | None = None, scale_columns: float | None = None,
) -> Tensor:  # fmt: skip
    """aten._upsample_bilinear2d_aa: x [N, C, H, W] at `size`."""
    return _resized(x, size, align_corners, (scale_rows, scale_columns), _triangle, 1)


def bicubic(
    x: Tensor, size: Sequence[Any], align_corners: bool,
    scale_rows: float | None = None, scale_columns: float | None = None,
) -> Tensor:  # fmt: skip
    """aten._upsample_bicubic2d_aa."""
    return _resized(x, size, align_corners, (scale_rows, scale_columns), _cubic, 2)


def _resized(
    x: Tensor, size: Sequence[Any], align_corners: bool, scales: Sequence[float | None],
    filter_at: _Filter, reach: int,
) -> Tensor:  # fmt: skip
    wide = x.float()
    for dim, results, scale in zip((-1, -2), reversed(size), reversed(scales), strict=True):
        n, results = int(x.shape[dim]), int(results)  # the filter's width is a size, too
        step = _step(n, results, align_corners, scale)
        moved = _along_rows(wide.movedim(dim, -1), results, step, filter_at, reach)
        wide = moved.movedim(-1, dim)
    return wide.to(x.dtype).contiguous()


def _step(n: int, results: int, align_corners: bool, scale: float | None) -> float:
    """How far the centres of two results are apart."""
    if align_corners:
        return (n - 1) / (results - 1) if results > 1 else 0.0
    return 1 / scale if scale is not None and scale > 0 else n / results


def _along_rows(x: Tensor, results: int, step: float, filter_at: _Filter, reach: int) -> Tensor:
    """[..., results]; places that no result reaches are left out, whatever stands there."""
    n = x.shape[-1]
    width = max(step, 1.0)
    centre = (torch.arange(results, device=x.device).float() + 0.5)[:, None] * step
    first = (centre - reach * width + 0.5).clamp(min=0).long()
    end = (centre + reach * width + 0.5).long().clamp(max=n)
    place = first + torch.arange(math.ceil(2 * reach * width) + 1, device=x.device)
    inside = place < end
    weight = torch.where(inside, filter_at((place + 0.5 - centre).abs() / width), 0.0)
    weight = weight / weight.sum(-1, keepdim=True)
    values = x[..., place.clamp(max=n - 1)]
    return torch.where(inside, weight * values, 0.0).sum(-1)


def _triangle(distance: Tensor) -> Tensor:
    return (1 - distance).clamp(min=0)


def _cubic(distance: Tensor) -> Tensor:
    """Keys' kernel with a = -1/2, as in Pillow."""
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))
