"""Indices among equal elements, where PyTorch promises none of them."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

# By op: the position of `dim` among the arguments behind the input, and its default.
_CHOOSES = {"sort": (0, -1), "argsort": (0, -1), "topk": (1, -1)}


def without_choices(name: str, sample: Any, result: Any) -> Any:
    """A result with the elements that indices lead to in place of the indices.

    Only for ops that are free to choose, and where the indices of a row differ from each other;
    else the result as it is.
    """
    if name not in _CHOOSES or sample.kwargs.get("stable"):
        return result
    position, default = _CHOOSES[name]
    arguments = (*sample.args, *[None] * 3)
    given = sample.kwargs.get("dim", arguments[position])
    dim = default if given is None else given

    def element(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dtype != torch.int64 or leaf.dim() == 0:
            return leaf
        here = leaf.cpu()
        ordered = here.sort(dim).values
        if ((here < 0) | (here >= sample.input.shape[dim])).any() or (
            ordered.diff(dim=dim) == 0
        ).any():
            return leaf
        return sample.input.detach().gather(dim, here).to(leaf.device)

    outputs, arguments_after = result
    if isinstance(outputs, tuple):
        return (*outputs[:-1], element(outputs[-1])), arguments_after
    return tree_map(element, outputs), arguments_after
