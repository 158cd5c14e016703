"""Reductions over ranks, computed by the card in the order of ranks: equal bits everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from openspyre import _C
from openspyre.errors import Unsupported

_BITWISE = ("band", "bor", "bxor")
_BOOLS = {
    "sum": "any", "max": "any", "bor": "any", "product": "all", "min": "all", "band": "all",
    "bxor": "bxor",
}  # fmt: skip
_NAMES = {
    "SUM": "sum", "AVG": "avg", "PRODUCT": "product", "MIN": "min", "MAX": "max", "BAND": "band",
    "BOR": "bor", "BXOR": "bxor", "PREMUL_SUM": "premul_sum",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction by name; `factor` is what premul_sum multiplies with."""

    name: str
    factor: Tensor | None = None

    def __call__(self, stacked: Tensor) -> Tensor:
        """One operand per rank, along dim 0, reduced to one; sums of halves round once."""
        if stacked.dtype == torch.bool:
            return _of_bools(self.name, stacked)
        if self.factor is not None:
            return (stacked * self.factor).sum(0, dtype=stacked.dtype)
        return _REDUCE[self.name](stacked)


def reduction(op: ReduceOp, like: Tensor, what: str) -> Reduction:
    """What a ReduceOp means for elements of a tensor's dtype, on its card.

    Raises:
        Unsupported: it means nothing for them.
    """
    name = next(ours for theirs, ours in _NAMES.items() if op == getattr(ReduceOp, theirs))
    why = _refusal(name, like.dtype)
    if why:
        hint = "convert the tensor first"
        raise Unsupported(f"{what}: {name} of {like.dtype}", why=why, hint=hint)
    if name != "premul_sum":
        return Reduction(name)
    return Reduction(name, torch.as_tensor(op.factor, dtype=like.dtype).to(like.device))


_prepared: set[tuple[object, ...]] = set()


def prepare(op: Reduction, ranks: int, like: Tensor, counts: Iterable[int]) -> None:
    """Has the card's kernels compiled for operands of so many elements, on the caller's thread.

    A lane must not compile: torch lets no other thread trace meanwhile.
    """
    for count in {min(count, 2) for count in counts} - {0}:
        key = (op.name, ranks, like.dtype, like.device, count)
        if key in _prepared:
            continue
        before = _C.exchange_off_clock(True)
        try:
            with torch.inference_mode():
                op(torch.empty(ranks, count, dtype=like.dtype, device=like.device))
        finally:
            _C.exchange_off_clock(before)
        _prepared.add(key)


def _refusal(name: str, dtype: torch.dtype) -> str:
    inexact = dtype.is_floating_point or dtype.is_complex
    if dtype.is_floating_point and dtype.itemsize == 1:
        return "8-bit floats are for storage and matrix products, they have no sums of their own"
    if name in _BITWISE and inexact:
        return "bitwise reductions are for whole numbers and bools"
    if name in ("avg", "premul_sum") and not inexact:
        return "an average or a product with a factor is no whole number"
    if name in ("min", "max") and dtype.is_complex:
        return "complex numbers have no order"
    return ""


def _of_bools(name: str, stacked: Tensor) -> Tensor:
    match _BOOLS[name]:
        case "any":
            return stacked.any(0)
        case "all":
            return stacked.all(0)
        case _:
            return _chain(torch.bitwise_xor)(stacked)


def _chain(op: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda stacked: reduce(op, stacked.unbind(0))


_REDUCE: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda stacked: stacked.sum(0, dtype=stacked.dtype),
    "avg": lambda stacked: stacked.mean(0),
    "min": lambda stacked: stacked.amin(0),
    "max": lambda stacked: stacked.amax(0),
    "product": _chain(torch.mul),
    "band": _chain(torch.bitwise_and),
    "bor": _chain(torch.bitwise_or),
    "bxor": _chain(torch.bitwise_xor),
}
