"""Where ops come from, and how Inductor's caches learn of it.

Inductor and AOTAutograd keep what they generated for a graph and find it again for every equal
one. What we generate names the user's lines, so graphs are equal only if their lines are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_custom_graph_passes
from torch._inductor.ir import Operation
from torch._inductor.virtualized import V

from openspyre.runtime.places import place_in_trace

_PASS = "post_grad_custom_post_pass"


def source_of(buffer: Any) -> str:
    """The user's line and the op that a buffer came from, for messages and reports."""
    node = buffer.get_origin_node()
    origins = [node] if node is not None else list(buffer.get_origins())
    names, place = [], ""
    for origin in origins:
        target = origin.meta.get("original_aten") or origin.target
        names.append(str(getattr(target, "__name__", target)).removesuffix(".default"))
        if not place and (trace := origin.meta.get("stack_trace")):
            place = place_in_trace(trace)
    ops = ", ".join(sorted(set(names)))
    return f"{place} [{ops}]" if place else ops


def source_of_buffer(name: str) -> str:
    """The same of a buffer of the graph that is being compiled; empty where nothing is known."""
    buffer = V.graph.try_get_buffer(name)
    return source_of(buffer) if isinstance(buffer, Operation) else ""


class LinesInKey(CustomGraphPass):
    """Changes no graph; puts the lines that a graph came from into the keys of all caches."""

    def __init__(self, model: fx.GraphModule) -> None:
        self._lines = hashlib.sha256("\n".join(_places(model)).encode()).hexdigest()

    def __call__(self, graph: fx.Graph) -> None:
        pass

    def uuid(self) -> str:
        return self._lines


def keyed_by_lines(model: fx.GraphModule, patches: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of Inductor with the lines of a graph of Dynamo's in its caches' keys.

    They hold for the backward graph too, whenever that is compiled.
    """
    theirs = patches.get(_PASS, getattr(torch._inductor.config, _PASS))
    return {**patches, _PASS: [*get_custom_graph_passes(theirs), LinesInKey(model)]}


def _places(model: fx.GraphModule) -> Iterator[str]:
    for module in model.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                if trace := node.meta.get("stack_trace"):
                    yield f"{node.name} {place_in_trace(trace)}"
