"""Ops whose result is as large as values say: on the card, with one wait for the count."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.usefixtures("counted")

NAN = float("nan")
MASKS = ("none", "some", "all")


def both(call: Callable[..., Any], *arguments: Tensor) -> None:
    """Equal on the CPU and the card, bit for bit, with no op on the CPU."""
    wanted = call(*(x.clone() for x in arguments))
    there = [x.to("spyre") for x in arguments]
    torch.spyre.reset_fallbacks()
    found = call(*there)
    assert torch.spyre.fallbacks() == {}
    for mine, exact in zip(_several(found), _several(wanted), strict=True):
        assert (mine.shape, mine.dtype) == (exact.shape, exact.dtype)
        torch.testing.assert_close(mine.cpu(), exact, rtol=0, atol=0, equal_nan=True)


def _several(found: Any) -> tuple[Tensor, ...]:
    return (found,) if isinstance(found, Tensor) else tuple(found)


def numbers(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Whole numbers from -1 to 1 and, where it can be, a NaN."""
    count = torch.Size(sizes).numel()
    found = torch.tensor([1, 0, -1, 0, 0, 1, 1])[torch.arange(count) % 7].to(dtype)
    if dtype.is_floating_point and count > 3:
        found[3] = NAN
    return found.reshape(sizes)


def mask(kind: str, *sizes: int) -> Tensor:
    some = torch.arange(torch.Size(sizes).numel()).reshape(sizes) % 3 == 1
    return {"none": some & False, "some": some, "all": some | True}[kind]


# --- where ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int64, torch.bool])
def test_nonzero(dtype: torch.dtype) -> None:
    for sizes in ((), (0,), (1,), (33,), (2, 3, 5)):
        both(torch.nonzero, numbers(*sizes, dtype=dtype))


def test_nonzero_of_views_and_into_a_result() -> None:
    x = numbers(6, 7)
    both(torch.nonzero, x.t())
    both(torch.nonzero, x[::2, 1::3])
    both(lambda x: torch.nonzero(x, as_tuple=True), x)
    out = torch.empty(3, dtype=torch.int64, device="spyre")[:0]
    torch.nonzero(x.to("spyre"), out=out)
    assert torch.equal(out.cpu(), x.nonzero())
    with pytest.raises(RuntimeError, match="scalar type Long"):
        torch.nonzero(x.to("spyre"), out=torch.empty(0, device="spyre"))


# --- masks as indices -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MASKS)
def test_reading_where_a_mask_is_true(kind: str) -> None:
    x, m = numbers(6, 7), mask(kind, 6, 7)
    both(lambda x, m: x[m], x, m)
    both(lambda x, m: x.t()[m.t()], x, m)
    both(lambda x, m: x[m[:, 0]], x.half(), m)
    both(lambda x, m: x[:, m[0]], x.long(), m)
    both(lambda x, m: x[m[:, 0], :, None], x, m)
    both(torch.masked_select, x, m)
    both(torch.masked_select, x[0], m)
    both(torch.masked_select, x, m[:, :1])


def test_a_mask_beside_other_indices_and_without_dims() -> None:
    x, m = numbers(6, 7), mask("some", 6)
    both(lambda x, m, i: x[m, i], x, m, torch.tensor([1, 6]))
    both(lambda x, m: x[m, 2], x, m)
    for whether in (True, False):
        both(lambda x, m: x[m], x, torch.tensor(whether))
        both(torch.masked_select, torch.tensor(3.0), torch.tensor(whether))
    torch.spyre.reset_fallbacks()
    for index in (m, torch.tensor([4, -1, 0])):  # on the host
        there = x.to("spyre")
        assert torch.equal(there[index].cpu().nan_to_num(), x[index].nan_to_num())
        there[index] = 3
        assert there[index].eq(3).all()
    assert torch.spyre.fallbacks() == {}


