"""Calls that are refused at once: on a lane, a mistake of one rank ends the group for all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from openspyre.device.distributed.calls import DTYPES, describe
from openspyre.errors import SpyreError, Unsupported

_TAGS = 1 << 30  # gloo's are int32, and a message takes two


def check_tensors(what: str, tensors: Sequence[Tensor]) -> Tensor:
    """Whether one collective can take all of them; the first one comes back.

    Raises:
        SpyreError: there is none, or they lie on several devices or have several dtypes.
        Unsupported: they are not dense, or of a dtype that no other rank would know.
    """
    if not tensors:
        raise SpyreError(f"{what}: there is no tensor", hint="give one, of size 0 to move nothing")
    first = next((t for t in tensors if t.device.type == "spyre"), None)
    if first is None:
        raise SpyreError(
            f"{what}: the tensors lie on {tensors[0].device}",
            why="spyreccl moves tensors of cards",
            hint="init_process_group('cpu:gloo,spyre:spyreccl') takes those of the CPU too",
        )
    for place, tensor in enumerate(tensors):
        if tensor.layout != torch.strided:
            raise Unsupported(f"{what}: a tensor of layout {tensor.layout}", hint="use to_dense()")
        if tensor.device != first.device:
            raise SpyreError(
                f"{what}: tensor {place} lies on {tensor.device}, others on {first.device}",
                why="one call moves tensors of one card",
                hint="move it there with .to()",
            )
        if tensor.dtype != first.dtype:
            raise SpyreError(
                f"{what}: tensor {place} is {describe(tensor.dtype, tensor.shape)}, "
                f"others are {describe(first.dtype, first.shape)}",
                why="one call moves tensors of one dtype",
                hint="convert it with .to()",
            )
    if first.dtype not in DTYPES:
        raise Unsupported(f"{what}: tensors of {first.dtype}", hint="send them as views of uint8")
    return first


def check_outputs(what: str, tensors: Sequence[Tensor]) -> None:
    """Whether tensors can be filled.

    Raises:
        Unsupported: elements of one share memory.
    """
    for tensor in tensors:
        if _overlaps(tensor):
            raise Unsupported(
                f"{what}: elements of {describe(tensor.dtype, tensor.shape)} share memory "
                f"(strides {list(tensor.stride())})",
                why="what is written there would depend on the order",
                hint="give .contiguous(), and copy the result back",
            )


def check_count(what: str, found: int, expected: int, of: str) -> None:
    """Whether a list or a tensor has as many as it must.

    Raises:
        SpyreError: it has not.
    """
    if found != expected:
        raise SpyreError(
            f"{what}: {found} {of}, but {expected} are needed",
            hint="look at the sizes that torch.distributed's documentation of the call asks for",
        )


def check_rank(what: str, rank: int, ranks: int, of: str) -> None:
    """Whether a group has the rank that a call names.

    Raises:
        SpyreError: it has not.
    """
    if not 0 <= rank < ranks:
        raise SpyreError(
            f"{what}: the {of} is rank {rank} of a group of {ranks}",
            why="a group counts its ranks from 0",
            hint=f"name one of 0 to {ranks - 1}",
        )


def check_tag(what: str, tag: int) -> None:
    """Whether a message can have a tag.

    Raises:
        SpyreError: it cannot.
    """
    if not 0 <= tag < _TAGS:
        raise SpyreError(
            f"{what}: the tag {tag}",
            why=f"tags are whole numbers from 0 to {_TAGS - 1}",
            hint="take a smaller number",
        )


def _overlaps(tensor: Tensor) -> bool:
    """Whether two elements lie in one place."""
    if not tensor.numel() or tensor.is_contiguous():
        return False
    steps = zip(tensor.stride(), tensor.shape, strict=True)
    dims = sorted((step, size) for step, size in steps if size > 1)
    if dims[0][0] == 0:
        return True
    reach, nested = 0, True
    for step, size in dims:
        nested &= step > reach
        reach += step * (size - 1)
    if nested or reach + 1 < tensor.numel():
        return not nested
    places = torch.zeros(1, dtype=torch.int64, device="cpu")
    for step, size in dims:
        offsets = torch.arange(size, dtype=torch.int64, device="cpu") * step
        places = (places[:, None] + offsets).reshape(-1)
    distinct: int = places.unique().numel()
    return distinct < places.numel()
