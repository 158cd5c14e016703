"""Triangular systems as few products: blocks of rows one behind the other, each by its inverse.

A row of the solution depends on rows before it alone, and so must a NaN: what stands in the other
half, zero or not, is left out of every sum, never multiplied by zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

LARGEST = 256  # rows; beyond, the op stays a counted call
_BLOCK = 16  # rows that are solved at once


def solve_triangular(
    a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """aten.linalg_solve_triangular: x of a x = b, or of x a = b; half of `a` is not looked at."""
    n = int(a.shape[-1])  # each size has its own graph: the number of blocks is its own
    if not 0 < n <= LARGEST or a.dtype != torch.float32 or not b.numel():
        return NotImplemented
    if not left:
        turned = solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular)
        return turned.mT.contiguous()
    if upper:
        a, b = a.flip(-2, -1), b.flip(-2)
    if not unitriangular:  # rows are divided by what stands on the diagonal
        diagonal = _on_diagonal(a, 1).squeeze(-1)
        a, b = a / diagonal, b / diagonal
    x = _solved(a, b)
    return x.flip(-2).contiguous() if upper else x


def _solved(a: Tensor, b: Tensor) -> Tensor:
    """The solution for ones on the diagonal, whatever stands there and above it."""
    n = int(a.shape[-1])
    size = min(_BLOCK, 1 << (n - 1).bit_length())
    count = -(-n // size)
    a = functional.pad(a, (0, count * size - n, 0, count * size - n))
    rest = functional.pad(b, (0, 0, 0, count * size - n))
    inverse = _inverses(_on_diagonal(a, size))
    found = []
    for i in range(count):
        found.append(_product(inverse[..., i, :, :], rest[..., :size, :]))
        below = a[..., (i + 1) * size :, i * size : (i + 1) * size]
        if i + 1 < count:
            rest = rest[..., size:, :] - torch.matmul(below, found[-1])
    return (torch.cat(found, -2) if count > 1 else found[0])[..., :n, :].contiguous()


def _inverses(blocks: Tensor) -> Tensor:
    """Of lower triangular blocks: of [[A, 0], [C, D]] it is [[A', 0], [-D' C A', D']]."""
    whole = int(blocks.shape[-1])
    inverse = blocks.new_ones((*blocks.shape[:-2], whole, 1, 1))
    size = 1
    while size < whole:
        corner = _on_diagonal(blocks, 2 * size)[..., size:, :size]
        first, second = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        below = -_product(second, _product(first.mT, corner.mT, upper=True).mT)
        above = torch.cat([first, torch.zeros_like(first)], -1)
        inverse = torch.cat([above, torch.cat([below, second], -1)], -2)
        size *= 2
    return inverse.squeeze(-3)


def _product(lower: Tensor, x: Tensor, upper: bool = False) -> Tensor:
    """Of a triangular matrix and another one, without what the triangle leaves out."""
    row = torch.arange(int(lower.shape[-1]), device=x.device)
    there = row[:, None] <= row if upper else row[:, None] >= row
    return torch.where(there[:, :, None], lower.unsqueeze(-1) * x.unsqueeze(-3), 0.0).sum(-2)


def _on_diagonal(a: Tensor, size: int) -> Tensor:
    """[..., blocks, size, size]: the blocks that the diagonal crosses."""
    n = int(a.shape[-1])
    # Laid out in rows that are longer by a block's, each block begins where its row does.
    rows = functional.pad(a.flatten(-2), (0, n)).unflatten(-1, (n // size, size * (n + 1)))
    found: Tensor = rows[..., : size * n].unflatten(-1, (size, n))[..., :size]
    return found
