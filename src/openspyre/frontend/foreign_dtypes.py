"""What the card cannot store (float64, uint16, ...): calls, counted as fallbacks."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from openspyre.frontend.values import STORED


def mark_calls(graph: torch.fx.Graph) -> None:
    """Lets Inductor call, not lower, every op that reads or makes such tensors of the card.

    Views stay views: they compute nothing.
    """
    for node in graph.nodes:
        if not isinstance(node.target, OpOverload) or _is_view(node.target):
            continue
        values = [node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)]
        if any(map(_is_foreign, torch.utils._pytree.tree_leaves(values))):
            node.meta["should_fallback"] = True  # Inductor's own word for it


def _is_view(op: OpOverload) -> bool:
    return not op._schema.is_mutable and any(r.alias_info for r in op._schema.returns)


def _is_foreign(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "spyre"
        and value.dtype not in STORED
    )
