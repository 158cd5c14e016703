"""Linear, attention and layer_norm: whole in a trace, stock outside it, with gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.compile.comparing import tensor


class Calls(TorchDispatchMode):
    """Records the names of dispatched ops."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


Function = Callable[..., torch.Tensor]
CASES: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "linear": (F.linear, (tensor(2, 3, 6), tensor(5, 6), tensor(5))),
    "linear_no_bias": (F.linear, (tensor(3, 6), tensor(5, 6))),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (6,), w, b),
        (tensor(2, 3, 6), tensor(6), tensor(6, seed=1)),
    ),
    "layer_norm_plain": (lambda x: F.layer_norm(x, (3, 6)), (tensor(2, 3, 6),)),
    "attention": (
        F.scaled_dot_product_attention,
        (tensor(2, 4, 5, 8), tensor(2, 4, 7, 8), tensor(2, 4, 7, 8, seed=1)),
    ),
    "attention_causal": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True),
        (tensor(2, 4, 5, 8), tensor(2, 4, 7, 8)),
    ),
    "attention_grouped_biased": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, enable_gqa=True),
        (tensor(2, 4, 5, 8), tensor(2, 2, 7, 8), tensor(2, 2, 7, 8, seed=1), tensor(2, 1, 5, 7)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    function, inputs = CASES[name]
    ours = [t.to("spyre").requires_grad_() for t in inputs]
    theirs = [t.clone().requires_grad_() for t in inputs]
    torch._dynamo.reset()
    torch.compile(function, fullgraph=True)(*ours).square().sum().backward()
    function(*theirs).square().sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        assert a.grad is not None
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_eager_calls_take_the_stock_composite(name: str) -> None:
    function, inputs = CASES[name]
    ours = [t.to("spyre").requires_grad_() for t in inputs]
    with Calls() as calls:
        result = function(*ours)
    assert not any("spyre." in c for c in calls.names)
    torch.testing.assert_close(result.detach().cpu(), function(*inputs), rtol=1e-4, atol=1e-4)
    result.sum().backward()
    assert all(t.grad is not None for t in ours)


def test_dropout_is_left_to_torch() -> None:
    q = tensor(2, 4, 5, 8).to("spyre")
    attend = torch.compile(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=1.0))
    assert attend(q).abs().max().item() == 0


def test_wrong_shapes_raise_while_tracing() -> None:
    x, w = tensor(3, 5).to("spyre"), tensor(4, 6).to("spyre")
    torch._dynamo.reset()
    with pytest.raises(Exception, match="linear"):
        torch.compile(F.linear, fullgraph=True)(x, w)
