"""Attention over a paged cache, as functions that compile to one launch.

Each writes keys and values first: the first launch of a step those of all its tokens, for a request
may share blocks that another one of the step fills; the others write to no slot.

Requests lie behind each other in the tokens of a step. A launch takes a rectangle of them: as many
rows as requests, as many columns as the longest has tokens. One column has a function of its own,
which spreads pages over cores. The cache is `[block, token, head, content]` with keys in the first
half of a content and values in the second. What a slot holds that no token of the request was
written to may be anything, NaN included: it is never added, not even times zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from openspyre.vllm.one_graph import OneGraph, one_graph

_TOKENS = ("tokens", None, None)
_WRITTEN = ("written", None, None)
_CACHE = ("blocks", None, None, None)
_WRITE = (_TOKENS, _TOKENS, _WRITTEN, _WRITTEN, _CACHE, ("written",))
_RECTANGLE = (
    ("rows", "pages"), ("rows",), ("rows",), ("rows",), ("columns",), ("tokens",),
)  # fmt: skip
_ROWS = (("tokens", "pages"), ("tokens",))
_LAUNCH = 1 << 16  # scores that take as long as another launch


@dataclass(frozen=True, slots=True)
class Form:
    """What a layer's attention is.

    Attributes:
        scale: factor of the scores.
        window: how many keys a token sees, its own included; 0 for all.
        cap: scores are `cap * tanh(score / cap)`; 0 for no cap.
    """

    scale: float
    window: int = 0
    cap: float = 0.0


def rectangles(
    queries: Sequence[int], contexts: Sequence[int], cells: int
) -> list[tuple[int, int]]:
    """Runs of requests that one launch each takes, as (first, behind the last).

    Args:
        queries: new tokens of each request.
        contexts: tokens of each request, the new ones included.
        cells: how many a rectangle of several rows may have.
    """
    runs: list[tuple[int, int]] = []
    widest = longest = 0
    for n, (query, context) in enumerate(zip(queries, contexts, strict=True)):
        if runs:
            first, end = runs[-1]
            wide, long, rows = max(widest, query), max(longest, context), n + 1 - first
            apart = (end - first) * widest * longest + query * context + _LAUNCH
            if rows * wide <= cells and rows * wide * long <= apart:
                runs[-1], widest, longest = (first, n + 1), wide, long
                continue
        runs.append((n, n + 1))
        widest, longest = query, context
    return runs


@cache
def write_and_attend(form: Form) -> OneGraph:
    """Writes keys and values of new tokens, then attends with tokens of a rectangle.

    Arguments: out and query `[token, head, depth]` of the rectangle; key, value, cache and slots of
    the tokens to write; table (blocks of each row), starts and ends (of each row's tokens in the
    step), lengths (tokens of each row's request), columns (0, 1, ...), cells (of each token of the
    rectangle, row * number of columns + column).
    """

    def graph(
        out: Tensor, query: Tensor, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor,
        table: Tensor, starts: Tensor, ends: Tensor, lengths: Tensor, columns: Tensor,
        cells: Tensor,
    ) -> None:  # fmt: skip
        _one_size(out, query, cells)
        _one_size(table, starts, ends, lengths)
        _write(key, value, cache, slots)
        out.copy_(_attend(form, query, cache, table, starts, ends, lengths, columns, cells))

    return one_graph(graph, *_WRITE, *_RECTANGLE)


@cache
def write_and_decode(form: Form) -> OneGraph:
    """Writes keys and values of new tokens, then attends for requests with one new token each.

    Arguments: out and query `[request, head, depth]`; key, value, cache and slots of the tokens to
    write; table (blocks of each request), lengths (its tokens).
    """

    def graph(
        out: Tensor, query: Tensor, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor,
        table: Tensor, lengths: Tensor,
    ) -> None:  # fmt: skip
        _one_size(out, query, table, lengths)
        _write(key, value, cache, slots)
        out.copy_(_decode(form, query, cache, table, lengths))

    return one_graph(graph, *_WRITE, *_ROWS)


def _write(key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
    _one_size(key, value, slots)
    # A slot of -1 is no slot: block 0 is vLLM's block for what nobody needs.
    at = slots.clamp(min=0)
    cache.flatten(0, 1).index_put_((at,), torch.cat([key, value], -1).to(cache.dtype))


def _attend(
    form: Form, query: Tensor, cache: Tensor, table: Tensor, starts: Tensor, ends: Tensor,
    lengths: Tensor, columns: Tensor, cells: Tensor,
) -> Tensor:  # fmt: skip
    tokens = ((starts - starts[:1])[:, None] + columns).clamp(max=query.shape[0] - 1)
    q = query[tokens].transpose(1, 2)
    depth = cache.shape[-1] // 2
    pages = _gathered(cache, table, q.dtype)
    k, v = pages.flatten(1, 2).transpose(1, 2).split(depth, -1)
    at = (lengths - (ends - starts))[:, None] + columns
    place = torch.arange(k.shape[-2], device=q.device)
    seen = place <= at[:, :, None]
    held = place < lengths[:, None]
    if form.window:  # pages before it are block 0 in the table
        seen = seen & (place > at[:, :, None] - form.window)
        held = held & (place > at[:, :1] - form.window)
    v = torch.where(held[:, None, :, None], v, 0)
    # Columns behind a row's last token are no tokens, but they read what they see.
    seen = seen & held[:, None, :]
    return weighted(form, q, k, v, seen[:, None]).transpose(1, 2).flatten(0, 1)[cells]


def _gathered(cache: Tensor, table: Tensor, dtype: torch.dtype) -> Tensor:
    """The pages of a table, `[row, page, token, head, content]`, in a tensor of their own."""
    held = cache[table].to(dtype)
    # A view that Inductor makes of memory alone: it keeps pages as they lie, which load at once,
    # where it would gather the rows of each head, a request of 128 bytes each.
    return held.as_strided(held.shape, held.stride())


def _one_size(*tensors: Tensor) -> None:
    # Fewer sizes have narrower classes, whose programs suit their launches better.
    for tensor in tensors:
        torch._check(tensor.shape[0] == tensors[0].shape[0])


def _decode(form: Form, query: Tensor, cache: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    """Attention page by page, then the sum over pages: so that cores share a long context."""
    pages, (block, heads, content) = table.shape[1], cache.shape[1:]
    held = _gathered(cache, table, query.dtype)
    k, v = held.transpose(2, 3).split(content // 2, -1)
    place = torch.arange(pages * block, device=query.device).view(pages, block)
    seen = place < lengths[:, None, None]
    if form.window:  # pages before it are block 0 in the table
        seen = seen & (place >= lengths[:, None, None] - form.window)
    v = torch.where(seen[:, :, None, :, None], v, 0)
    q = query.unflatten(1, (heads, -1))[:, None]
    scores = _capped(form, q.float() @ k.float().transpose(-1, -2))
    scores = torch.where(seen[:, :, None, None, :], scores, -torch.inf)
    # Of a page that has nothing to see, the weights are 0 times a share of 0.
    highest = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
    weights = torch.exp(scores - highest)
    share = torch.exp(highest - highest.amax(1, keepdim=True))
    total = (weights.sum(-1, keepdim=True) * share).sum(1)
    mixed = ((weights @ v.float()) * share).sum(1)
    return (mixed / total.clamp(min=1)).flatten(1, 2).to(query.dtype)


def _capped(form: Form, products: Tensor) -> Tensor:
    scores = products * form.scale
    return form.cap * torch.tanh(scores / form.cap) if form.cap else scores


def weighted(form: Form, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Attention `[row, head, column, depth]` of queries to the keys that they see."""
    if not form.cap:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=form.scale, enable_gqa=True
        )
    heads = k.shape[1]
    grouped = q.unflatten(1, (heads, q.shape[1] // heads))
    scores = _capped(form, (grouped @ k[:, :, None].transpose(-1, -2)).float())
    scores = torch.where(seen[:, None], scores, -torch.inf)
    return (torch.softmax(scores, -1).to(q.dtype) @ v[:, :, None]).flatten(1, 2)
