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
    requests: Sequence[str],
    drafts: Mapping[str, Sequence[int]],
) -> None:
    """Masks the rows of some requests; a request has a row for each of its drafts and one more.

    Args:
        logits: of all requests of a step.
        bits: of each row of `ruled`, 32 tokens a number; a request may have left the step.
        requests: of the step, in the order of their rows.
        drafts: tokens, for requests that have some.
    """
    first: dict[str, int] = {}
    behind = 0
    for request in requests:
        first[request] = behind
        behind += 1 + len(drafts.get(request, ()))
    ordered = np.full((logits.shape[0], bits.shape[1]), _ANY, np.int32)
    behind = 0
    for request in ruled:
        begin, behind = behind, behind + 1 + len(drafts.get(request, ()))
        if (row := first.get(request)) is not None:
            ordered[row : row + behind - begin] = bits[begin:behind]
    mask()(logits, torch.from_numpy(ordered).to(logits.device))
