"""Embedding bags: rows of a table, added, averaged or compared bag by bag, and their gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_SUM, _MEAN, _MAX = range(3)
_COMPARED = 1 << 26  # elements that a bag's maximum looks at; (index, bag) pairs


def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """The bags, the bag of every index, the size of every bag, and whose row was the largest."""
    n, bags, width = indices.shape[0], offsets.shape[0] - include_last_offset, weight.shape[1]
    pairs = n * bags * (width if mode == _MAX else 1)
    if n == 0 or bags == 0 or weight.numel() == 0 or pairs > _COMPARED:
        return NotImplemented
    bag = _bag_of(n, offsets[:bags])
    kept = indices != padding_idx
    member = (bag == torch.arange(bags, device=weight.device)[:, None]) & kept
    size = member.sum(1)
    rows = aten.index.Tensor(weight, [indices]).float()
    if mode == _MAX:
        best, row = _largest(rows, member)
        full = (size > 0)[:, None]
        largest = aten.index.Tensor(indices, [torch.where(full, row, 0)])
        best = torch.where(full, best, 0.0).to(weight.dtype)
        return best, bag, size, torch.where(full, largest, 0)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    rows = torch.where(kept[:, None], rows, 0.0)
    total = _added(bag, rows, bags)
    if mode == _MEAN:
        total = total / size.clamp(min=1)[:, None]
    return total.to(weight.dtype), bag, size, indices.new_empty(0)


def embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: Any,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Any:
    """The gradient of the table."""
    if sparse or scale_grad_by_freq or indices.shape[0] == 0 or grad.numel() == 0:
        return NotImplemented
    wide = grad.float()
    bag_size = bag_size[: grad.shape[0]]  # with include_last_offset PyTorch counts one more
    if mode == _MAX:
        given = torch.where((bag_size > 0)[:, None], wide, 0.0)
        column = torch.arange(grad.shape[1], device=grad.device).expand(grad.shape)
        into = wide.new_zeros(num_weights, grad.shape[1])
        return aten.index_put(into, [maximum_indices, column], given, True).to(grad.dtype)
    if mode == _MEAN:
        wide = wide / bag_size.clamp(min=1)[:, None]
    bag = _known(offset2bag, indices, offsets, grad)
    if bag is None:
        return NotImplemented
    rows = aten.index.Tensor(wide, [bag])
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    rows = torch.where((indices != padding_idx)[:, None], rows, 0.0)
    return _added(indices, rows, num_weights).to(grad.dtype)


def per_sample_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Any:
    """The gradient of the factors of the rows."""
    if indices.shape[0] == 0 or grad.numel() == 0:
        return NotImplemented
    bag = _known(offset2bag, indices, offsets, grad)
    if bag is None:
        return NotImplemented
    rows = aten.index.Tensor(weight, [indices]).float()
    given = aten.index.Tensor(grad, [bag]).float()
    products = (rows * given).sum(1)
    return torch.where(indices != padding_idx, products, 0.0).to(grad.dtype)


def _known(offset2bag: Tensor, indices: Tensor, offsets: Tensor, grad: Tensor) -> Tensor | None:
    """The bag of every index, which the CPU's forward may not have told."""
    if offset2bag.shape[0] == indices.shape[0]:
        return offset2bag
    bags = grad.shape[0]
    return (
        None if indices.shape[0] * bags > _COMPARED else _bag_of(indices.shape[0], offsets[:bags])
    )


def _bag_of(n: int, offsets: Tensor) -> Tensor:
    """The bag of each of n indices."""
    place = torch.arange(n, device=offsets.device)
    bag: Tensor = (offsets <= place[:, None]).sum(1) - 1
    return bag


def _largest(rows: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """[bags, width]: the largest of every bag, and its row. As other devices compare: what is NaN
    counts if it comes first, and is passed over if it comes later."""
    n = rows.shape[0]
    place = torch.arange(n, device=rows.device)
    inside = member.unsqueeze(-1)
    best = torch.where(inside & (rows == rows), rows, -math.inf).amax(1)
    same = inside & (rows == best.unsqueeze(1))
    found = torch.where(same, place[:, None], n).amin(1)
    first = torch.where(member, place, n).amin(1)
    lead = aten.index.Tensor(rows, [torch.where(first < n, first, 0)])
    stays = lead != lead
    return torch.where(stays, lead, best), torch.where(stays, first[:, None], found)


def _added(place: Tensor, rows: Tensor, count: Any) -> Tensor:
    """[count, width]: the sum of the rows that belong to each place."""
    into = rows.new_zeros(count, rows.shape[1])
    summed: Tensor = aten.index_put(into, [place], rows, True)
    return summed
