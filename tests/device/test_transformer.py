"""The inference fast paths of PyTorch's transformer layers run on the card."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

L, D, H = 5, 16, 4
PADDED = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
CAUSAL = nn.Transformer.generate_square_subsequent_mask(L)


def same(
    module: nn.Module, call: Callable[[nn.Module, torch.Tensor, str], Any], **kept: Any
) -> None:
    """The module in eval mode gives on the card what its slow path gives on the CPU."""
    module = module.eval()
    there = copy.deepcopy(module).to("spyre")
    x = torch.randn(2, L, D)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        wanted = call(module, x, "cpu")
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    torch.spyre.reset_fallbacks()
    with torch.no_grad():
        got = call(there, x.to("spyre"), "spyre")
    assert torch.spyre.fallbacks() == {}
    real = ~PADDED if kept.get("padded") else torch.ones_like(PADDED)
    for ours, theirs in zip(got, wanted, strict=True):
        if ours is None:
            assert theirs is None
        elif ours.shape[:2] == real.shape:
            torch.testing.assert_close(ours.cpu()[real], theirs[real])
        else:
            torch.testing.assert_close(ours.cpu(), theirs)


ATTENTION: dict[str, Callable[[nn.Module, torch.Tensor, str], Any]] = {
    "weights": lambda m, x, d: m(x, x, x),
    "each head's weights": lambda m, x, d: m(x, x, x, average_attn_weights=False),
    "no weights": lambda m, x, d: m(x, x, x, need_weights=False),
    "padding": lambda m, x, d: m(x, x, x, key_padding_mask=PADDED.to(d), need_weights=False),
    "causal": lambda m, x, d: m(x, x, x, attn_mask=CAUSAL.to(d)),
    "truth values": lambda m, x, d: m(x, x, x, attn_mask=(CAUSAL != 0).to(d), need_weights=False),
    "a bias": lambda m, x, d: m(x, x, x, attn_mask=CAUSAL.nan_to_num(neginf=0.5).to(d)),
    "both": lambda m, x, d: m(
        x, x, x, attn_mask=CAUSAL.to(d), key_padding_mask=torch.zeros(2, L).to(d)
    ),
    "other keys": lambda m, x, d: m(x, x[:, :3], x[:, :3] * 2),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str) -> None:
    torch.manual_seed(0)
    same(nn.MultiheadAttention(D, H, batch_first=True), ATTENTION[name])


LAYERS: dict[str, Callable[[nn.Module, torch.Tensor, str], Any]] = {
    "plain": lambda m, x, d: [m(x)],
    "causal": lambda m, x, d: [m(x, CAUSAL.to(d), is_causal=True)],
    "padding": lambda m, x, d: [m(x, src_key_padding_mask=PADDED.to(d))],
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_encoder_layer(name: str, norm_first: bool, compiled: bool) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    activation = "gelu" if norm_first else "relu"
    layer = nn.TransformerEncoderLayer(
        D, H, 32, batch_first=True, norm_first=norm_first, activation=activation
    )

    def call(module: nn.Module, x: torch.Tensor, device: str) -> Any:
        chosen = torch.compile(module) if compiled and device == "spyre" else module
        return LAYERS[name](chosen, x, device)

    same(layer, call, padded=name == "padding")


def test_encoder_with_padding() -> None:
    """PyTorch would make a nested tensor of the batch; there are none on the card."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(D, H, 32, batch_first=True)
    same(nn.TransformerEncoder(layer, 2), LAYERS["padding"], padded=True)


def test_half() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(D, H, 32, batch_first=True).eval()
    x = torch.randn(2, L, D)
    wanted = layer(x)
    with torch.inference_mode():
        got = layer.to("spyre", torch.float16)(x.to("spyre", torch.float16))
    torch.testing.assert_close(got.cpu().float(), wanted, rtol=1e-2, atol=1e-2)


def test_wrong_arguments() -> None:
    x, w, b = (torch.ones(s, device="spyre") for s in ((2, 3, 4), (12, 4), (12,)))
    native = torch._native_multi_head_attention
    with pytest.raises(RuntimeError, match="not divisible by num_heads 3"):
        native(x, x, x, 4, 3, w, b, w[:4], b[:4])
    with pytest.raises(RuntimeError, match="expected a query of 3 dims, the last of 5"):
        native(x, x, x, 5, 1, w, b, w[:4], b[:4])
