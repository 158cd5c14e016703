"""What adapters (LoRA) add to a layer's output, for rows of several adapters in one step.

Every adapter's product is taken of all rows, and each row keeps that of its own: few adapters are
on the card at once, and a matmul with more rows costs less than a gather of weights for each row.
What another adapter gives a row, NaN included, is selected away, and a row without one gets 0.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from openspyre.vllm.one_graph import OneGraph, one_graph


def shrunk(x: Tensor, a: Tensor) -> Tensor:
    """Of each adapter, `[adapter, row, rank]`; a is `[adapter, 1, rank, input]`."""
    return x[None] @ a[:, 0].transpose(1, 2).to(x.dtype)


def expanded(low: Tensor, b: Tensor, slots: Tensor) -> Tensor:
    """Of each row, its own adapter's, `[row, output]`.

    Args:
        low: `[adapter, row, rank]`.
        b: `[adapter, 1, output, rank]`.
        slots: the adapter of each row, -1 for none.
    """
    products = low @ b[:, 0].transpose(1, 2).to(low.dtype)
    own = torch.arange(b.shape[0], device=slots.device)[:, None] == slots
    return torch.where(own[:, :, None], products, 0).sum(0)


@cache
def head() -> OneGraph:
    """Adds to logits; arguments: logits, hidden states, weights A and B, slots of the rows."""

    def graph(y: Tensor, x: Tensor, a: Tensor, b: Tensor, slots: Tensor) -> None:
        y.add_(expanded(shrunk(x, a), b, slots).to(y.dtype))

    weights = (None,) * 4
    return one_graph(graph, ("rows", None), ("rows", None), weights, weights, ("rows",))
