"""Tensors of the card as flat bytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from openspyre.device.distributed.calls import DTYPES, describe
from openspyre.errors import SpyreError, Unsupported


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


def check_tensors(what: str, tensors: Sequence[Tensor]) -> Tensor:
    """Whether one collective can take all of them; the first one comes back.

    Raises:
        SpyreError: there is none, or they lie on several devices or have several dtypes.
        Unsupported: they are not dense, or of a dtype that no other rank would know.
    """
    if not tensors:
        raise SpyreError(f"{what}: there is no tensor")
    first = next((t for t in tensors if t.device.type == "spyre"), None)
    if first is None:
        raise SpyreError(
            f"{what}: the tensors lie on {tensors[0].device}",
            why="spyreccl moves tensors of cards",
            hint="init_process_group('cpu:gloo,spyre:spyreccl') takes those of the CPU too",
        )
    for place, tensor in enumerate(tensors):
        if tensor.layout != torch.strided:
            raise Unsupported(f"{what}: a tensor of layout {tensor.layout}", hint="use to_dense()")
        if tensor.device != first.device:
            raise SpyreError(
                f"{what}: tensor {place} lies on {tensor.device}, others on {first.device}",
                why="one call moves tensors of one card",
                hint="move it there with .to()",
            )
        if tensor.dtype != first.dtype:
            raise SpyreError(
                f"{what}: tensor {place} is {describe(tensor.dtype, tensor.shape)}, "
                f"others are {describe(first.dtype, first.shape)}",
                why="one call moves tensors of one dtype",
                hint="convert it with .to()",
            )
    if first.dtype not in DTYPES:
        raise Unsupported(f"{what}: tensors of {first.dtype}", hint="send them as views of uint8")
    return first


def check_count(what: str, found: int, expected: int, of: str) -> None:
    """Whether a list or a tensor has as many as it must.

    Raises:
        SpyreError: it has not.
    """
    if found != expected:
        raise SpyreError(f"{what}: {found} {of}, but {expected} are needed")
