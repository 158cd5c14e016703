"""Rotary positions in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def turned(x: Tensor, cos: Tensor, sin: Tensor, *, halves: bool) -> Tensor:
    """x with its pairs turned by angles; pairs are x's halves, or neighbours.

    Args:
        x: [..., tokens, heads, size].
        cos, sin: [tokens, size / 2].
    """
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    a, b = x.chunk(2, -1) if halves else (x[..., ::2], x[..., 1::2])
    pairs = (a * cos - b * sin, b * cos + a * sin)
    return torch.cat(pairs, -1) if halves else torch.stack(pairs, -1).flatten(-2)


class Rotary(nn.Module):
    """Turns queries and keys by their positions, by a table of cosines and sines."""

    cos_sin_cache: Tensor
    head_size: int
    rotary_dim: int
    is_neox_style: bool

    def forward_native(
        self, positions: Tensor, query: Tensor, key: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """
        Args:
            positions: of each token, in any shape.
            query, key: [tokens, heads * size] or [tokens, heads, size].
        """
        table = self.cos_sin_cache.to(query.device, query.dtype)
        cos, sin = table[positions.flatten()].chunk(2, -1)
        query = self._placed(query, cos, sin)
        return query, None if key is None else self._placed(key, cos, sin)

    def _placed(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        heads = x.view(cos.shape[0], -1, self.head_size)
        first, rest = heads.tensor_split([self.rotary_dim], -1)
        first = turned(first, cos, sin, halves=self.is_neox_style)
        return torch.cat((first, rest), -1).reshape(x.shape)


class AppliedRotary(nn.Module):
    """Turns one tensor by given angles."""

    is_neox_style: bool
    enable_fp32_compute: bool

    def forward_native(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        wide = x.float() if self.enable_fp32_compute else x
        y = turned(wide, cos.to(wide.dtype), sin.to(wide.dtype), halves=self.is_neox_style)
        return y.to(x.dtype)
