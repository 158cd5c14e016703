"""What PyTorch leaves open in results: indices among equal elements, signs of vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map

# By op: the position of `dim` among the arguments behind the input, and its default.
_CHOOSES: Mapping[str, tuple[int, int | None]] = {
    "sort": (0, -1), "argsort": (0, -1), "topk": (1, -1), "kthvalue": (1, -1), "mode": (0, -1),
    "median": (0, None), "nanmedian": (0, None),
}  # fmt: skip
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
    if dim is None or sample.input.dim() == 0:
        return result

    def element(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dtype != torch.int64:
            return leaf
        here = leaf.cpu() if leaf.dim() == sample.input.dim() else leaf.cpu().unsqueeze(dim)
        repeats = (here.sort(dim).values.diff(dim=dim) == 0).any()
        if repeats or ((here < 0) | (here >= sample.input.shape[dim])).any():
            return leaf
        return sample.input.detach().gather(dim, here).reshape(leaf.shape).to(leaf.device)

    outputs, arguments_after = result
    return _with_last(outputs, element), arguments_after


def _with_last(outputs: Any, element: Callable[[Any], Any]) -> Any:
    """The indices, which come last, changed; out= variants have several such results."""
    if isinstance(outputs, list) and outputs and isinstance(outputs[0], list):
        return [_with_last(each, element) for each in outputs]
    if isinstance(outputs, (tuple, list)):
        return (*outputs[:-1], element(outputs[-1]))
    return element(outputs)


def _signed(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.dim() < 2 or not leaf.numel():
        return leaf
    here = leaf.detach().cpu()
    largest = here.gather(-2, here.abs().argmax(-2, keepdim=True))
    return (here * largest.sign()).to(leaf.device)
