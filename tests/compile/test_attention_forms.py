"""Attention as models write it: windows, soft caps, pages, one token, sizes that change."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.compile.comparing import compare, tensor

HALF = torch.float16
attend = F.scaled_dot_product_attention


def window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Every row sees the 40 keys up to its own."""
    row, key = (
        torch.arange(q.shape[-2], device=q.device)[:, None],
        torch.arange(k.shape[-2], device=q.device),
    )
    return attend(q, k, v, (key <= row) & (key > row - 40))


def near(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Every row sees the keys up to 33 before and behind it, by a mask that is added."""
    row, key = (torch.arange(x.shape[-2], device=q.device) for x in (q, k))
    seen = (row[:, None] - key).abs() <= 33
    return attend(q, k, v, torch.where(seen, 0.0, -math.inf).to(q.dtype))


def later(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The last rows of a longer text, of which each sees 100 keys."""
    row = torch.arange(q.shape[-2], device=q.device)[:, None] + k.shape[-2] - q.shape[-2]
    key = torch.arange(k.shape[-2], device=q.device)
    return attend(q, k, v, (key <= row) & (key > row - 100), enable_gqa=True)


def wide_window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A window that is larger than the text, and one of one key."""
    row, key = (torch.arange(x.shape[-2], device=q.device) for x in (q, k))
    behind = row[:, None] - key
    first = attend(q, k, v, (behind >= 0) & (behind < 5000))
    return first + attend(q, k, v, (behind >= 0) & (behind < 1))


def capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
    row = torch.arange(q.shape[-2], device=q.device)[:, None]
    hidden = torch.arange(k.shape[-2], device=q.device) > row
    scores = (20 * torch.tanh(scores / 20)).masked_fill(hidden, -math.inf)
    return torch.softmax(scores, -1).to(q.dtype) @ v


def paged(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor
) -> torch.Tensor:
    """Keys and values in pages of 16, which a table names."""
    k, v = (x[table].flatten(0, 1).transpose(0, 1) for x in (keys, values))
    return attend(q, k, v)


def lengths(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    used: torch.Tensor,
) -> torch.Tensor:
    """Texts of a batch, each with its own pages and as many keys of them as it has used."""
    k, v = (x[table].flatten(1, 2).transpose(1, 2) for x in (keys, values))
    seen = torch.arange(k.shape[-2], device=q.device) < used[:, None]
    return attend(q, k, v, seen[:, None, None], enable_gqa=True)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attend(q, k, v, is_causal=True, enable_gqa=True)


def operands(heads: int, rows: int, keys: int, shared: int = 0) -> tuple[torch.Tensor, ...]:
    sizes = ((heads, rows, 32), (shared or heads, keys, 32), (shared or heads, keys, 32))
    return tuple(tensor(1, *s, dtype=HALF, seed=n) for n, s in enumerate(sizes))


PAGES = tuple(tensor(9, 16, 2, 32, dtype=HALF, seed=n) for n in (1, 2))
FORMS: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "sliding window": (window, operands(2, 130, 130)),
    "window to both sides, added": (near, operands(2, 389, 389)),
    "window, later rows": (later, operands(4, 130, 901, shared=2)),
    "window, one row": (later, operands(2, 1, 901)),
    "windows of all keys and of one": (wide_window, operands(2, 261, 261)),
    "soft cap, in blocks": (capped, operands(2, 389, 389)),
    "soft cap": (capped, operands(2, 70, 70)),
    "pages": (paged, (tensor(2, 1, 32, dtype=HALF), *PAGES, torch.tensor([3, 0, 8, 5]))),
    "pages out of order, negative, twice": (
        paged,
        (tensor(2, 3, 32, dtype=HALF), *PAGES, torch.tensor([8, -9, 5, 5, -1], dtype=torch.int32)),
    ),
    "pages of a batch, last ones short": (
        lengths,
        (
            tensor(3, 4, 1, 32, dtype=HALF),
            *PAGES,
            torch.tensor([[7, 0, 8], [3, 5, 1], [2, 2, 4]]),
            torch.tensor([48, 33, 1]),
        ),
    ),
    "one token, long context": (attend, operands(4, 1, 2049)),
    "grouped heads in blocks": (causal, operands(6, 390, 390, shared=2)),
    "more blocks than are ahead": (causal, operands(1, 1031, 1031)),
}


@pytest.mark.parametrize("name", FORMS)
def test_values(name: str) -> None:
    function, given = FORMS[name]
    compare(function, *given, wide=True, launches=1)


def test_pages_that_the_same_graph_writes() -> None:
    def step(
        q: torch.Tensor, keys: torch.Tensor, new: torch.Tensor, slot: torch.Tensor
    ) -> torch.Tensor:
        keys[slot // 16, slot % 16] = new
        return paged(q, keys, keys, torch.tensor([3, 0, 8, 5], device=q.device))

    q, keys, new = tensor(2, 1, 32), tensor(9, 16, 2, 32), tensor(2, 32)
    slot = torch.tensor(8 * 16 + 3)
    expected = step(q, keys.clone(), new, slot)
    got = torch.compile(step)(*(x.to("spyre") for x in (q, keys, new, slot))).cpu()
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)
    assert (expected != step(q, keys.clone(), new * 2, slot)).any()


def test_a_page_that_there_is_not_is_an_error() -> None:
    torch._dynamo.reset()
    given = tensor(2, 1, 32, dtype=HALF), *PAGES, torch.tensor([3, 9, 8, 5])
    with pytest.raises(IndexError, match="index 9 is out of range"):
        torch.compile(paged)(*(x.to("spyre") for x in given)).cpu()


def test_rows_that_see_nothing_give_zeros() -> None:
    def empty(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        row, key = (torch.arange(x.shape[-2], device=q.device) for x in (q, k))
        behind = row[:, None] - 150 - key  # the first 150 rows see nothing
        return attend(q, k, v, (behind >= 0) & (behind < 60))

    compare(empty, *operands(2, 300, 300), wide=True)


def test_a_nan_stays_in_the_rows_that_see_it() -> None:
    q, k, v = operands(1, 300, 300)
    k[0, 0, 200] = math.nan
    compare(causal, q, k, v, wide=True)


def test_blocks_and_sizes_that_change() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(causal, dynamic=True)
    for rows in (1, 70, 300):
        given = operands(2, rows, rows)
        got = compiled(*(x.to("spyre") for x in given)).cpu()
        torch.testing.assert_close(got, causal(*given), rtol=4e-3, atol=4e-3)
