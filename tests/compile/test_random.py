"""Random numbers inside compiled graphs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import dropout

from tests.compile.comparing import fallbacks_in, generated, kernels_in

N = 20_000


def draws(x: Tensor) -> tuple[Tensor, ...]:
    return (
        torch.rand_like(x),
        torch.randn(x.shape, device=x.device),
        torch.randint(-3, 7, x.shape, device=x.device),
        x.clone().uniform_(2, 3),
        x.clone().bernoulli_(0.25),
        x.clone().exponential_(),
        dropout(x, 0.25),
    )


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, **options)


def on_cpu(found: tuple[Tensor, ...]) -> list[Tensor]:
    return [t.cpu() for t in found]


def same(a: list[Tensor], b: list[Tensor]) -> list[bool]:
    return [torch.equal(x, y) for x, y in zip(a, b, strict=True)]


def test_a_seed_repeats_a_call() -> None:
    call, x = compiled(draws), torch.ones(50, 30, device="spyre")
    state = torch.get_rng_state()
    torch.spyre.manual_seed(1)
    first, second = on_cpu(call(x)), on_cpu(call(x))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    assert all(same(on_cpu(call(x)), first))
    assert all(same(on_cpu(call(x)), second))
    assert not any(same(first, second))
    torch.manual_seed(2)
    assert not any(same(on_cpu(call(x)), first))


def test_only_seeds_leave_the_kernel() -> None:
    code = generated(draws, torch.ones(50, 30))
    # Inductor itself decomposes no aten.uniform; on the card the call is a kernel of its own.
    assert fallbacks_in(code) == ["aten.randint.low_out(", "torch.ops.aten.uniform.default("]
    assert len(kernels_in(code)) == 1
    torch.spyre.reset_fallbacks()
    compiled(draws)(torch.ones(50, 30, device="spyre"))
    assert torch.spyre.fallbacks() == {}


def test_values_follow_their_distributions() -> None:
    torch.spyre.manual_seed(3)
    found = compiled(draws)(torch.ones(100, N // 100, device="spyre"))
    rand, randn, integers, uniform, chance, exponential, dropped = (
        t.cpu().double().flatten().sort().values for t in found
    )
    bound, steps = 1.95 / math.sqrt(N), (torch.arange(N) + 0.5) / N
    assert 0 <= rand[0] <= rand[-1] < 1
    assert (rand - steps).abs().max() < bound
    assert (torch.special.ndtr(randn) - steps).abs().max() < bound
    assert ((uniform - 2) - steps).abs().max() < bound
    assert (1 - (-exponential).exp() - steps).abs().max() < bound
    counts = integers.long().add(3).bincount()
    assert len(counts) == 10
    assert ((counts - N / 10) ** 2 / (N / 10)).sum() < 35
    assert abs(chance.mean() - 0.25) < 4 * math.sqrt(0.1875 / N)
    assert abs((dropped != 0).double().mean() - 0.75) < 4 * math.sqrt(0.1875 / N)
    torch.testing.assert_close(dropped[-1].item(), 1 / 0.75)


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_the_shape_does_not_matter(mode: str) -> None:
    """Whatever tiles and cores a size gets: element n is the same."""

    def function(x: Tensor) -> Tensor:
        return torch.randn_like(x) + torch.rand_like(x)

    call = compiled(function, dynamic=mode == "dynamic")
    torch.spyre.manual_seed(4)
    long = call(torch.ones(30_000, device="spyre")).cpu()
    for shape in ((3,), (65,), (1000,), (31, 7), (4, 3, 130), (2000, 15)):
        torch.spyre.manual_seed(4)
        found = call(torch.ones(shape, device="spyre")).cpu().flatten()
        assert torch.equal(found, long[: found.numel()]), shape


def test_dropout_backward_uses_the_mask_of_the_forward() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return dropout(dropout(x @ w, 0.5).relu() + 1, 0.3)

    call = compiled(function)
    x = torch.ones(40, 8, device="spyre")
    w = torch.ones(8, 25, device="spyre", requires_grad=True)
    bias = torch.zeros(40, 25, device="spyre", requires_grad=True)
    out = call(x, w) + bias
    out.sum().backward()
    kept = (out != 0).cpu()
    first_kept = kept & (out.cpu() > 2)  # 8 * 2 + 1 after both, otherwise 1
    expected = first_kept.sum(0) * (2 / 0.7)
    torch.testing.assert_close(w.grad.cpu(), expected.expand(8, 25), rtol=1e-5, atol=1e-5)


def test_training_a_model_repeats() -> None:
    def losses() -> list[float]:
        torch.manual_seed(5)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.ReLU(), torch.nn.Linear(16, 1)
        ).to("spyre")
        call = compiled(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        x, found = torch.randn(32, 8, device="spyre"), []
        for _ in range(3):
            loss = (call(x) - 1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    first = losses()
    assert len(set(first)) == 3
    assert losses() == first


def test_fallback_random_gives_the_eager_values() -> None:
    x = torch.ones(20, 30, device="spyre")
    torch.manual_seed(6)
    eager = on_cpu(draws(x))
    torch.manual_seed(6)
    call = compiled(draws, options={"fallback_random": True})
    assert all(same(on_cpu(call(x)), eager))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_floats(dtype: torch.dtype) -> None:
    x = torch.ones(100, 50, device="spyre", dtype=dtype)
    found = compiled(lambda x: (torch.rand_like(x), torch.randn_like(x), dropout(x, 0.5)))(x)
    assert all(t.dtype == dtype for t in found)
    assert abs(found[0].float().mean().item() - 0.5) < 0.02
    assert abs(found[1].float().std().item() - 1) < 0.05


@pytest.mark.parametrize(("low", "high"), [(0, 2), (-(2**40), 2**40), (-(2**63), 2**63 - 1)])
def test_ranges_of_integers(low: int, high: int) -> None:
    torch.spyre.manual_seed(7)
    call = compiled(lambda: torch.randint(low, high, (N,), device="spyre"))
    drawn = call().cpu()
    assert drawn.min() >= low
    assert drawn.max() < high
    assert abs((drawn > (low + high) // 2 - (high == 2)).double().mean() - 0.5) < 2 / math.sqrt(N)
