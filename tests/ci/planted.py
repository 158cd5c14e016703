"""Ops with known faults on the card, for the survey to find."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput, UnaryUfuncInfo

Unary = Callable[[torch.Tensor], Any]


def samples(
    info: Any, device: str, dtype: torch.dtype, requires_grad: bool, **_: Any
) -> Iterator[SampleInput]:
    del info
    for shape in ((3, 5), (7,), (64,)):
        x = torch.rand(shape).to(dtype).to(device)
        yield SampleInput(x.requires_grad_(requires_grad))


def planted(name: str, op: Unary, kind: Any = OpInfo, **facts: Any) -> Any:
    dtypes = {torch.float16, torch.float32}
    facts = {"dtypes": dtypes, "supports_out": False, **facts}
    return kind(name, op=op, ref=None, sample_inputs_func=samples, **facts)


def on_card(card: Unary, cpu: Unary) -> Unary:
    return lambda x: card(x) if x.is_spyre else cpu(x)


def refuses(x: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError(f"no {x.dtype} here")


def spoils_its_input(x: torch.Tensor) -> torch.Tensor:
    result = x + 1
    x.zero_()
    return result


def transposed_in_memory(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t() if x.dim() == 2 else x.clone()


def killed(x: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGSEGV)
    return x


def hangs(x: torch.Tensor) -> torch.Tensor:
    time.sleep(600)
    return x


class Doubled(torch.autograd.Function):
    """x + 1, whose gradient is twice what it should be on the card."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.factor = 2.0 if x.is_spyre else 1.0
        return x + 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * ctx.factor


def draws(x: torch.Tensor) -> torch.Tensor:
    return torch.rand(200).to(x.device)


OPS = [
    planted("right", torch.exp),
    planted("cpu", lambda x: torch.special.zeta(x + 2, x + 1)),
    planted("value", on_card(lambda x: x + 1.1, lambda x: x + 1)),
    planted("nan", on_card(lambda x: x / 0 - x / 0, lambda x: x + 1)),
    planted("shape", on_card(lambda x: x[:1], lambda x: x + 1)),
    planted("dtype", on_card(lambda x: x.bfloat16(), lambda x: x + 1)),
    planted("device", lambda x: x.cpu() + 1),
    planted("form", on_card(lambda x: (x, x), lambda x: x + 1)),
    planted("strides", on_card(transposed_in_memory, torch.clone), UnaryUfuncInfo),
    planted("spoiled", on_card(spoils_its_input, lambda x: x + 1)),
    planted("refused", on_card(refuses, lambda x: x + 1)),
    planted("killed", on_card(killed, lambda x: x + 1)),
    planted("hanging", on_card(hangs, lambda x: x + 1)),
    planted("nowhere", refuses),
    planted("accurate", on_card(lambda x: (x.float() * 3).to(x.dtype), lambda x: x + x + x)),
    planted("drawn", draws),
    planted("not drawn", on_card(lambda x: torch.full((200,), 0.9).to(x.device), draws)),
    planted("gradient", Doubled.apply, supports_autograd=True),
]  # fmt: skip
