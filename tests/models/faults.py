"""What a model on the card may do wrong, planted to see that a trial of it notices."""

from __future__ import annotations

import os

import torch
from torch import nn


def no_rotation(model: nn.Module) -> None:
    """Positions get lost: every rotary embedding turns by nothing."""
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            module.inv_freq.zero_()


def one_weight_row(model: nn.Module) -> None:
    """One output of one projection is another's, as from a wrong slice."""
    with torch.no_grad():
        row = next(
            p for n, p in model.named_parameters() if n.endswith("attention.output.dense.weight")
        )
        row[3] = row[4]


def raises(model: nn.Module) -> None:
    raise RuntimeError("aten::planted cannot be lowered in kernel k7\nsecond line")


def dies(model: nn.Module) -> None:
    os.abort()
