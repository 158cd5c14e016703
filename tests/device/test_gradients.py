"""Gradients of layers in float32 against the CPU: odd sizes, strided inputs, nothing left out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lstm": (lambda: nn.LSTM(5, 3, 2, bidirectional=True, batch_first=True), (2, 7, 5)),
    "lstm projected": (lambda: nn.LSTM(5, 7, proj_size=3), (4, 1, 5)),
    "gru": (lambda: nn.GRU(5, 3, 2, bidirectional=True), (7, 2, 5)),
    "layer norm": (lambda: nn.LayerNorm((3, 7)), (2, 5, 3, 7)),
    "batch norm 1d": (lambda: nn.BatchNorm1d(5), (7, 5)),
    "batch norm 2d": (lambda: nn.BatchNorm2d(5, momentum=None), (3, 5, 3, 7)),
    "batch norm in use": (lambda: nn.BatchNorm2d(5).eval(), (3, 5, 3, 7)),
    "group norm": (lambda: nn.GroupNorm(3, 9), (2, 9, 3, 7)),
    "instance norm": (
        lambda: nn.InstanceNorm2d(5, affine=True, track_running_stats=True),
        (3, 5, 3, 7),
    ),
    "conv1d": (lambda: nn.Conv1d(3, 5, 3, stride=2, padding=1), (2, 3, 17)),
    "conv2d grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2, dilation=2), (2, 4, 9, 7)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 5, 3, stride=2, output_padding=1), (1, 3, 5, 7)),
    "attention": (lambda: nn.TransformerEncoderLayer(6, 3, 7, dropout=0.0), (5, 2, 6)),
}
INTERPOLATIONS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "nearest": ((2, 3, 5, 7), {"size": (11, 4)}),
    "nearest-exact": ((2, 3, 5), {"scale_factor": 1.7}),
    "linear": ((2, 3, 5), {"size": 13, "align_corners": True}),
    "bilinear": ((2, 3, 5, 7), {"scale_factor": (0.6, 2.3)}),
    "bicubic": ((1, 2, 5, 7), {"size": (9, 3)}),
    "trilinear": ((1, 2, 3, 4, 5), {"size": (5, 3, 7)}),
    "area": ((2, 3, 5, 7), {"size": (3, 4)}),
}


def strided(*shape: int) -> torch.Tensor:
    """Every other element of the last dim, behind an offset."""
    wide = torch.randn(*shape[:-1], 2 * shape[-1] + 1)
    return wide[..., 1::2]


def first(result: Any) -> torch.Tensor:
    found: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return found


def close(ours: torch.Tensor | None, theirs: torch.Tensor | None) -> None:
    assert ours is not None
    assert theirs is not None
    assert ours.is_spyre
    torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=2e-5)


def compare(here: Any, there: Any, x: torch.Tensor) -> None:
    """Results and gradients of both for a strided input, with a strided gradient coming in."""
    inputs = x.clone().requires_grad_(), x.to("spyre").requires_grad_()
    theirs, ours = first(here(inputs[0])), first(there(inputs[1]))
    close(ours, theirs)
    coming = strided(*theirs.shape)
    theirs.backward(coming), ours.backward(coming.to("spyre"))
    close(inputs[1].grad, inputs[0].grad)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")  # on the CPU
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, counted: None) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    here = make()
    there = copy.deepcopy(here).to("spyre")
    compare(here, there, strided(*shape))
    for ours, theirs in zip(there.parameters(), here.parameters(), strict=True):
        close(ours.grad, theirs.grad)
    for ours, theirs in zip(there.buffers(), here.buffers(), strict=True):
        close(ours, theirs)
    assert torch.spyre.fallback_reasons() == {}


@pytest.mark.parametrize("mode", INTERPOLATIONS)
def test_interpolation(mode: str) -> None:
    """Its backward passes may run on the CPU, counted: they must be right there too."""
    torch.manual_seed(0)
    shape, options = INTERPOLATIONS[mode]

    def call(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, mode=mode, **options)

    compare(call, call, strided(*shape))
