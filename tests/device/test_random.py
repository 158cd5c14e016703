"""Random numbers: seeds govern the device's stream and no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "randn": lambda: torch.randn(5, device="spyre"),
    "rand": lambda: torch.rand(5, device="spyre"),
    "randint": lambda: torch.randint(100, (5,), device="spyre"),
    "randperm": lambda: torch.randperm(9, device="spyre"),
    "normal_": lambda: torch.empty(5, device="spyre").normal_(1, 2),
    "uniform_": lambda: torch.empty(5, device="spyre").uniform_(),
    "bernoulli": lambda: torch.full((20,), 0.5, device="spyre").bernoulli(),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(20, device="spyre")),
    "multinomial": lambda: torch.ones(9, device="spyre").multinomial(4),
    "exponential_": lambda: torch.empty(5, device="spyre").exponential_(),
    "randn_like": lambda: torch.randn_like(torch.empty(4, device="spyre")),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_repeats_a_draw(name: str) -> None:
    draw = DRAWS[name]
    torch.spyre.manual_seed(3)
    first = draw().cpu()
    second = draw().cpu()
    torch.manual_seed(3)
    assert torch.equal(draw().cpu(), first)
    assert torch.equal(draw().cpu(), second)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", DRAWS)
def test_the_cpu_stream_does_not_move(name: str) -> None:
    state = torch.get_rng_state()
    DRAWS[name]()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", DRAWS)
def test_the_cpu_stream_does_not_matter(name: str) -> None:
    torch.manual_seed(1)
    first = DRAWS[name]().cpu()
    torch.manual_seed(1)
    torch.rand(7)
    assert torch.equal(DRAWS[name]().cpu(), first)


def test_own_generators() -> None:
    one, two = torch.Generator("spyre"), torch.Generator("spyre")
    assert one.device == torch.device("spyre", 0)
    one.manual_seed(5), two.manual_seed(5)
    default = torch.spyre.get_rng_state()
    x = torch.randn(4, generator=one, device="spyre")
    assert torch.equal(x.cpu(), torch.empty(4, device="spyre").normal_(generator=two).cpu())
    assert torch.equal(torch.spyre.get_rng_state(), default)
    assert one.initial_seed() == 5
    three = torch.Generator("spyre")
    three.set_state(one.get_state())
    assert torch.equal(
        torch.rand(3, generator=one, device="spyre").cpu(),
        torch.rand(3, generator=three, device="spyre").cpu(),
    )
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, generator=torch.Generator("spyre"), device="cpu")


def test_states() -> None:
    state = torch.spyre.get_rng_state()
    first = torch.rand(3, device="spyre").cpu()
    torch.spyre.set_rng_state(state)
    assert torch.equal(torch.rand(3, device="spyre").cpu(), first)
    torch.spyre.manual_seed_all(11)
    assert torch.spyre.initial_seed() == 11
    assert len(torch.spyre.get_rng_state_all()) == torch.spyre.device_count()


def test_fork_rng() -> None:
    torch.spyre.manual_seed(4)
    with torch.random.fork_rng(devices=[0], device_type="spyre"):
        inside = torch.rand(3, device="spyre").cpu()
    assert torch.equal(torch.rand(3, device="spyre").cpu(), inside)