@pytest.mark.parametrize("kind", MASKS)
def test_writing_where_a_mask_is_true(kind: str) -> None:
    def one_number(x: Tensor, m: Tensor) -> Tensor:
        x[m] = NAN
        x[:, m[1]] = 5
        return x

    def one_tensor(x: Tensor, m: Tensor) -> Tensor:
        return x.index_put((m,), torch.full((1,), 2.0, device=x.device))

    def one_each(x: Tensor, m: Tensor) -> Tensor:
        x[m] = torch.arange(int(m.sum()), device=x.device).to(x.dtype)
        return x

    def rows(x: Tensor, m: Tensor) -> Tensor:
        x.t()[m[0]] = torch.arange(6.0, device=x.device)
        return x

    def added(x: Tensor, m: Tensor) -> Tensor:
        return x.index_put_((m,), torch.ones((), device=x.device), accumulate=True)

    for call in (one_number, one_tensor, one_each, rows, added):
        both(call, numbers(6, 7), mask(kind, 6, 7))


def test_gradients_go_to_what_was_chosen() -> None:
    def gradient(x: Tensor, m: Tensor) -> Tensor:
        x.requires_grad_()
        (x[m] * 3).sum().backward()
        assert x.grad is not None
        return x.grad

    both(gradient, torch.arange(12.0).reshape(3, 4), mask("some", 3, 4))


def test_masks_of_other_sizes_are_refused() -> None:
    x = torch.zeros(3, 4, device="spyre")
    for sizes in ((2, 4), (3, 5), (3, 4, 1)):
        m = torch.ones(sizes, dtype=torch.bool, device="spyre")
        with pytest.raises(IndexError):
            x[m]
        with pytest.raises(IndexError):
            x[m] = 1
    with pytest.raises(RuntimeError, match="BoolTensor"):
        x.masked_select(x.int())


def test_masks_of_bytes_are_warned_of_as_on_other_devices() -> None:
    """Once a mask and call, whichever way a call is served."""

    def put(x: Tensor, *index: Any, value: Any, accumulate: bool = False) -> Tensor:
        return x.clone().index_put_(index, value.to(x.device), accumulate=accumulate)

    x = numbers(5, 7, 3).to("spyre")
    m, n = (torch.tensor(bits, dtype=torch.uint8) for bits in ([1, 0, 1, 1, 0], [1, 1, 1]))
    rows, one = torch.ones(3, 7, 3), torch.ones(())
    there, flat = m.to("spyre"), n.to("spyre")
    calls: list[tuple[int, Callable[[], Tensor]]] = [
        (0, lambda: x[there.bool()]),
        (1, lambda: x[there]),
        (1, lambda: x[m]),
        (2, lambda: x[there, :, flat]),
        (1, lambda: x[there.bool(), :, flat]),
        (1, lambda: put(x, there, value=rows)),
        (1, lambda: put(x, m, value=rows)),
        (1, lambda: put(x, there, value=rows, accumulate=True)),
        (1, lambda: put(x, there, value=one)),
        (1, lambda: put(x, there, value=one, accumulate=True)),
    ]
    for count, call in calls:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            call()
        assert sum("torch.uint8 is now deprecated" in str(w.message) for w in seen) == count


def test_compiled_graphs_ask_for_sizes_too() -> None:
    """What they break at is served by Python of ours, which must not be traced in its turn."""
    chosen = torch.compile(lambda x, m: (x * 2)[m])
    for kind in MASKS:
        both(chosen, torch.arange(20.0).reshape(5, 4), mask(kind, 5, 4))


# --- repeats and groups ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_repeats(dtype: torch.dtype) -> None:
    for each in ([], [0], [3], [2, 0, 3, 1], [0, 0]):
        both(torch.repeat_interleave, torch.tensor(each, dtype=dtype))
    both(lambda x, n: x.repeat_interleave(n, 0), numbers(4, 3), torch.tensor([2, 0, 3, 1]))
    both(lambda x, n: x.repeat_interleave(n, 1, output_size=6), numbers(3, 2), torch.tensor([2, 4]))
    with pytest.raises(RuntimeError, match="can not be negative"):
        torch.repeat_interleave(torch.tensor([2, -1], dtype=dtype).to("spyre"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
@pytest.mark.parametrize("op", [torch.unique, torch.unique_consecutive])
def test_unique(op: Any, dtype: torch.dtype) -> None:
    for sizes in ((0,), (1,), (20,), (4, 5)):
        x = numbers(*sizes, dtype=dtype)
        both(op, x)
        both(lambda x: op(x, return_inverse=True, return_counts=True), x)
    both(lambda x: op(x, return_counts=True), numbers(6, 4, dtype=dtype).t())
