"""Tensors reach vLLM's ops in a compiled model as they do in eager mode."""

from __future__ import annotations

import torch
from torch._inductor.lowering import add_layout_constraint, constrain_to_fake_tensors

# Those that a model's graph calls.
_OPS = ("unified_attention_with_output", "all_reduce", "all_gather", "reduce_scatter")


def keep_layouts() -> None:
    """Has Inductor give vLLM's ops the strides of eager mode; may be called again.

    PyTorch promises that to every op that says nothing of its layouts. vLLM makes all its ops
    known to Inductor in a way that loses the promise, and then keys may come head by head, with
    strides that depend on the number of tokens: a layout, and a graph, for each number.
    """
    for name in _OPS:
        add_layout_constraint(getattr(torch.ops.vllm, name).default, constrain_to_fake_tensors)
