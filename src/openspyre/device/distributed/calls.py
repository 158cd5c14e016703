"""What a rank says of its call before bytes move, and whether all ranks mean the same call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import DistBackendError

from openspyre.errors import SpyreError

KINDS = (
    "broadcast", "all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "gather",
    "scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single",
    "barrier", "send",
)  # fmt: skip
# Of these, every rank gives a tensor of the same shape.
_ALIKE = frozenset({"all_reduce", "reduce"})
DTYPES: tuple[torch.dtype, ...] = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
    torch.complex32, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
)  # fmt: skip
REDUCTIONS = ("", "sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
SHOWN_DIMS = 8
_FIXED = 8 + SHOWN_DIMS


class CollectiveError(SpyreError):
    """A collective cannot be done: ranks differ, or a rank is gone."""


class RankLost(CollectiveError, DistBackendError):
    """Another rank is gone or does not answer; the group is of no use any more."""


@dataclass(frozen=True, slots=True)
class Call:
    """One rank's view of a call.

    Attributes:
        kind: one of KINDS.
        dtype: of every tensor in it.
        shape: of the tensor that this rank gives, to be shown.
        sends: bytes for each rank.
        takes: bytes from each rank.
        reduction: the name of the reduction, or nothing.
        root: the rank that the call names, or -1.
        ready: card time in ps at which the rank's card could begin.
    """

    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    sends: tuple[int, ...]
    takes: tuple[int, ...]
    reduction: str = ""
    root: int = -1
    ready: int = 0

    def __str__(self) -> str:
        if self.kind == "barrier":
            return self.kind
        return f"{self.kind} of {describe(self.dtype, self.shape)}"


def describe(dtype: torch.dtype, shape: Sequence[int]) -> str:
    """A tensor as errors show it: float32[2, 3]."""
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def shown_dims(shape: Sequence[int]) -> list[int]:
    """The first extents of a shape, as many whole numbers for every shape."""
    return [*shape[:SHOWN_DIMS], *[0] * (SHOWN_DIMS - len(shape))]


def encode(call: Call) -> list[int]:
    """The call as whole numbers."""
    return [
        KINDS.index(call.kind), DTYPES.index(call.dtype), REDUCTIONS.index(call.reduction),
        call.root, call.ready, len(call.shape), 0, 0, *shown_dims(call.shape),
        *call.sends, *call.takes,
    ]  # fmt: skip


def decode(row: Sequence[int], ranks: int) -> Call:
    """The call that whole numbers mean."""
    kind, dtype, reduction, root, ready, rank = row[:6]
    return Call(
        kind=KINDS[kind],
        dtype=DTYPES[dtype],
        shape=tuple(row[8 : 8 + min(rank, SHOWN_DIMS)]),
        sends=tuple(row[_FIXED : _FIXED + ranks]),
        takes=tuple(row[_FIXED + ranks : _FIXED + 2 * ranks]),
        reduction=REDUCTIONS[reduction],
        root=root,
        ready=ready,
    )


def check_agreement(calls: Sequence[Call], names: Sequence[int]) -> None:
    """Whether all ranks make the same call.

    Args:
        calls: of each rank of the group.
        names: how to name each of them: their ranks in the world.

    Raises:
        CollectiveError: they do not; says what differs on which rank.
    """
    for what in ("kind", "dtype", "reduction", "root"):
        _check_same(what, [getattr(call, what) for call in calls], calls, names)
    if calls[0].kind in _ALIKE:
        _check_same("shape", [call.shape for call in calls], calls, names)
    for giver, given in enumerate(calls):
        for taker, taken in enumerate(calls):
            if given.sends[taker] != taken.takes[giver]:
                size = given.dtype.itemsize
                raise CollectiveError(
                    f"{given.kind}: rank {names[giver]} gives rank {names[taker]} "
                    f"{given.sends[taker] // size} elements, which expects "
                    f"{taken.takes[giver] // size}",
                    why=_views(calls, names),
                    hint="give tensors of sizes that fit together on all ranks",
                )


def _check_same(
    what: str, values: Sequence[Any], calls: Sequence[Call], names: Sequence[int]
) -> None:
    for rank, value in enumerate(values):
        if value != values[0]:
            kind = calls[0].kind if what != "kind" else "a collective"
            raise CollectiveError(
                f"{kind}: the {what} differs between ranks {names[0]} and {names[rank]}",
                why=_views(calls, names),
                hint="make the same calls in the same order on every rank of the group",
            )


def _views(calls: Sequence[Call], names: Sequence[int]) -> str:
    return "; ".join(f"rank {n}: {_view(c)}" for n, c in zip(names, calls, strict=True))


def _view(call: Call) -> str:
    reduction = f", {call.reduction}" if call.reduction else ""
    root = f", root {call.root}" if call.root >= 0 else ""
    return f"{call}{reduction}{root}"
