"""Orders and counts against the CPU: values, indices, ties, NaN, every dtype, any size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.compile.comparing import compare, moved, same, tensor

NAN, INF = float("nan"), float("inf")
Function = Callable[..., Any]


def both(function: Function, *args: torch.Tensor, dynamic: bool = False) -> None:
    """The CPU's results, compiled and eagerly, without leaving the card."""
    torch.spyre.reset_fallbacks()
    found = function(*moved(args))
    leaves = torch.utils._pytree.tree_leaves
    for ours, theirs in zip(leaves(found), leaves(function(*args)), strict=True):
        assert ours.dtype == theirs.dtype
        same(ours, theirs)
    compare(function, *args, dynamic=dynamic)
    assert torch.spyre.fallback_reasons() == {}


def ties(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values of which many are equal."""
    return (
        (tensor(*shape) * 2).round().to(dtype)
        if dtype.is_floating_point
        else tensor(*shape, dtype=dtype)
    )


DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sort_is_stable(dtype: torch.dtype, descending: bool) -> None:
    x = ties(3, 37, dtype=dtype)
    both(lambda x: x.sort(dim=1, stable=True, descending=descending), x)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (1,), (5, 1), (2, 3, 130)], ids=str)
def test_shapes(shape: tuple[int, ...]) -> None:
    x = ties(*shape)
    both(lambda x: (x.sort(stable=True), x.argsort(stable=True, descending=True)), x)
    if shape and 0 not in shape:
        both(lambda x: (x.sort(dim=0, stable=True), x.kthvalue(1, 0), x.median(0, True)), x)


def test_nan_is_the_largest_and_zeros_are_equal() -> None:
    x = torch.tensor([NAN, 1, INF, -INF, NAN, 0.0, -0.0, 3])
    both(lambda x: (x.sort(stable=True), x.sort(stable=True, descending=True)), x)
    both(lambda x: (x.topk(4).values, x.topk(4, largest=False).values), x)
    both(lambda x: (x.kthvalue(3), x.kthvalue(7).values), x)


@pytest.mark.parametrize("layout", ["transposed", "stepped", "offset", "expanded"])
def test_views(layout: str) -> None:
    x = {
        "transposed": lambda: ties(9, 5).t(),
        "stepped": lambda: ties(12, 9)[::3, 1::2],
        "offset": lambda: ties(6, 9)[1:, 2:7],
        "expanded": lambda: ties(4, 1).expand(4, 6),
    }[layout]()
    both(lambda x: (x.sort(dim=0, stable=True), x.sort(dim=1, stable=True)), x)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("shape", [(33,), (4, 130), (2, 5003), (1, 2, 2100)], ids=str)
def test_topk(shape: tuple[int, ...], largest: bool) -> None:
    values = torch.randperm(torch.Size(shape).numel()).reshape(shape).float()
    both(lambda x: (x.topk(7, largest=largest), x.topk(1)), values)


def test_topk_of_long_rows_keeps_the_order_of_ties() -> None:
    x = ties(3000, 2, dtype=torch.bfloat16)
    values, indices = x.to("spyre").topk(20, dim=0)
    expected = x.sort(dim=0, descending=True, stable=True)
    assert torch.equal(values.cpu(), expected.values[:20])
    assert torch.equal(indices.cpu(), expected.indices[:20])
    worst = torch.full((2500,), -INF)
    assert torch.equal(worst.to("spyre").topk(3).indices.cpu(), torch.tensor([0, 1, 2]))
    assert torch.equal(
        (worst * NAN).to("spyre").topk(2, largest=False).indices.cpu(), torch.arange(2)
    )


def test_one_compilation_for_rows_of_many_lengths() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(lambda x: x.sort(dim=-1, stable=True), dynamic=True)
    for length in (5, 37, 64, 129):
        x = ties(3, length)
        for ours, theirs in zip(compiled(x.to("spyre")), x.sort(dim=-1, stable=True), strict=True):
            same(ours, theirs)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_row_that_is_too_long_is_a_counted_fallback() -> None:
    x = torch.randperm(20_001).float()
    torch.spyre.reset_fallbacks()
    assert torch.equal(x.to("spyre").sort().values.cpu(), x.sort().values)
    (why,) = torch.spyre.fallback_reasons().values()
    assert why == "aten.sort.stable has no lowering for these arguments"


def test_out_and_in_place() -> None:
    x = ties(3, 9)
    values = torch.empty(3, 4, device="spyre")
    indices = torch.empty(3, 4, device="spyre", dtype=torch.int64)
    torch.spyre.reset_fallbacks()
    torch.topk(x.to("spyre"), 4, out=(values, indices))
    assert torch.spyre.fallback_reasons() == {}
    assert torch.equal(values.cpu(), x.topk(4).values)
    assert torch.equal(x.gather(1, indices.cpu()), values.cpu())


def test_arguments_are_checked() -> None:
    x = torch.ones(3, 4, device="spyre")
    for wrong in (
        lambda: x.topk(5),
        lambda: x.sort(dim=2),
        lambda: x.kthvalue(9),
        lambda: x.topk(-1),
    ):
        with pytest.raises((RuntimeError, IndexError)):
            wrong()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_medians(dtype: torch.dtype) -> None:
    x = torch.randperm(60).reshape(5, 12).to(dtype)
    both(lambda x: (x.median(1), x.median(0, keepdim=True), x.median()), x)
    if dtype.is_floating_point:
        x[1, 3] = x[1, 7] = x[2, 0] = NAN
        both(lambda x: (x.median(1), x.median()), x)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64], ids=str)
def test_searches(dtype: torch.dtype, dynamic: bool) -> None:
    rows, one = (ties(*s, dtype=dtype).sort()[0] for s in ((5, 9), (9,)))
    values = ties(5, 4, dtype=dtype)
    both(lambda s, v: torch.searchsorted(s, v), rows, values, dynamic=dynamic)
    both(lambda s, v: torch.searchsorted(s, v, right=True, out_int32=True), rows, values)
    both(lambda s, v: (torch.bucketize(v, s), torch.bucketize(v, s, right=True)), one, values)


@pytest.mark.parametrize("values", [torch.float16, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("sequence", [torch.float32, torch.bfloat16], ids=str)
def test_searches_in_two_dtypes_are_in_the_wider(
    sequence: torch.dtype, values: torch.dtype
) -> None:
    # Sevenths are no halves: rounded first to the narrower, neighbours would be equal.
    s, v = (torch.arange(1, 7) / 7).to(sequence), (torch.arange(10) / 7).view(2, 5).to(values)
    both(lambda s, v: (torch.bucketize(v, s), torch.searchsorted(s, v, right=True)), s, v)


def test_searches_with_a_sorter_and_nan() -> None:
    x, values = ties(9), torch.tensor([0.0, NAN, INF, -INF, 9.0])
    both(lambda x, v: torch.searchsorted(x, v, sorter=x.argsort(stable=True)), x, values)
    both(lambda s, v: torch.bucketize(v, s, right=True), torch.tensor([-INF, 0.0, INF]), values)


@pytest.mark.parametrize("size", [0, 1, 300])
def test_histogram(size: int) -> None:
    x = torch.randint(-1, 9, (size,)).float()
    both(lambda x: (torch.histc(x, 8, 0, 7), torch.histc(x, 5, -2.5, 1.25)), x)
    counts = torch.histc(x.int().to("spyre"), 8, 0, 7)
    assert counts.tolist() == torch.histc(x, 8, 0, 7).tolist()
    with pytest.raises(RuntimeError):
        torch.histc(x.to("spyre"), 8, 3, 1)


def test_equal() -> None:
    x = tensor(3, 5).to("spyre")
    torch.spyre.reset_fallbacks()
    assert torch.equal(x, x.clone())
    assert not torch.equal(x, x + 1)
    assert not torch.equal(x, x[:2])
    assert torch.equal(x[:0], x[:0].clone())
    assert torch.spyre.fallback_reasons() == {}


def test_a_mask_as_an_index() -> None:
    x, mask = tensor(5, 7), tensor(5, 7, dtype=torch.bool)
    torch.spyre.reset_fallbacks()
    assert torch.equal(x.to("spyre")[mask.to("spyre")].cpu(), x[mask])
    assert torch.spyre.fallbacks() == {}
