"""Weights that stay in LX between launches: found there, and never old ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import openspyre
from openspyre.runtime.profiler import profile
from openspyre.runtime.recording import recorded
from openspyre.runtime.replay import replayed
from openspyre.runtime.traced import Tracer
from openspyre.spec import SPYRE_CARD_V1
from openspyre.tools.explained import explained
from openspyre.tools.run_report import report_of
from tests.compile.comparing import kernels_in, moved, tensor
from tests.device.conftest import fresh_python


class Model(nn.Module):
    """A weight for several cores, one that each has whole, one that is read twice."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.up = nn.Linear(96, 200)
        self.norm = nn.LayerNorm(200)
        self.down = nn.Linear(200, 96)
        self.register_buffer("scale", torch.rand(96) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(self.norm(nn.functional.gelu(self.up(x * self.scale))))
        return y * self.scale + torch.nn.functional.linear(x, self.down.weight.t()).sum(-1, True)


class Pair:
    """A model on the CPU, its copy on the card, and that compiled."""

    def __init__(self, seed: int = 0) -> None:
        self.host = Model(seed).eval()
        self.card = Model(seed).eval().to("spyre")
        self.compiled = torch.compile(self.card, dynamic=False, fullgraph=True)
        self.x = tensor(40, 96, seed=seed)
        self.on_card = moved(self.x)

    def both(self, act: Callable[[Model], object]) -> None:
        with torch.no_grad():
            act(self.host)
            act(self.card)

    def right(self) -> None:
        with torch.no_grad(), openspyre.hint(weights="lx"):
            found = self.compiled(self.on_card)
            torch.testing.assert_close(found.cpu(), self.host(self.x), **CLOSE)

    def counts(self) -> tuple[int, int]:
        """(launches that loaded weights, launches that found them), where LX holds some."""
        (one,) = torch.spyre.lx_residents()
        return one.loads, one.hits


CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module")
def compiled() -> Iterator[Pair]:
    torch._dynamo.reset()
    yield Pair()
    torch._dynamo.reset()


@pytest.fixture
def pair(compiled: Pair) -> Pair:
    """Its weights are in LX."""
    torch.spyre.evict_lx()
    compiled.right()
    compiled.right()
    return compiled


def test_a_later_launch_finds_the_weights(pair: Pair) -> None:
    loads, hits = pair.counts()
    pair.right()
    assert pair.counts() == (loads, hits + 1)
    (one,) = torch.spyre.lx_residents()
    weights = sum(t.nbytes for t in (*pair.host.parameters(), *pair.host.buffers()))
    assert one.bytes > weights
    assert torch.spyre.memory_stats()["lx_kept_bytes"] == one.bytes
    torch.spyre.evict_lx()
    assert torch.spyre.lx_residents() == ()
    assert torch.spyre.memory_stats()["lx_kept_bytes"] == 0


def replaced(model: Model) -> None:
    model.up.weight.data = torch.ones_like(model.up.weight.data) * 0.1


def optimized(model: Model) -> None:
    weights = list(model.parameters())
    for number, weight in enumerate(weights):
        weight.grad = torch.full_like(weight, 0.1 * (number + 1))
    torch.optim.SGD(weights, lr=0.5).step()
    for weight in weights:
        weight.grad = None


def storage_copied(model: Model) -> None:
    other = torch.full_like(model.down.weight.data, 0.25).untyped_storage()
    model.down.weight.data.untyped_storage().copy_(other)


CHANGES: dict[str, Callable[[Model], object]] = {
    "add_": lambda m: m.up.weight.data.add_(0.5),
    "copy_": lambda m: m.norm.bias.copy_(torch.arange(200.0)),
    "fill_": lambda m: m.down.bias.fill_(3),
    "one element": lambda m: m.up.weight.data.__setitem__((199, 95), 9.0),
    "a view": lambda m: m.down.weight.data.view(-1)[7:9].mul_(-2),
    "a buffer": lambda m: m.scale.mul_(1.5),
    "random": lambda m: nn.init.constant_(m.norm.weight, 0.7),
    "data": replaced,
    "optimizer": optimized,
    "load_state_dict": lambda m: m.load_state_dict(Model(seed=5).state_dict()),
    "storage": storage_copied,
    "to and back": lambda m: m.to(torch.float64 if m.scale.is_cpu else torch.float32).float(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_change_are_loaded_again(pair: Pair, change: str) -> None:
    loads, hits = pair.counts()
    pair.both(CHANGES[change])
    pair.right()
    if change != "to and back":
        assert pair.counts() == (loads + 1, hits)
    pair.right()
    assert pair.counts()[1] == hits + 1 + (change == "to and back")


def filled(value: float) -> Callable[[Model], object]:
    return lambda m: m.up.bias.fill_(value)


def test_a_change_from_another_stream(pair: Pair) -> None:
    side = torch.Stream("spyre")
    for value in range(3):
        side.wait_stream(torch.accelerator.current_stream())
        with side:
            pair.both(filled(value))
        torch.accelerator.current_stream().wait_stream(side)
        pair.right()


def test_launches_on_two_streams(pair: Pair) -> None:
    side = torch.Stream("spyre")
    side.wait_stream(torch.accelerator.current_stream())
    wanted = pair.host(pair.x)
    with torch.no_grad(), openspyre.hint(weights="lx"):
        for _ in range(5):
            here = pair.compiled(pair.on_card)
            with side:
                there = pair.compiled(pair.on_card)
            torch.accelerator.synchronize()
            torch.testing.assert_close(here.cpu(), wanted, **CLOSE)
            torch.testing.assert_close(there.cpu(), wanted, **CLOSE)


def test_a_kernel_that_needs_all_of_lx(pair: Pair) -> None:
    x = torch.ones(32, 200_000)
    for _ in range(2):
        torch.testing.assert_close(torch.cumsum(moved(x), -1).cpu(), torch.cumsum(x, -1))
        assert torch.spyre.lx_residents() == ()
        pair.right()


def test_memory_that_is_freed_and_used_again() -> None:
    torch._dynamo.reset()
    first = Pair(seed=1)
    first.right()
    first.right()
    addresses = {p.data_ptr() for p in first.card.parameters()}
    first.card.to("cpu")
    again = [torch.randn(200, 96, device="spyre") for _ in range(6)]
    assert addresses & {t.data_ptr() for t in again}
    first.card.to("spyre")
    first.right()


def test_two_models_in_turn() -> None:
    torch._dynamo.reset()
    one, other = Pair(seed=2), Pair(seed=3)
    for _ in range(3):
        one.right()
        other.right()
    other.right()
    assert len(torch.spyre.lx_residents()) == 1


def test_two_threads() -> None:
    torch._dynamo.reset()
    pairs = [Pair(seed=2), Pair(seed=3)]
    for pair in pairs:
        pair.right()
    failed: list[Exception] = []

    def work(pair: Pair) -> None:
        try:
            for value in range(10):
                pair.both(filled(value))
                pair.right()
                pair.right()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(pair,)) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


def test_it_costs_less_card_time(pair: Pair) -> None:
    def elapsed() -> float:
        start, end = torch.Event("spyre", enable_timing=True), torch.Event(enable_timing=True)
        start.record()
        with torch.no_grad(), openspyre.hint(weights="lx"):
            pair.compiled(pair.on_card)
        end.record()
        torch.accelerator.synchronize()
        return float(start.elapsed_time(end))

    torch.spyre.evict_lx()
    first, later, again = elapsed(), elapsed(), elapsed()
    assert first > later == again
    pair.both(lambda m: m.up.bias.fill_(1))
    assert elapsed() == first
    torch.spyre.evict_lx()
    with profile() as seen:
        for _ in range(4):
            pair.right()
    (use,) = [one for one in seen.kernels if one.kept]
    assert (use.launches, use.kept) == (4, 3)
    assert use.microseconds == pytest.approx((first + 3 * later) * 1000, rel=1e-6)


def test_training_sees_every_step() -> None:
    torch._dynamo.reset()
    host, card = Model(seed=4), Model(seed=4).to("spyre")
    compiled = torch.compile(card, dynamic=False)
    x = tensor(24, 96)
    for model, call, given in ((host, host, x), (card, compiled, moved(x))):
        steps = torch.optim.SGD(model.parameters(), lr=1e-3)
        with openspyre.hint(weights="lx"):
            for _ in range(3):
                steps.zero_grad()
                call(given).square().mean().backward()
                steps.step()
    for ours, theirs in zip(card.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-3, atol=1e-4)


def test_sizes_that_change() -> None:
    torch._dynamo.reset()
    host, card = Model(seed=6).eval(), Model(seed=6).eval().to("spyre")
    compiled = torch.compile(card, dynamic=True)
    with torch.no_grad(), openspyre.hint(weights="lx"):
        for rows in (5, 40, 33, 1, 40, 7):
            x = tensor(rows, 96)
            torch.testing.assert_close(compiled(moved(x)).cpu(), host(x), **CLOSE)


TWO_CARDS = """
import torch, openspyre
openspyre.require()
def model(device):
    torch.manual_seed(0)
    return torch.nn.Linear(64, 96).eval().to(device)
host, cards = model("cpu"), [model(f"spyre:{n}") for n in (0, 1)]
x = torch.ones(8, 64)
with torch.no_grad(), openspyre.hint(weights="lx"):
    calls = [torch.compile(card, dynamic=False) for card in cards]
    for step in range(4):
        for n in (0, 1):
            with torch.spyre.device(n):
                torch.testing.assert_close(calls[n](x.to(f"spyre:{n}")).cpu(), host(x))
                (kept,) = torch.spyre.lx_residents(n)
                assert (kept.loads, kept.hits) == ((1, step) if step < 2 else (2, step - 1))
        if step == 1:
            for one in (host, *cards):
                one.weight.data.mul_(2)
            cards[1].bias.data.copy_(cards[0].bias.data)
torch.spyre.evict_lx(0)
assert not torch.spyre.lx_residents(0) and torch.spyre.lx_residents(1)
print("done")
"""


def test_two_cards_in_debug_modes(tmp_path: Path) -> None:
    done = fresh_python(
        TWO_CARDS, tmp_path, OPENSPYRE_DEVICES="2", OPENSPYRE_DEBUG="late,poison",
        OPENSPYRE_MEMORY="64MiB",
    )  # fmt: skip
    assert done.stdout == "done\n", done.stderr


# --- what is marked ------------------------------------------------------------------------------


def texts(act: Callable[..., Any], *args: Any, **hint: Any) -> list[Any]:
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    with torch.no_grad(), openspyre.hint(**hint) if hint else torch.no_grad():
        _, code = run_and_get_code(torch.compile(act, dynamic=False), *args)
    return kernels_in(code)


def test_parameters_and_buffers_are_weights() -> None:
    model, x = Model().to("spyre"), moved(tensor(8, 96))
    (kernel,) = texts(model, x, weights="lx")
    tensors = [kernel.tensors[name] for name in kernel.weights]
    assert sorted(tuple(e.constant for e in t.shape) for t in tensors) == sorted(
        tuple(t.shape) for t in (*model.parameters(), *model.buffers())
    )
    (plain,) = texts(model, x)
    assert plain.weights == ()
    (told,) = texts(model, x, weights="device")
    assert told.weights == ()


def test_what_a_graph_changes_is_no_weight() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64, 64))
            self.register_buffer("seen", torch.zeros(64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.add_(1)
            return x @ self.weight + self.seen

    host, card = Counting(), Counting().to("spyre")
    x = tensor(8, 64)
    (kernel,) = texts(card, moved(x), weights="lx")
    assert len(kernel.weights) == 1
    host(x)
    with torch.no_grad(), openspyre.hint(weights="lx"):
        compiled = torch.compile(card, dynamic=False)
        for _ in range(3):
            torch.testing.assert_close(compiled(moved(x)).cpu(), host(x))


def test_a_wrong_hint() -> None:
    with pytest.raises(openspyre.InvalidHint, match="weights: sram means nothing"):
        openspyre.hint(weights="sram").__enter__()


# --- what tools say ------------------------------------------------------------------------------


def test_a_captured_run_replays_and_its_report_adds_up(pair: Pair) -> None:
    torch.spyre.evict_lx()
    with recorded("kept", inputs=1 << 24) as recorder:
        for _ in range(3):
            pair.right()
    (kernel,) = [one for one in recorder.run.kernels if one.uses and one.uses[0].kept]
    (use,) = kernel.uses
    assert (use.launches, use.kept) == (3, 2)
    (outcome,) = replayed(kernel, SPYRE_CARD_V1)
    assert outcome.ran
    assert outcome.ok
    with Tracer(SPYRE_CARD_V1) as tracer:
        later = tracer.kept_report(kernel, use)
    report = report_of(recorder.run)
    (shown,) = [one for one in report["kernels"] if one["name"] == kernel.name]
    assert shown["cycles"] == use.report["cycles"] + 2 * later.cycles
    assert any("2 of 3 launches" in note for note in report["notes"])
    (explained_kernel,) = [k for k in explained(recorder.run.kernels, SPYRE_CARD_V1) if k["steps"]]
    assert explained_kernel["steps"][0]["name"] == "keep0"
