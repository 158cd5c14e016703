"""The graphs that kernels come from, kept while somebody wants them (`torch_meaning.py`).

Loads neither Dynamo nor Inductor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from openspyre.ir.kernel import Kernel, Op


@dataclass(frozen=True, slots=True)
class KeptGraph:
    """The graph of a kernel.

    Attributes:
        nodes: of the kernel's tensors, the node of the graph that each holds, as far as known.
    """

    graph: fx.GraphModule
    nodes: Mapping[str, fx.Node]


_kept: dict[tuple[Op, ...], KeptGraph] | None = None


@contextmanager
def keeping() -> Iterator[None]:
    """Inside, every kernel that is made keeps its graph, and eager ops take none from a cache."""
    global _kept
    before, _kept = _kept, {}
    try:
        yield
    finally:
        _kept = before


def wanted() -> bool:
    """Whether graphs are kept, so that kernels must be made rather than found."""
    return _kept is not None


def graph_of(kernel: Kernel) -> KeptGraph | None:
    """The graph of a kernel that was made while graphs were kept."""
    return None if _kept is None else _kept.get(kernel.ops)


def note(kernel: Kernel, graph: Any) -> None:
    """Keeps the graph of a kernel, if somebody wants it.

    Args:
        graph: Inductor's `GraphLowering` that the kernel is made in.
    """
    if _kept is not None:
        _kept[kernel.ops] = KeptGraph(graph.module, dict(_nodes(kernel, graph)))


def _nodes(kernel: Kernel, graph: Any) -> Iterator[tuple[str, fx.Node]]:
    inputs = {n.target: n for n in graph.module.graph.nodes if n.op == "placeholder"}
    inputs |= {n.name: n for n in inputs.values()}
    numbers = {str(s): n for n in inputs.values() if (s := symbol_of(n)) is not None}
    for name in kernel.tensors:
        if name in inputs or name in numbers:
            yield name, inputs.get(name) or numbers[name]
            continue
        buffer = graph.try_get_buffer(name)
        node = buffer.get_origin_node() if hasattr(buffer, "get_origin_node") else None
        if node is not None and _is_same(buffer, node):
            yield name, node


def symbol_of(node: fx.Node) -> Any:
    """The symbol of a number that a graph gets, or None."""
    value = node.meta.get("val")
    return value.node.expr if isinstance(value, (torch.SymInt, torch.SymFloat)) else None


def _is_same(buffer: Any, node: fx.Node) -> bool:
    """Whether a buffer is a node's value, not a part of it that a lowering has made."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype != buffer.get_dtype():
        return False
    return list(map(str, value.shape)) == list(map(str, buffer.get_size()))
