"""Norms in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class OnePlusRMSNorm(nn.Module):
    """x / rms(x) * (1 + w), in float32; `residual` is added before, and returned with the sum."""

    weight: Tensor
    variance_epsilon: float

    def forward_native(
        self, x: Tensor, residual: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        wide = x.float()
        if residual is not None:
            wide = wide + residual.float()
        mean = wide.square().mean(-1, keepdim=True)
        y = wide * torch.rsqrt(mean + self.variance_epsilon) * (1.0 + self.weight.float())
        if residual is None:
            return y.to(x.dtype)
        return y.to(x.dtype), wide.to(x.dtype)


class MeanNorm(nn.Module):
    """PyTorch's layer norm, in the wider dtype of x and the weight."""

    weight: Tensor | None
    bias: Tensor | None
    normalized_shape: tuple[int, ...]
    eps: float

    def forward_native(self, x: Tensor) -> Tensor:
        dtype = x.dtype if self.weight is None else torch.promote_types(x.dtype, self.weight.dtype)
        wide = x.to(dtype)
        return F.layer_norm(wide, self.normalized_shape, self.weight, self.bias, self.eps).to(
            x.dtype
        )
