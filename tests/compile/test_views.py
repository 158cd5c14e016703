"""Views in compiled graphs: read, written, made inside, and inputs that share memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._inductor import config

from tests.view_chains import DTYPES, SHAPES, Chain, base, chains, seen

READS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add": torch.add,
    "where": lambda a, b: torch.where(a > b, a, b),
    "sum": lambda a, _: a.sum(-1),
    "softmax": lambda a, _: torch.softmax(a.float(), -1),
    "cumsum": lambda a, _: a.float().cumsum(0),
    "cat": lambda a, _: torch.cat([a, a], -1) if a.dim() else a.clone(),
    "flip": lambda a, _: a.flip(tuple(range(a.dim()))),
    "reshape": lambda a, _: a.reshape(-1).clone(),
    "matmul": lambda a, _: a.float() @ a.float().transpose(-1, -2) if a.dim() > 1 else a * 2,
    "pad": lambda a, _: torch.nn.functional.pad(a, (1, 2)) if a.dim() else a.clone(),
    "view": lambda a, _: a[..., ::2] if a.dim() else a,
}


@pytest.fixture(autouse=True)
def uncached() -> Any:
    """Torch's cache of graphs does not tell apart which inputs share memory (2.13)."""
    torch._dynamo.reset()
    with (
        config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield


def same(ours: Any, theirs: Any) -> None:
    leaves = torch.utils._pytree.tree_leaves
    for a, b in zip(leaves(ours), leaves(theirs), strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-4, equal_nan=True)


@st.composite
def examples(draw: Any, *, plain: bool) -> tuple[torch.Tensor, list[Chain]]:
    start = base(draw(st.sampled_from(SHAPES)), draw(st.sampled_from(DTYPES)))
    return start, [draw(chains(start, plain=plain)) for _ in range(2)]


def in_graph(function: Callable[..., Any], dynamic: bool) -> Callable[..., Any]:
    torch._dynamo.reset()
    compiled: Callable[..., Any] = torch.compile(function, dynamic=dynamic)
    return compiled


def possible(function: Callable[..., Any], *args: Any) -> bool:
    try:
        function(*args)
    except (RuntimeError, IndexError):
        return False
    return True


@settings(max_examples=30)
@given(examples(plain=False), st.sampled_from(sorted(READS)), st.booleans(), st.booleans())
def test_views_are_read(
    example: tuple[torch.Tensor, list[Chain]], name: str, inside: bool, dynamic: bool
) -> None:
    start, views = example
    card = start.to("spyre")
    if inside:
        inputs, ours = (start,), (card,)
        function = lambda x: READS[name](*(seen(x, v) for v in views))  # noqa: E731
    else:
        inputs, ours = (tuple(seen(x, v) for v in views) for x in (start, card))
        function = READS[name]
    if possible(function, *inputs):
        same(in_graph(function, dynamic)(*ours), function(*inputs))


@settings(max_examples=20)
@given(examples(plain=True), st.booleans(), st.booleans())
def test_views_are_written(
    example: tuple[torch.Tensor, list[Chain]], inside: bool, dynamic: bool
) -> None:
    start, views = example
    card = start.to("spyre")

    def changed(x: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
        view.copy_(view.flip(tuple(range(view.dim()))))
        view.mul_(view)
        return x + 1

    if inside:
        function = in_graph(lambda x: changed(x, seen(x, views[0])), dynamic)
        same(function(card), changed(start, seen(start, views[0])))
    else:
        function = in_graph(changed, dynamic)
        same(function(card, seen(card, views[0])), changed(start, seen(start, views[0])))
    same(card, start)


ALIASES: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "one tensor twice": lambda x: (x, x),
    "two halves": lambda x: (x[:3], x[3:]),
    "overlapping rows": lambda x: (x[:4], x[2:]),
    "transposed": lambda x: (x, x.t()),
    "shifted": lambda x: (x.view(-1)[:30], x.view(-1)[6:]),
    "interleaved": lambda x: (x[::2], x[1::2]),
    "a view of itself": lambda x: (x, x.view(6, 6)),
    "windows": lambda x: (x.view(-1)[:30].view(6, 5), x.view(-1).unfold(0, 5, 6)),
    "one row": lambda x: (x, x[2].expand(6, 6)),
}


def add_into(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a.copy_(a + b)
    return a * 2, b + 1


def flip_into(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.copy_(b.flip(0))
    return b + 1


@pytest.mark.parametrize(("function", "dynamic"), [(add_into, False), (flip_into, True)])
@pytest.mark.parametrize("alias", ALIASES)
def test_a_changed_input_shares_memory_with_another(
    alias: str, function: Callable[..., Any], dynamic: bool
) -> None:
    x = torch.arange(36.0).reshape(6, 6) % 7
    card = x.to("spyre")
    compiled = in_graph(function, dynamic)
    same(compiled(*ALIASES[alias](card)), function(*ALIASES[alias](x)))
    same(card, x)


@pytest.mark.parametrize("function", [add_into, flip_into])
def test_the_way_inputs_share_memory_may_change(function: Callable[..., Any]) -> None:
    compiled = in_graph(function, False)
    for alias in (
        "two halves",
        "overlapping rows",
        "two halves",
        "interleaved",
        "one tensor twice",
    ):
        x = torch.arange(36.0).reshape(6, 6) % 7
        card = x.to("spyre")
        same(compiled(*ALIASES[alias](card)), function(*ALIASES[alias](x)))
        same(card, x)


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.copy_(a.flip(0)),
        lambda a: a[1:].copy_(a[:-1].clone()),
        lambda a: a[1:].add_(a[:-1].clone()),
        lambda a: a.add_(a.t().clone()),
        lambda a: a.copy_(a.roll(1, 0) * 2 + a.roll(2, 1)),
        lambda a: a.copy_(a.cumsum(0)),
        lambda a: a.copy_(a @ a),
        lambda a: a.copy_(torch.softmax(a.flip(1), 0)),
    ],
)  # fmt: skip
def test_an_input_is_read_before_it_changes(change: Callable[[torch.Tensor], Any]) -> None:
    def function(a: torch.Tensor) -> torch.Tensor:
        change(a)
        return a * 1

    x = torch.arange(36.0).reshape(6, 6) % 7
    card = x.to("spyre")
    same(in_graph(function, False)(card), function(x))
    same(card, x)


def test_a_write_into_elements_that_share_a_place_is_refused() -> None:
    x = torch.arange(10.0, device="spyre")
    with pytest.raises(Exception, match=r"a write into .*, several of whose elements lie in one"):
        in_graph(lambda a: a.mul_(2), False)(x.unfold(0, 3, 2))
    assert x.tolist() == list(range(10))
