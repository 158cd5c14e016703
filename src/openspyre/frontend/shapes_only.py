"""A module compiled from shapes alone: the kernels of its regions, without weights or memory.

The module's parameters, buffers and arguments are fake tensors of the card. Dynamo, AOTAutograd,
Inductor and our scheduling do what they do for real ones; what they generate is never called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch._inductor import ir
from torch._inductor.compile_fx import compile_fx
from torch._inductor.scheduler import BaseSchedulerNode
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._ordered_set import OrderedSet

from openspyre.errors import SpyreError, Unsupported
from openspyre.frontend.activation import PATCH
from openspyre.frontend.hints import weights_of
from openspyre.frontend.importer import imported
from openspyre.frontend.scheduling import regions_seen_by
from openspyre.ir.kernel import Kernel

# What has been generated for fake tensors must not be found by a run with real ones.
_OPTIONS: Mapping[str, Any] = {**PATCH, "force_disable_caches": True}


_NO_CALLS = (ir.AssertScalar, ir.MultiOutput)  # a check of sizes; one of several results
OUTSIDE = "(the model itself)"


@dataclass(frozen=True, slots=True)
class Traced:
    """What became of one call.

    Attributes:
        kernels: in order; the source of an op is the name of the module it belongs to.
        fallbacks: ops that would run on the CPU, in order.
        ops: calls in the graph by op and dtype of the result.
    """

    kernels: tuple[Kernel, ...]
    fallbacks: tuple[str, ...]
    ops: Mapping[tuple[str, str], int] = field(default_factory=dict)


class NoSingleGraph(Unsupported):
    """Dynamo cannot make one graph of a call."""


class _Seen(Exception):
    """Everything has been generated; nothing must run."""


def fake_mode() -> FakeTensorMode:
    """The mode in which a call's fake tensors are made."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def faked(module: nn.Module, mode: FakeTensorMode) -> None:
    """Replace a module's parameters and buffers by fake ones of the card; shared ones stay so."""
    made: dict[int, torch.Tensor] = {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            empty = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="spyre"
            )
            weight = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = nn.Parameter(empty, requires_grad=False) if weight else empty
        return made[id(tensor)]

    with mode:
        for part in module.modules():
            both: tuple[dict[str, Any], dict[str, Any]] = (part._parameters, part._buffers)
            for held in both:
                held.update({k: fake(t) for k, t in held.items() if t is not None})


def traced(
    module: nn.Module, mode: FakeTensorMode, arguments: Mapping[str, Any], *, keep: bool = False
) -> Traced:
    """The kernels of one call of a module whose tensors, like the arguments', are fake.

    Args:
        keep: their weights may stay in LX between launches.

    Raises:
        NoSingleGraph: Dynamo breaks it.
        Unsupported: the card cannot do something of it.
    """
    regions: list[Kernel] = []
    fallbacks: dict[str, str] = {}
    graphs: dict[int, Counter[tuple[str, str]]] = {}

    def seen(nodes: Sequence[BaseSchedulerNode], local: OrderedSet[str]) -> None:
        name = f"region{len(regions)}"
        region = imported(nodes, local=local, name=name, source=_module_of)
        graphs.setdefault(id(V.graph), Counter(_ops(V.graph.module)))
        regions.append(replace(region, weights=weights_of(region)) if keep else region)
        for node in V.graph.scheduler.nodes:
            if node.is_extern() and not isinstance(node.node, _NO_CALLS):
                fallbacks[node.get_name()] = _called(node)

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        compile_fx(graph, list(inputs), config_patches=dict(_OPTIONS))
        raise _Seen

    torch._dynamo.reset()
    compiled = torch.compile(module, backend=backend, fullgraph=True, dynamic=False)
    try:
        with torch.no_grad(), mode, regions_seen_by(seen):
            compiled(**arguments)
    except torch._dynamo.exc.BackendCompilerFailed as failure:
        cause = failure.inner_exception
        if isinstance(cause, _Seen):
            ops = sum(graphs.values(), Counter[tuple[str, str]]())
            return Traced(tuple(regions), tuple(fallbacks.values()), ops)
        known = getattr(cause, "inner_exception", cause)
        if not isinstance(known, SpyreError):
            raise
        raise known from None
    except torch._dynamo.exc.TorchDynamoException as failure:
        raise NoSingleGraph(
            "the model is no single graph",
            why=str(failure).strip().splitlines()[0],
            hint="another attention or cache of the model may trace",
        ) from None
    finally:
        torch._dynamo.reset()
    return Traced((), ())


def _ops(graph: Any) -> Iterator[tuple[str, str]]:
    """Every call of a graph module that computes a tensor: its op and the dtype of the result."""
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, torch.Tensor):
            name = str(node.target).removeprefix("aten.").removesuffix(".default")
            yield name, str(value.dtype).removeprefix("torch.")


def _called(node: Any) -> str:
    return str(getattr(node.node, "op_overload", None) or type(node.node).__name__)


def _module_of(buffer: Any) -> str:
    """The name of the innermost module that a buffer comes from."""
    node = buffer.get_origin_node()
    for origin in [node] if node is not None else list(buffer.get_origins()):
        if stack := origin.meta.get("nn_module_stack"):
            name, _ = list(stack.values())[-1]
            return _plain(name) or OUTSIDE
    return OUTSIDE


def _plain(name: str) -> str:
    """`model.layers.0.mlp` of `L['self'].model.layers.0.mlp` and its relatives."""
    _, _, path = name.partition("]")
    found = path.replace("._modules", "").replace("['", ".").replace("']", "")
    return found.replace("[", ".").replace("]", "").strip(".")
