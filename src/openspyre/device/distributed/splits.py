"""How the rows or elements of a tensor are dealt out to ranks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from openspyre.errors import SpyreError


def dim_splits(
    what: str, tensor: Tensor, sizes: Sequence[int], ranks: int, of: str
) -> list[tuple[int, int]]:
    """(first element, elements) for each rank, of rows along dim 0; no sizes mean equal ones.

    Raises:
        SpyreError: the rows cannot be dealt out so.
    """
    rows = tensor.shape[0] if tensor.dim() else 1
    if not sizes and rows % ranks:
        raise SpyreError(
            f"{what}: {rows} rows of the {of} do not divide by {ranks} ranks",
            hint=f"give {of}_split_sizes",
        )
    sizes = list(sizes) or [rows // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != rows or min(sizes) < 0:
        raise SpyreError(
            f"{what}: {of}_split_sizes {sizes} do not deal out {rows} rows to {ranks} ranks",
            hint="give one size for each rank, together as many as there are rows",
        )
    row = tensor.numel() // max(1, rows)
    return spans([size * row for size in sizes])


def spans(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(start, size) of parts that lie one after the other."""
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return list(zip(starts, sizes, strict=True))


def even_spans(count: int, ranks: int) -> list[tuple[int, int]]:
    """Parts whose sizes differ by one at most."""
    return spans([count // ranks + (rank < count % ranks) for rank in range(ranks)])
