"""`openspyre.hint` around compiled functions: what it reaches, and what is compiled again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import openspyre
from openspyre.errors import InvalidHint
from openspyre.frontend.hints import hints_text
from openspyre.ir.kernel import Kernel
from openspyre.ir.text import parse_kernel
from openspyre.runtime import launch
from tests.compile.comparing import kernels_in, moved

X = torch.randn(60, 96, generator=torch.Generator().manual_seed(0))


def rows(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


@pytest.fixture
def compiled() -> Iterator[Callable[..., Any]]:
    torch._dynamo.reset()
    counters.clear()
    yield torch.compile(rows, fullgraph=True, dynamic=False)
    torch._dynamo.reset()


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """Every kernel that is loaded from here on, equal ones too."""
    found: list[Kernel] = []
    plain = launch.load_kernel

    def load(text: str) -> Any:
        found.append(parse_kernel(text))
        return plain(text)

    monkeypatch.setattr(launch, "load_kernel", load)
    return found


def right(call: Callable[..., Any]) -> None:
    torch.testing.assert_close(call(moved(X)).cpu(), rows(X))


def shown(loaded: list[Kernel]) -> list[list[str]]:
    return [[str(hint) for hint in kernel.hints] for kernel in loaded]


def test_a_function_is_compiled_for_the_hint_that_is_in_force(
    compiled: Callable[..., Any], loaded: list[Kernel]
) -> None:
    right(compiled)
    with openspyre.hint(division={"i0": 4}):
        right(compiled)
        right(compiled)
    right(compiled)
    assert counters["stats"]["unique_graphs"] == 2
    with openspyre.hint(division={"i0": 5}, tile={"i0": 6}):
        right(compiled)
    with openspyre.hint(division={"i0": 4}):  # as before: nothing to compile
        right(compiled)
    assert counters["stats"]["unique_graphs"] == 3
    assert shown(loaded) == [[], ["division i0: 4"], ["division i0: 5", "tile i0: 6"]]


@pytest.mark.parametrize("first", [None, 4])
def test_the_cache_of_graphs_tells_hints_apart(
    compiled: Callable[..., Any], loaded: list[Kernel], first: int | None
) -> None:
    """Inductor's cache on disk: what one context compiled is not another one's."""
    for parts in (first, 2, first):
        torch._dynamo.reset()
        with openspyre.hint(division={"i0": parts}) if parts else nullcontext():
            right(compiled)
    wanted = [f"division i0: {first}"] if first else []
    assert shown(loaded) == [wanted, ["division i0: 2"], wanted]


def test_contexts_nest(compiled: Callable[..., Any], loaded: list[Kernel]) -> None:
    with ExitStack() as stack:
        stack.enter_context(openspyre.hint(division={"i0": 4}, tile={"i0": 3}))
        stack.enter_context(openspyre.hint(division={"i0": 5}))
        right(compiled)
    assert shown(loaded) == [["division i0: 5", "tile i0: 3"]]
    assert hints_text() == ""


def test_a_hint_is_for_the_kernels_that_it_names(
    compiled: Callable[..., Any], loaded: list[Kernel]
) -> None:
    with openspyre.hint(division={"i0": 3}, kernel="*softmax*"):
        right(compiled)
    with openspyre.hint(division={"i9": 3}, kernel="other"):
        right(compiled)
    assert shown(loaded) == [["division i0: 3"], []]


def test_a_wrong_hint_is_an_error_of_the_call(compiled: Callable[..., Any]) -> None:
    for _ in range(2):
        with (
            openspyre.hint(division={"rows": 3}),
            pytest.raises(InvalidHint, match=r"division rows: 3 names no dim .*\n.*\n.*one of s0"),
        ):
            compiled(moved(X))
    right(compiled)  # the next call outside is none


def test_the_error_names_no_inner_exception(compiled: Callable[..., Any]) -> None:
    with (
        openspyre.hint(tile={"i0": 61}),
        pytest.raises(openspyre.SpyreError, match="at most") as caught,
    ):
        compiled(moved(X))
    assert isinstance(caught.value, openspyre.InvalidHint)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"division": {"i0": 33}}, "it has 32 cores"),
        ({"division": {"i0": 0}}, "a number from 1 on"),
        ({"division": {"i0": True}}, "a number from 1 on"),
        ({"tile": {"i0": -1}}, "a number from 1 on"),
        ({"tile": {"i 0": 1}}, "no name of a dim"),
        ({"residency": {"buf0": "cache"}}, "device or lx"),
        ({}, "says nothing"),
    ],
)
def test_what_no_kernel_can_follow_is_refused_at_once(given: Any, said: str) -> None:
    with pytest.raises(InvalidHint, match=said), openspyre.hint(**given):
        pass
    assert hints_text() == ""


def test_other_threads_are_told_nothing(compiled: Callable[..., Any]) -> None:
    seen: list[str] = []
    with openspyre.hint(division={"i0": 4}):
        thread = threading.Thread(target=lambda: seen.append(hints_text()))
        thread.start()
        thread.join()
    assert seen == [""]


def test_eager_ops_follow_no_hints() -> None:
    with openspyre.hint(division={"i0": 4}):
        y = moved(X) * 3.25 + 1
    torch.testing.assert_close(y.cpu(), X * 3.25 + 1)


def test_hints_stand_in_the_generated_code() -> None:
    torch._dynamo.reset()
    from torch._inductor.utils import run_and_get_code

    with openspyre.hint(division={"i0": 6}):
        _, code = run_and_get_code(torch.compile(rows, dynamic=False), moved(X))
    (kernel,) = kernels_in(code)
    assert [str(h) for h in kernel.hints] == ["division i0: 6"]


def test_sizes_may_be_dynamic(loaded: list[Kernel]) -> None:
    torch._dynamo.reset()
    call = torch.compile(rows, fullgraph=True, dynamic=True)
    with openspyre.hint(division={"i0": 4}):
        for n in (60, 47, 5):
            torch.testing.assert_close(call(moved(X[:n])).cpu(), rows(X[:n]))
    assert shown(loaded) == [["division i0: 4"]]


def test_gradients_follow_the_context_of_the_call_of_backward(loaded: list[Kernel]) -> None:
    torch._dynamo.reset()
    call = torch.compile(lambda x: torch.tanh(x).sum(-1), fullgraph=True, dynamic=False)
    x = X.clone().requires_grad_()
    ours = X.to("spyre").requires_grad_()
    torch.tanh(x).sum().backward()
    with openspyre.hint(division={"i0": 3}):
        y = call(ours).sum()
        y.backward()
    torch.testing.assert_close(ours.grad.cpu(), x.grad)
    assert ["division i0: 3"] in shown(loaded)
    assert len(loaded) == 2
