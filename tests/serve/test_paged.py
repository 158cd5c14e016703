"""Attention over a paged cache: values, what no token wrote, one launch, one graph."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import openspyre
from openspyre.vllm.paged import Form, rectangles, write_and_attend, write_and_decode

openspyre.require()
HEADS, SHARED, DEPTH = 6, 2, 20
FORMS = {
    "plain": Form(DEPTH**-0.5),
    "window and cap": Form(0.3, window=5, cap=2.0),
}
# New tokens and tokens in all, of each request.
STEPS = {
    "decode": ((1, 1, 1, 1), (17, 40, 1, 5)),
    "one token": ((1,), (1,)),
    "one decode": ((1,), (33,)),
    "prefill": ((40,), (40,)),
    "chunk": ((7,), (50,)),
    "mixed": ((1, 1, 9, 3, 17), (30, 2, 9, 20, 48)),
}


@dataclasses.dataclass(frozen=True)
class Step:
    """Tensors on the CPU; the table has more columns than it uses."""

    query: Tensor
    key: Tensor
    value: Tensor
    cache: Tensor
    slots: Tensor
    wide: Tensor
    tables: tuple[Tensor, ...]

    def on_card(self) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """An output, what is written with the cache, and the tables."""
        query, *new = (
            x.to("spyre") for x in (self.query, self.key, self.value, self.cache, self.slots)
        )
        table, *rest = self.tables
        tables = [self.wide.to("spyre")[:, : table.shape[1]], *(x.to("spyre") for x in rest)]
        return query, new, tables


def step(name: str, block: int, dtype: torch.dtype, window: int = 0) -> Step:
    """A cache that holds NaN wherever no token of these requests was written.

    Where there is a window, the pages that all new tokens have left behind are block 0, as vLLM
    frees them.
    """
    queries, contexts = STEPS[name]
    made = torch.Generator().manual_seed(len(name))
    rows, tokens, widest = len(queries), sum(queries), max(queries)
    pages = -(-max(contexts) // block)
    cache = torch.full((rows * pages + 3, block, SHARED, 2 * DEPTH), torch.nan, dtype=dtype)
    wide = torch.zeros(rows, 8, dtype=torch.int32)
    wide[:, :pages] = torch.randperm(rows * pages, generator=made).view(rows, pages) + 1
    if window:
        for row, (new, all_of_it) in enumerate(zip(queries, contexts, strict=True)):
            wide[row, : max(all_of_it - new + 1 - window, 0) // block] = 0
    slots, cells = [], []
    for row, (new, all_of_it) in enumerate(zip(queries, contexts, strict=True)):
        for place in range(all_of_it):
            slot = int(wide[row, place // block]) * block + place % block
            if slot < block:
                continue
            if place < all_of_it - new:
                kept = torch.randn(SHARED, 2 * DEPTH, generator=made)
                cache[slot // block, slot % block] = kept.to(dtype)
            else:
                slots.append(slot)
                cells.append(row * widest + place - (all_of_it - new))

    def drawn(heads: int) -> Tensor:
        return torch.randn(tokens, heads, DEPTH, generator=made).to(dtype)

    bounds = torch.tensor([0, *queries]).cumsum(0).int()
    tables = (
        wide[:, :pages], bounds[:-1], bounds[1:], torch.tensor(contexts).int(),
        torch.arange(widest).int(), torch.tensor(cells).int(),
    )  # fmt: skip
    new = (drawn(HEADS), drawn(SHARED), drawn(SHARED))
    return Step(*new, cache, torch.tensor(slots), wide, tables)


def expected(form: Form, given: Step, name: str) -> tuple[Tensor, Tensor]:
    """The cache and the attention, request by request in float64."""
    block = given.cache.shape[1]
    cache = given.cache.flatten(0, 1).clone()
    cache[given.slots] = torch.cat([given.key, given.value], -1)
    out, first = torch.empty_like(given.query), 0
    for row, (new, all_of_it) in enumerate(zip(*STEPS[name], strict=True)):
        places = torch.arange(all_of_it)
        held = cache[given.wide[row, places // block].long() * block + places % block].double()
        held = held.nan_to_num()  # of what is not seen
        k, v = (x.repeat_interleave(HEADS // SHARED, 1) for x in held.split(DEPTH, -1))
        q = given.query[first : first + new].double()
        scores = torch.einsum("qhd,khd->hqk", q, k) * form.scale
        if form.cap:
            scores = form.cap * torch.tanh(scores / form.cap)
        at = torch.arange(all_of_it - new, all_of_it)[:, None]
        hidden = (places > at) | ((places <= at - form.window) if form.window else False)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out[first : first + new] = torch.einsum("hqk,khd->qhd", weights, v).to(out.dtype)
        first += new
    return cache.view_as(given.cache), out


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("form", FORMS)
def test_values_and_what_is_written(form: str, name: str) -> None:
    given = step(name, 16, torch.float32, FORMS[form].window)
    query, (key, value, cache, slots), tables = given.on_card()
    out = torch.full_like(query, torch.nan)
    write_and_attend(FORMS[form])(out, query, key, value, cache, slots, *tables)
    written, right = expected(FORMS[form], given, name)
    torch.testing.assert_close(out.cpu(), right, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(cache.cpu(), written, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize(("dtype", "block"), [(torch.float16, 128), (torch.bfloat16, 32)])
def test_halves_and_larger_blocks(dtype: torch.dtype, block: int) -> None:
    form = FORMS["plain"]
    given = step("mixed", block, dtype)
    query, (key, value, cache, slots), tables = given.on_card()
    out = torch.full_like(query, torch.nan)
    write_and_attend(form)(out, query, key, value, cache, slots, *tables)
    close = 4e-3 if dtype is torch.float16 else 3e-2
    torch.testing.assert_close(out.cpu(), expected(form, given, "mixed")[1], atol=close, rtol=close)


@pytest.mark.parametrize("name", ["decode", "one token", "one decode"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "block"), [(torch.float32, 16), (torch.float16, 32)])
def test_one_new_token_each(form: str, name: str, dtype: torch.dtype, block: int) -> None:
    given = step(name, block, dtype, FORMS[form].window)
    query, (key, value, cache, slots), tables = given.on_card()
    rows = (tables[0], tables[3])
    out, again = (torch.full_like(query, torch.nan) for _ in range(2))
    write_and_decode(FORMS[form])(out, query, key, value, cache, slots, *rows)
    nowhere = (key[:1], value[:1], cache, torch.full_like(slots[:1], -1))
    write_and_decode(FORMS[form])(again, query, *nowhere, *rows)
    assert cache[0].isfinite().any()  # what nobody needs: block 0
    cache[0] = torch.nan
    written, right = expected(FORMS[form], given, name)
    close = 2e-5 if dtype is torch.float32 else 4e-3
    for got in (out, again):
        torch.testing.assert_close(got.cpu(), right, atol=close, rtol=close)
    torch.testing.assert_close(cache.cpu(), written, atol=0, rtol=0, equal_nan=True)


def test_scores_beyond_half_precision() -> None:
    """Products of 250 x 250 x 20 are over 65504; the scores are scaled before they matter."""
    form = Form(1e-6)
    given = step("decode", 16, torch.float16)
    given.query.fill_(250)
    given.key.fill_(250)
    query, (key, value, cache, slots), tables = given.on_card()
    out = torch.full_like(query, torch.nan)
    write_and_decode(form)(out, query, key, value, cache, slots, tables[0], tables[3])
    right = expected(form, given, "decode")[1]
    torch.testing.assert_close(out.cpu(), right, atol=4e-3, rtol=4e-3)


def test_a_page_is_loaded_once() -> None:
    """Pages that cores share: their bytes once, and nothing of them is stored."""
    from openspyre.runtime.profiler import profile

    form, heads, depth, block, pages = Form(0.125), 3, 64, 64, 16
    cache = torch.randn(pages + 1, block, heads, 2 * depth).half().to("spyre")
    query = torch.randn(1, 2 * heads, depth).half().to("spyre")
    table = torch.arange(1, pages + 1).int()[None].to("spyre")
    rows = (table, torch.tensor([pages * block - 5]).int().to("spyre"))
    new = (cache[0, :1, :, :depth], cache[0, :1, :, :depth], cache, torch.tensor([-1]).to("spyre"))
    write_and_decode(form).prepared(torch.empty_like(query), query, *new, *rows)
    with profile() as measured:
        write_and_decode(form)(torch.empty_like(query), query, *new, *rows)
    (kernel,) = measured.kernels
    held = pages * block * heads * 2 * depth * 2
    assert kernel.device_read_bytes < 1.1 * held
    assert kernel.device_write_bytes < 0.1 * held


def test_a_slot_of_none_is_not_written() -> None:
    given = step("mixed", 16, torch.float32)
    query, (key, value, cache, slots), tables = given.on_card()
    slots[3:] = -1
    write_and_attend(FORMS["plain"])(
        torch.empty_like(query), query, key, value, cache, slots, *tables
    )
    changed = cache.cpu()[1:].flatten(0, 1)
    where = torch.zeros(changed.shape[0], dtype=torch.bool)
    where[given.slots[:3] - 16] = True
    before = given.cache[1:].flatten(0, 1)
    torch.testing.assert_close(changed[~where], before[~where], equal_nan=True, atol=0, rtol=0)
    torch.testing.assert_close(changed[where][:, :, :DEPTH].sort(0)[0], given.key[:3].sort(0)[0])


def test_one_launch_writes_for_another() -> None:
    """Of a step in two launches: the first writes all, and attends with its own tokens."""
    form, given = FORMS["plain"], step("mixed", 16, torch.float32)
    query, (key, value, cache, slots), tables = given.on_card()
    table, starts, ends, lengths, *_ = tables
    out = torch.full_like(query, torch.nan)
    first, behind = 2, sum(STEPS["mixed"][0][:2])
    write_and_decode(form)(
        out[:behind], query[:behind], key, value, cache, slots, table[:first], lengths[:first]
    )
    widest = max(STEPS["mixed"][0])
    cells = torch.cat(
        [row * widest + torch.arange(n) for row, n in enumerate(STEPS["mixed"][0][first:])]
    )
    write_and_attend(form)(
        out[behind:], query[behind:], key[:1], value[:1], cache, torch.full_like(slots[:1], -1),
        table[first:], starts[first:], ends[first:], lengths[first:],
        torch.arange(widest).int().to("spyre"), cells.int().to("spyre"),
    )  # fmt: skip
    written, right = expected(form, given, "mixed")
    torch.testing.assert_close(out.cpu(), right, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(cache[1:].cpu(), written[1:], atol=0, rtol=0, equal_nan=True)


def test_the_stride_of_a_lone_head_makes_no_graph() -> None:
    form = Form(0.5)
    before = write_and_decode(form).graphs
    for tokens in (3, 1, 8):  # a model's own graph gives strides that depend on them
        shape, strides = (tokens, 1, DEPTH), (DEPTH, tokens * DEPTH, 1)
        new = torch.arange(1.0, tokens * DEPTH + 1)
        key, value = (x.to("spyre").as_strided(shape, strides) for x in (new, -new))
        cache = torch.zeros(2, 16, 1, 2 * DEPTH, device="spyre")
        slots = torch.arange(16, 16 + tokens).to("spyre")
        query = torch.zeros(tokens, 2, DEPTH, device="spyre")
        rows = (torch.ones(tokens, 4).int(), torch.ones(tokens).int())
        table, lengths = (x.to("spyre") for x in rows)
        write_and_decode(form)(
            torch.empty_like(query), query, key, value, cache, slots, table[:, :1], lengths
        )
        written = cache.cpu().view(32, 2 * DEPTH)
        each = new.view(tokens, DEPTH)
        assert torch.equal(written[16 : 16 + tokens], torch.cat([each, -each], 1))
        assert not written[:16].any()
        assert not written[16 + tokens :].any()
    assert write_and_decode(form).graphs == before + 1


def test_one_graph_and_one_launch_serve_all_steps() -> None:
    from openspyre.runtime.profiler import profile

    form = Form(0.25)
    for name in STEPS:
        given = step(name, 16, torch.float16)
        query, (key, value, cache, slots), tables = given.on_card()
        out = torch.empty_like(query)
        graph = write_and_attend(form)
        graph.prepared(out, query, key, value, cache, slots, *tables)
        with profile() as measured:
            graph(out, query, key, value, cache, slots, *tables)
        assert len(measured.kernels) == 1
    assert write_and_attend(form).graphs == 1


@pytest.mark.parametrize(
    ("queries", "contexts", "runs"),
    [
        ((), (), []),
        ((1,), (1,), [(0, 1)]),
        ((1,) * 8, (100,) * 8, [(0, 8)]),
        ((1, 1, 512), (100, 90, 512), [(0, 2), (2, 3)]),
        ((512, 500), (512, 512), [(0, 2)]),
        ((513, 500), (513, 512), [(0, 1), (1, 2)]),
        ((1, 1, 1), (100, 90, 30_000), [(0, 3)]),
        ((1,) * 4, (100, 100, 100, 120_000), [(0, 3), (3, 4)]),
        ((9,) * 200, (9,) * 200, [(0, 113), (113, 200)]),
    ],
)
def test_what_lies_together_is_alike(
    queries: tuple[int, ...], contexts: tuple[int, ...], runs: list[tuple[int, int]]
) -> None:
    assert rectangles(queries, contexts, 1024) == runs
