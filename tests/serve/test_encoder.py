"""Attention without a cache: values, what lies behind a row, one launch, one graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import openspyre
from openspyre.errors import Unsupported
from openspyre.runtime.profiler import profile
from openspyre.vllm.encoder import attend_whole
from openspyre.vllm.paged import Form

openspyre.require()
HEADS, SHARED, DEPTH = 6, 2, 20
FORMS = {
    "plain": Form(DEPTH**-0.5),
    "window and cap": Form(0.3, window=5, cap=2.0),
}
BATCHES = {"mixed": (3, 17, 1, 40), "alike": (9, 9), "one": (23,), "one token": (1,)}


def drawn(name: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Queries, keys and values of a batch, one request behind the other."""
    made = torch.Generator().manual_seed(len(name))
    tokens = sum(BATCHES[name])
    return tuple(
        torch.randn(tokens, heads, DEPTH, generator=made).to(dtype)
        for heads in (HEADS, SHARED, SHARED)
    )


def tables(name: str, device: str = "spyre") -> tuple[Tensor, ...]:
    lengths = np.array(BATCHES[name])
    bounds = torch.tensor([0, *lengths]).cumsum(0).int()
    cells = [row * lengths.max() + n for row, length in enumerate(lengths) for n in range(length)]
    columns = torch.arange(int(lengths.max())).int()
    made = (bounds[:-1], bounds[1:], columns, torch.tensor(cells).int())
    return tuple(table.to(device) for table in made)


def expected(form: Form, name: str, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Request by request in float64."""
    out, first = torch.empty_like(query), 0
    for length in BATCHES[name]:
        here = slice(first, first + length)
        k, v = (x[here].double().repeat_interleave(HEADS // SHARED, 1) for x in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[here].double(), k) * form.scale
        if form.cap:
            scores = form.cap * torch.tanh(scores / form.cap)
        at = torch.arange(length)
        hidden = ((at[:, None] - at).abs() >= form.window) & bool(form.window)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out[here] = torch.einsum("hqk,khd->qhd", weights, v).to(out.dtype)
        first += length
    return out


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("form", FORMS)
def test_values(form: str, name: str) -> None:
    assert_right(form, name, torch.float32, 2e-5)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
def test_halves(dtype: torch.dtype, close: float) -> None:
    assert_right("plain", "mixed", dtype, close)


def assert_right(form: str, name: str, dtype: torch.dtype, close: float) -> None:
    given = drawn(name, dtype)
    query, key, value = (x.to("spyre") for x in given)
    out = torch.full_like(query, torch.nan)
    attend_whole(FORMS[form])(out, query, key, value, *tables(name))
    right = expected(FORMS[form], name, *given)
    torch.testing.assert_close(out.cpu(), right, atol=close, rtol=close)


def test_what_another_request_has_is_not_seen() -> None:
    """NaN and infinities of a request stay its own, though rows lie in one rectangle."""
    form, name = FORMS["plain"], "mixed"
    query, key, value = drawn(name, torch.float32)
    right = expected(form, name, query, key, value)
    ill = slice(3, 20)  # the second request
    for of, filled in ((query, torch.nan), (key, torch.inf), (value, torch.nan)):
        of[ill] = filled
    out = torch.zeros_like(query).to("spyre")
    attend_whole(form)(out, *(x.to("spyre") for x in (query, key, value)), *tables(name))
    got = out.cpu()
    assert got[ill].isnan().all()
    for well in (slice(0, 3), slice(20, None)):
        torch.testing.assert_close(got[well], right[well], atol=2e-5, rtol=2e-5)


def test_one_graph_and_one_launch_serve_all_batches() -> None:
    form = Form(0.25)
    for name in BATCHES:
        query, key, value = (x.to("spyre") for x in drawn(name, torch.float16))
        arguments = (torch.empty_like(query), query, key, value, *tables(name))
        attend_whole(form).prepared(*arguments)
        with profile() as measured:
            attend_whole(form)(*arguments)
        assert len(measured.kernels) == 1
    assert attend_whole(form).graphs == 1


def test_terms_that_scores_do_not_have_are_refused() -> None:
    from openspyre.vllm.attention import refuse_terms

    refuse_terms(None, None)
    with pytest.raises(Unsupported, match="attention with ALiBi"):
        refuse_terms([0.5], None)
    with pytest.raises(Unsupported, match="attention with sinks"):
        refuse_terms(None, torch.zeros(2))
