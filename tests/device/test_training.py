"""Fine-tuning on the card follows the loss curve of the CPU: eager, compiled, checkpointed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

STEPS, WORDS = 6, 17
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
ADAMW: Optimizer = partial(torch.optim.AdamW, lr=3e-3)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.table = nn.Embedding(WORDS, 16)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(16, WORDS)
        self.checkpointed = False

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.table(ids)
        if self.checkpointed:
            hidden = checkpoint(self.layers, hidden, use_reentrant=False)
        else:
            hidden = self.layers(hidden)
        logits: torch.Tensor = self.last(hidden)
        return logits


def losses(
    device: str,
    optimizer: Optimizer = ADAMW,
    *,
    compiled: bool = False,
    checkpointed: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The losses of a few steps: predict the word before."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Model().to(device)
    model.checkpointed = checkpointed
    steps = optimizer(model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(steps, STEPS)
    scaler = torch.amp.GradScaler(device, init_scale=64.0, enabled=dtype == torch.float16)
    run: Any = torch.compile(model) if compiled else model
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(STEPS):
        ids = torch.randint(0, WORDS, (4, 12), generator=generator)
        wanted = ids.roll(1, 1).to(device)
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            logits = run(ids.to(device))
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        steps.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(steps)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(steps)
        scaler.update()
        scheduler.step()
        found.append(loss.item())
    return torch.tensor(found)


@pytest.fixture(scope="module")
def curve() -> torch.Tensor:
    found = losses("cpu")
    assert found[-1] < found[0]
    return found


@pytest.mark.parametrize(("compiled", "checkpointed"), [(False, False), (True, True)])
def test_float32(curve: torch.Tensor, compiled: bool, checkpointed: bool) -> None:
    torch.spyre.reset_fallbacks()
    found = losses("spyre", compiled=compiled, checkpointed=checkpointed)
    torch.testing.assert_close(found, curve, rtol=2e-4, atol=2e-4)
    assert torch.spyre.fallbacks() == {}


@pytest.mark.parametrize(("dtype", "compiled"), [(torch.bfloat16, False), (torch.float16, True)])
def test_autocast(curve: torch.Tensor, dtype: torch.dtype, compiled: bool) -> None:
    found = losses("spyre", dtype=dtype, compiled=compiled)
    torch.testing.assert_close(found, curve, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "optimizer",
    [
        partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        partial(torch.optim.Adam, lr=3e-3, foreach=True),
        partial(torch.optim.AdamW, lr=3e-3, foreach=False),
        partial(torch.optim.AdamW, lr=3e-3, fused=True),
    ],
    ids=["sgd", "adam foreach", "adamw single", "adamw fused"],
)
def test_optimizers(optimizer: Optimizer) -> None:
    wanted = losses("cpu", optimizer)
    torch.testing.assert_close(losses("spyre", optimizer), wanted, rtol=2e-4, atol=2e-4)


def test_a_compiled_step() -> None:
    torch._dynamo.reset()
    results = []
    for device in ("cpu", "spyre"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
        steps = ADAMW(model.parameters())
        step = torch.compile(steps.step) if device == "spyre" else steps.step
        for factor in range(3):
            steps.zero_grad()
            model(torch.ones(2, 8, device=device) * factor).square().sum().backward()
            step()
        results.append(torch.cat([p.detach().cpu().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*results)
