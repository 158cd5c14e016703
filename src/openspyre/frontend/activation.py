"""What `torch.compile` needs of us before its first graph. Loads neither Dynamo nor Inductor."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch

from openspyre.frontend import composites
from openspyre.frontend.late import after_import

# Inductor settings for graphs that touch the card; the user's own options win over them.
# Short reductions stay reductions instead of becoming chains of loads and adds. Convolutions choose
# the strides of their results themselves. Nests stay in the order of their lowering, which lets
# the units overlap; which buffers live at a time is for our own stages to decide. What several
# nests read and is made of two tensors is made once: it may stay in LX, and its terms are loaded
# once.
PATCH: Mapping[str, Any] = MappingProxyType(
    {
        "unroll_reductions_threshold": 1,
        "layout_optimization": False,
        "reorder_for_peak_memory": False,
        "realize_reads_threshold": 1,
    }
)


@functools.cache
def activate() -> None:
    """Everything `torch.compile` needs before the first graph; called once, at autoload."""
    composites.register()
    install_compile_hook()
    after_import("torch._dynamo.device_interface", _register_interface)


def _register_interface() -> None:
    """Dynamo's own registry has the devices of torch's tree only."""
    from openspyre.frontend import interface

    interface.register()


@functools.cache
def install_compile_hook() -> None:
    """Let `torch.compile` load our Inductor backend, with `PATCH`, for graphs on the card."""
    wrapper = torch._TorchCompileInductorWrapper
    stock: Any = wrapper.__call__

    @functools.wraps(stock)
    def call(
        self: Any, model: Any, inputs: Any, *, config_patches: Mapping[str, Any] | None = None
    ) -> Any:
        if touches_card(model, inputs):
            # Before AOTAutograd, so that our lowerings exist for the first graph of a process.
            import openspyre.frontend.scheduling  # noqa: F401
            from openspyre.frontend.sources import keyed_by_lines

            chosen = {**PATCH, **self.config, **(config_patches or {})}
            config_patches = keyed_by_lines(model, chosen)
        return stock(self, model, inputs, config_patches=config_patches)

    wrapper.__call__ = call  # type: ignore[method-assign]


def touches_card(model: torch.fx.GraphModule, inputs: Any) -> bool:
    """Whether a graph has a tensor of the card among its inputs or results."""
    return any(t.device.type == "spyre" for t in _tensors(model, inputs))


def _tensors(model: torch.fx.GraphModule, inputs: Any) -> Iterator[torch.Tensor]:
    leaves, _ = torch.utils._pytree.tree_flatten(list(inputs))
    for node in model.graph.nodes:
        leaves += torch.utils._pytree.tree_leaves(node.meta.get("example_value"))
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            yield leaf
