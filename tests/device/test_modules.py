"""Modules, optimizers and autocast on the device."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))


def test_module_to_and_back() -> None:
    here = model()
    there = copy.deepcopy(here).to("spyre")
    assert all(p.is_spyre and p.is_leaf for p in there.parameters())
    x = torch.randn(4, 6)
    torch.testing.assert_close(there(x.to("spyre")).cpu(), here(x))
    assert there.cpu()[0].weight.device.type == "cpu"
    assert torch.equal(there[0].weight, here[0].weight)
    there.spyre()
    assert there[0].weight.is_spyre


def test_moving_keeps_the_parameters() -> None:
    """They are moved, not made anew: others hold them too."""
    net = model()
    before = dict(net.named_parameters())
    hooked: list[torch.device] = []
    net[0].weight.register_hook(lambda grad: hooked.append(grad.device))
    net(torch.randn(4, 6)).sum().backward()  # which leaves an accumulator of the CPU behind
    net.to("spyre")
    assert all(p is before[name] for name, p in net.named_parameters())
    assert all(p.is_spyre and p.grad is not None and p.grad.is_spyre for p in before.values())
    net.zero_grad()
    x = torch.randn(4, 6)
    net(x.to("spyre")).sum().backward()
    assert [device.type for device in hooked] == ["cpu", "spyre"]
    there = {name: p.grad.cpu() for name, p in before.items() if p.grad is not None}
    net.to("cpu", torch.float64)
    assert all(p is before[name] for name, p in net.named_parameters())
    net.zero_grad()
    net(x.double()).sum().backward()
    for name, p in before.items():
        assert p.grad is not None
        torch.testing.assert_close(p.grad, there[name].double(), atol=1e-5, rtol=1e-4)


def test_an_optimizer_made_before_the_move_goes_on() -> None:
    def train(device: str) -> torch.Tensor:
        net = model()
        steps = torch.optim.AdamW(net.parameters(), lr=0.05)
        x = torch.linspace(-1, 1, 24).reshape(4, 6)
        for place in ("cpu", device, device):  # moved after a step: its state stays behind
            net.to(place)
            for state in steps.state.values():
                state.update({k: v.to(place) for k, v in state.items() if k != "step"})
            steps.zero_grad()
            net(x.to(place)).square().mean().backward()
            steps.step()
        return torch.cat([p.detach().cpu().flatten() for p in net.parameters()])

    torch.testing.assert_close(train("spyre"), train("cpu"))


def test_tied_weights_stay_tied() -> None:
    net = nn.ModuleDict({"embed": nn.Embedding(50, 8), "head": nn.Linear(8, 50, bias=False)})
    net["head"].weight = net["embed"].weight
    torch.spyre.empty_cache()
    before = torch.spyre.memory_allocated()
    net.to("spyre")
    assert net["head"].weight is net["embed"].weight
    assert torch.spyre.memory_allocated() - before < 2 * 50 * 8 * 4
    assert net.to("cpu")["head"].weight is net["embed"].weight


def test_data_goes_from_device_to_device() -> None:
    here, there = torch.arange(6.0), torch.ones(2, 3, device="spyre").t()
    same = here
    here.data = there
    assert same.is_spyre
    assert (same.shape, same.stride()) == ((3, 2), (1, 3))
    same.data = torch.zeros(4, dtype=torch.int64)
    assert same.tolist() == [0, 0, 0, 0]
    for other in (torch.eye(3).to_sparse(), torch.ones(2, device="meta")):
        with pytest.raises(RuntimeError, match="incompatible tensor type"):
            there.data = other


def test_state_dicts() -> None:
    there = model().to("spyre")
    other = model()
    other.load_state_dict(there.state_dict())
    with torch.no_grad():
        there[0].weight.zero_()
    there.load_state_dict(other.state_dict())
    assert torch.equal(there[0].weight.cpu(), other[0].weight)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_training_matches_the_cpu(optimizer: type[torch.optim.Optimizer]) -> None:
    def train(device: str) -> torch.Tensor:
        net = model().to(device)
        steps = optimizer(net.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(1)
        for _ in range(3):
            x = torch.randn(4, 6, generator=generator).to(device)
            steps.zero_grad()
            net(x).square().mean().backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            steps.step()
        return torch.cat([p.detach().cpu().flatten() for p in net.parameters()])

    torch.testing.assert_close(train("spyre"), train("cpu"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(dtype: torch.dtype) -> None:
    net, x = model().to("spyre"), torch.randn(4, 6, device="spyre")
    with torch.autocast("spyre", dtype=dtype):
        assert net(x).dtype == dtype
        assert torch.mm(x, x.t()).dtype == dtype
        assert torch.softmax(x.to(dtype), -1).dtype == torch.float32
        assert (x + 1).dtype == torch.float32
        assert torch.cat([x, x.to(dtype)]).dtype == torch.float32
        assert torch.norm(x.to(dtype)).dtype == torch.float32
        with torch.autocast("spyre", enabled=False):
            assert torch.mm(x, x.t()).dtype == torch.float32
    assert torch.mm(x, x.t()).dtype == torch.float32


def test_gradient_scaling() -> None:
    net = model().to("spyre")
    steps = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("spyre", init_scale=8.0)
    with torch.autocast("spyre"):
        loss = net(torch.randn(4, 6, device="spyre")).square().mean()
    scaler.scale(loss).backward()
    before = net[0].weight.detach().clone()
    scaler.step(steps)
    scaler.update()
    assert not torch.equal(before.cpu(), net[0].weight.cpu())


def test_attention_embedding_and_loss() -> None:
    q = torch.randn(2, 3, 5, 8)
    there = nn.functional.scaled_dot_product_attention(*(q.to("spyre") for _ in range(3)))
    torch.testing.assert_close(there.cpu(), nn.functional.scaled_dot_product_attention(q, q, q))
    table, ids = nn.Embedding(7, 4), torch.tensor([[1, 6], [0, 3]])
    wanted = table(ids)
    assert torch.equal(table.to("spyre")(ids.to("spyre")).cpu(), wanted)
    logits, classes = torch.randn(3, 5), torch.tensor([0, 4, 2])
    loss = nn.functional.cross_entropy(logits.to("spyre"), classes.to("spyre"))
    torch.testing.assert_close(loss.cpu(), nn.functional.cross_entropy(logits, classes))


def test_data_loader_with_pinned_memory() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    loader = torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True)
    batches = [x for (x,) in loader]
    assert all(x.is_pinned() for x in batches)
    assert torch.cat([x.to("spyre") for x in batches]).tolist() == list(range(8))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers(kind: type[nn.RNNBase], bias: bool) -> None:
    torch.manual_seed(0)
    here = kind(4, 5, num_layers=2, bidirectional=True, bias=bias)
    there = copy.deepcopy(here).to("spyre")
    x = torch.randn(3, 2, 4)
    wanted, got = here(x)[0], there(x.to("spyre"))[0]
    torch.testing.assert_close(got.cpu(), wanted)
    wanted.square().sum().backward(), got.square().sum().backward()
    for ours, theirs in zip(there.parameters(), here.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-5)
