"""Activations in plain PyTorch; a gated one takes gate and values as the halves of its last dim."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GatedGelu(nn.Module):
    """gelu(gate) * values."""

    approximate: str

    def forward_native(self, x: Tensor) -> Tensor:
        gate, values = x.chunk(2, -1)
        return F.gelu(gate, approximate=self.approximate) * values


class GatedByLaterSilu(nn.Module):
    """values * silu(gate), the values first."""

    def forward_native(self, x: Tensor) -> Tensor:
        values, gate = x.chunk(2, -1)
        return values * F.silu(gate)


class GatedThreshold(nn.Module):
    """gate * values where the gate is above a threshold, else 0."""

    threshold: float

    def forward_native(self, x: Tensor) -> Tensor:
        gate, values = x.chunk(2, -1)
        return F.threshold(gate, self.threshold, 0.0) * values


class GatedClampedSilu(nn.Module):
    """gate * sigmoid(alpha gate) * (values + beta), both halves clamped before."""

    swiglu_limit: float
    alpha: float
    beta: float

    def forward_native(self, x: Tensor) -> Tensor:
        gate, values = x.chunk(2, -1)
        gate = gate.clamp(max=self.swiglu_limit)
        values = values.clamp(-self.swiglu_limit, self.swiglu_limit)
        return gate * torch.sigmoid(self.alpha * gate) * (values + self.beta)


class GatedSteppedSilu(nn.Module):
    """silu(gate) * values, both clamped after."""

    limit: float

    def forward_native(self, x: Tensor) -> Tensor:
        gate, values = x.chunk(2, -1)
        return F.silu(gate).clamp(max=self.limit) * values.clamp(-self.limit, self.limit)


class InterleavedClampedSilu(nn.Module):
    """As `GatedClampedSilu` with values + 1; gate and values take turns in the last dim."""

    alpha: float
    limit: float

    def forward_native(self, x: Tensor) -> Tensor:
        gate = x[..., ::2].clamp(max=self.limit)
        values = x[..., 1::2].clamp(-self.limit, self.limit)
        return (values + 1) * (gate * torch.sigmoid(gate * self.alpha))


class Gelu(nn.Module):
    """gelu by the error function."""

    def forward_native(self, x: Tensor) -> Tensor:
        return F.gelu(x)


class TanhGelu(nn.Module):
    """gelu by tanh; two of vLLM's names differ in how they write it."""

    def forward_native(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


class FastGelu(nn.Module):
    """gelu by tanh, with a factor of ten digits."""

    def forward_native(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


class SigmoidGelu(nn.Module):
    """x * sigmoid(1.702 x)."""

    def forward_native(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class SquaredRelu(nn.Module):
    """relu(x) squared."""

    def forward_native(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


class SoftClippedSilu(nn.Module):
    """beta tanh(gate / beta) * sigmoid(gate) * values, in float32; values clipped so if asked."""

    beta: float
    linear_beta: float | None

    def forward_native(self, x: Tensor) -> Tensor:
        gate, values = (half.float() for half in x.chunk(2, -1))
        if self.linear_beta is not None:
            values = self.linear_beta * torch.tanh(values / self.linear_beta)
        return (self.beta * torch.tanh(gate / self.beta) * torch.sigmoid(gate) * values).to(x.dtype)
