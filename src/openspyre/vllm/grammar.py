"""Structured output: what a grammar forbids is masked on the card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from openspyre.vllm.one_graph import OneGraph, one_graph

_ANY = -1  # all bits: a row that no grammar rules


@cache
def mask() -> OneGraph:
    """Writes -inf where a bit is 0; arguments: logits `[row, token]`, bits `[row, 32 tokens]`."""

    def graph(logits: Tensor, bits: Tensor) -> None:
        places = torch.arange(32, device=bits.device, dtype=bits.dtype)
        allowed = ((bits[:, :, None] >> places) & 1).flatten(1)[:, : logits.shape[1]]
        logits.copy_(torch.where(allowed != 0, logits, -torch.inf))

    return one_graph(graph, ("rows", None), ("rows", None))


def mask_logits(
    logits: Tensor,
    bits: np.ndarray[Any, np.dtype[np.int32]],
    ruled: Sequence[str],
    rows: Mapping[str, int],
) -> None:
    """Masks the rows of some requests.

    Args:
        logits: of all requests of a step, one row each.
        bits: of each request of `ruled`, 32 tokens a number; a request may have left the step.
        rows: the row of each request of the step.
    """
    ordered = np.full((logits.shape[0], bits.shape[1]), _ANY, np.int32)
    for own, request in zip(bits, ruled, strict=True):
        if (row := rows.get(request)) is not None:
            ordered[row] = own
    mask()(logits, torch.from_numpy(ordered).to(logits.device))
