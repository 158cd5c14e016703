"""Embedding bags on the card: eagerly and compiled, with gradients, against the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.compile.comparing import compare, moved, same, tensor

INDICES = torch.tensor([1, 3, 3, 9, 10, 0, 4, 3])
OFFSETS = torch.tensor([0, 2, 2, 5])
ENDS = torch.tensor([0, 2, 2, 5, 8])  # with the end of the last bag
CASES: dict[str, dict[str, Any]] = {
    "sum": {"mode": "sum"},
    "mean": {"mode": "mean"},
    "max": {"mode": "max"},
    "padding": {"mode": "mean", "padding_idx": 3},
    "padding of max": {"mode": "max", "padding_idx": 3},
    "negative padding": {"mode": "sum", "padding_idx": -8},
    "last offset, sum": {"mode": "sum", "include_last_offset": True},
    "last offset, mean": {"mode": "mean", "include_last_offset": True},
    "last offset, max": {"mode": "max", "include_last_offset": True},
}


@pytest.fixture(autouse=True)
def counted() -> None:
    torch.spyre.reset_fallbacks()


def bag(options: dict[str, Any]) -> Any:
    return lambda table, ids, starts: F.embedding_bag(ids, table, starts, **options)


@pytest.mark.parametrize("case", CASES)
def test_with_gradients(case: str) -> None:
    """One bag is empty, and rows of the table are strided."""
    call = bag(CASES[case])
    table = tensor(5, 11).t()
    starts = ENDS if CASES[case].get("include_last_offset") else OFFSETS
    compare(call, table, INDICES, starts)
    torch.spyre.reset_fallbacks()
    here, there = table.clone().requires_grad_(), table.to("spyre").requires_grad_()
    theirs, ours = call(here, INDICES, starts), call(there, moved(INDICES), moved(starts))
    same(ours, theirs)
    gradient = tensor(4, 5, seed=3)
    theirs.backward(gradient), ours.backward(moved(gradient))
    same(there.grad, here.grad)
    assert torch.spyre.fallback_reasons() == {}


def test_factors_of_rows() -> None:
    table, factors = tensor(11, 3), tensor(8)
    grads = []
    for device in ("spyre", "cpu"):
        leaves = [t.to(device).requires_grad_() for t in (table, factors)]
        found = F.embedding_bag(
            INDICES.to(device), leaves[0], OFFSETS.to(device), mode="sum", padding_idx=9,
            per_sample_weights=leaves[1],
        )  # fmt: skip
        found.square().sum().backward()
        grads.append((found, *(t.grad for t in leaves)))
    for ours, theirs in zip(*grads, strict=True):
        same(ours, theirs)
    assert torch.spyre.fallback_reasons() == {}


def test_a_forward_that_does_not_tell_the_bags() -> None:
    """The CPU's, which an unsupported size falls back to, leaves them out of sums."""
    table, gradient = tensor(11, 3), tensor(4, 3, seed=3)
    _, bags, sizes, largest = torch.ops.aten._embedding_bag(table, INDICES, OFFSETS)
    assert bags.numel() == 0

    def backward(to: Any) -> Any:
        given = [to(t) for t in (gradient, INDICES, OFFSETS, bags, sizes, largest)]
        return torch.ops.aten._embedding_bag_backward(*given, 11, False, 0, False, None)

    wanted = torch.zeros(11, 3).index_add(0, INDICES, gradient[[0, 0, 2, 2, 2, 3, 3, 3]])
    same(backward(moved), wanted)
    assert torch.spyre.fallback_reasons() == {}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_other_forms(mode: str, dtype: torch.dtype) -> None:
    table, rows = tensor(11, 1).to(dtype), INDICES.view(2, 4)
    wanted = F.embedding_bag(rows, table.float(), mode=mode)
    same(F.embedding_bag(moved(rows), moved(table), mode=mode), wanted.to(dtype))
    last = torch.tensor([0, 3, 8])
    wanted = F.embedding_bag(INDICES, table.float(), last, mode=mode, include_last_offset=True)
    ours = F.embedding_bag(
        moved(INDICES), moved(table), moved(last), mode=mode, include_last_offset=True
    )
    same(ours, wanted.to(dtype))
    assert torch.spyre.fallback_reasons() == {}


def test_special_values_stay_in_their_bag() -> None:
    table = tensor(11, 4)
    table[9, 1], table[10, 2], table[4, 0] = float("nan"), float("inf"), float("-inf")
    table[1, 3] = float("nan")  # the first of its bag
    for mode in ("sum", "mean", "max"):
        wanted = F.embedding_bag(INDICES, table, OFFSETS, mode=mode)
        same(F.embedding_bag(moved(INDICES), moved(table), moved(OFFSETS), mode=mode), wanted)
    F.embedding_bag(moved(INDICES + 5), moved(table), moved(OFFSETS))
    with pytest.raises(IndexError):
        torch.spyre.synchronize()


def test_no_rows_and_no_bags() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    for ids, starts in ((none, OFFSETS * 0), (none, none)):
        wanted = F.embedding_bag(ids, tensor(11, 4), starts)
        same(F.embedding_bag(moved(ids), moved(tensor(11, 4)), moved(starts)), wanted)
