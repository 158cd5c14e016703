"""Tensors of the card as flat bytes."""

from __future__ import annotations

import torch
from torch import Tensor


def flat_bytes(tensor: Tensor) -> Tensor:
    """The elements of a contiguous tensor as uint8."""
    if not tensor.numel():
        return torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return tensor.reshape(-1).view(torch.uint8)


def packed(tensor: Tensor) -> Tensor:
    """The tensor if its elements lie in order, else a copy where they do."""
    data = tensor.detach()
    if data.is_contiguous() and not data.is_conj() and not data.is_neg():
        return data
    return torch.empty(data.shape, dtype=data.dtype, device=data.device).copy_(data)


class Target:
    """A tensor to be filled with bytes: itself where its elements lie in order, else by a copy."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.data  # what fills it is no operation of autograd's
        direct = self._tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
        shape, dtype = tensor.shape, tensor.dtype
        self.whole = (
            self._tensor if direct else torch.empty(shape, dtype=dtype, device=tensor.device)
        )
        self.bytes = flat_bytes(self.whole)

    def settle(self) -> None:
        """Once the bytes are there."""
        if self.whole is not self._tensor:
            self._tensor.copy_(self.whole)


def write(tensor: Tensor, values: Tensor) -> None:
    """Puts values into a tensor of the user's, of as many elements."""
    if tensor.numel():
        tensor.data.copy_(values.reshape(tensor.shape))
