"""What PyTorch leaves open in results: indices among equal elements, signs of vectors."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

# By op: the position of `dim` among the arguments behind the input, and its default.
_CHOOSES = {"sort": (0, -1), "argsort": (0, -1), "topk": (1, -1)}
# Their results have singular vectors as columns.
_SIGNED = frozenset({"pca_lowrank", "svd_lowrank"})


def without_choices(name: str, sample: Any, result: Any) -> Any:
    """A result with what an op is free to choose made the same for all choices.

    Indices become the elements that they lead to, where the indices of a row differ from each
    other; columns that are vectors get the sign that makes their largest element positive.
    """
    if name in _SIGNED:
        outputs, arguments_after = result
        return tree_map(_signed, outputs), arguments_after
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


def _signed(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.dim() < 2 or not leaf.numel():
        return leaf
    here = leaf.detach().cpu()
    largest = here.gather(-2, here.abs().argmax(-2, keepdim=True))
    return (here * largest.sign()).to(leaf.device)
