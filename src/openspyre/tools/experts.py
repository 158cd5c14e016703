"""Mixtures of experts without a router's decisions: how an estimate computes them.

Which experts a token takes depends on values, and an estimate has none. It lets all experts take
the same number of tokens, and, where there are fewer (token, expert) pairs than experts, one pair
each. The work and the bytes are those of a grouped matmul with such a routing: pairs are sorted by
expert, every expert that has some reads its weights once, and results go back in order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

EVEN = "openspyre_even"
ASSUMED = "experts take even shares of the tokens; another routing takes longer"


def register() -> None:
    """Makes `experts_implementation=EVEN` known to transformers."""
    from transformers.integrations.moe import ExpertsInterface

    ExpertsInterface.register(EVEN, even_experts)


def has_experts(model: nn.Module) -> bool:
    """Whether a part of the model is a list of experts that transformers can compute in our way."""
    return any(hasattr(part, "_apply_gate") for part in model.modules())


def even_experts(
    experts: Any, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """What the experts of a transformers model make of tokens.

    Args:
        hidden: (tokens, width).
        chosen, weights: (tokens, experts of each): their numbers, and their shares of the result.
    """
    (tokens, width), each = hidden.shape, chosen.shape[-1]
    pairs = tokens * each
    active = min(pairs, experts.num_experts)
    rows = -(-pairs // active)  # of one expert
    order = torch.sort(chosen.reshape(-1)).indices
    filled = order
    if active * rows != pairs:
        filled = order[torch.arange(active * rows, device=hidden.device).clamp(max=pairs - 1)]
    found = hidden[filled // each].view(active, rows, width)
    if experts.has_gate:
        found = experts._apply_gate(_projected(experts, "gate_up_proj", found))
    else:
        found = experts.act_fn(_projected(experts, "up_proj", found))
    found = _projected(experts, "down_proj", found).reshape(active * rows, -1)[:pairs]
    found = found * weights.reshape(-1)[order].unsqueeze(-1)
    back = torch.empty_like(order)
    back[order] = torch.arange(pairs, device=hidden.device)
    return found[back].view(tokens, each, -1).sum(dim=1).to(hidden.dtype)


def _projected(experts: Any, name: str, tokens: torch.Tensor) -> torch.Tensor:
    """(experts, rows, width) through the projection of each."""
    weight = getattr(experts, name)[: len(tokens)]
    if not experts.is_transposed:
        weight = weight.transpose(-2, -1)
    found = torch.bmm(tokens, weight)
    if experts.has_bias:
        found = found + getattr(experts, f"{name}_bias")[: len(tokens)].unsqueeze(1)
    return found
