"""The Inductor backend: collects loop nests until a flush and launches them as one kernel.

Importing this module registers the backend, the device interface and the lowerings.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import sympy
import torch
from torch._inductor.codegen.common import (
    BackendFeature,
    Kernel,
    register_backend_for_device,
)
from torch._inductor.custom_graph_pass import CustomGraphModulePass, get_hash_for_files
from torch._inductor.scheduler import (
    BaseSchedulerNode,
    BaseScheduling,
    NopKernelSchedulerNode,
    Scheduler,
)
from torch._inductor.utils import get_fused_kernel_name, sympy_product
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from openspyre.frontend import (
    ahead,
    decompositions,
    device_calls,
    foreign_dtypes,
    kept_graphs,
    lowerings,
)
from openspyre.frontend.hints import hinted, hints_text
from openspyre.frontend.importer import imported
from openspyre.frontend.wrapper import SpyreWrapper
from openspyre.ir.kernel import Kernel as Region
from openspyre.ir.text import print_kernel

Observer = Callable[[Sequence[BaseSchedulerNode], OrderedSet[str]], None]
_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)
FEATURES = (BackendFeature.REDUCE_TO_SINGLE_ELEMENT, BackendFeature.SCAN)


class AllocatingKernel(Kernel):
    """The kernel in force while outputs are allocated; holds nothing of its own."""


class SpyreScheduling(BaseScheduling):
    """Every run of nodes between two flushes is one kernel."""

    def __init__(self, scheduler: Scheduler | None) -> None:
        super().__init__(scheduler)
        self.pending: list[BaseSchedulerNode] = []

    def get_backend_features(self, device: torch.device) -> OrderedSet[BackendFeature]:
        return OrderedSet(FEATURES)

    def group_fn(self, sizes: Sequence[Sequence[sympy.Expr]]) -> tuple[sympy.Expr, ...]:
        return tuple(V.graph.sizevars.simplify(sympy_product(s)) for s in sizes)

    def can_fuse_vertical(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:
        return False

    def can_fuse_horizontal(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:
        return False

    def codegen_node(self, node: Any) -> None:
        removed = V.graph.scheduler.removed_ops
        self.pending += [n for n in node.get_nodes() if n.get_name() not in removed]

    def codegen_sync(self) -> None:
        V.graph.wrapper_code.writeline(V.graph.device_ops.synchronize())

    def ready_to_flush(self) -> bool:
        """True before extern nodes too: those without a device do not flush by themselves."""
        scheduler = V.graph.scheduler
        current = scheduler.current_node
        rest = itertools.dropwhile(lambda n: n is not current, scheduler.nodes)
        after = (n for n in rest if n is not current and not isinstance(n, NopKernelSchedulerNode))
        following = next(after, None)
        return (
            following is None
            or following.is_extern()
            or following.get_device() != scheduler.current_device
        )

    def flush(self) -> None:
        nodes, self.pending = self.pending, []
        if nodes:
            _emit(nodes)


def region_kernel(nodes: Sequence[BaseSchedulerNode], name: str) -> tuple[Region, OrderedSet[str]]:
    """The kernel for `nodes` of the graph in force, and the buffers that live inside it only."""
    scheduler = V.graph.scheduler
    names = OrderedSet([n.get_name() for n in nodes])
    produced = [b.get_name() for n in nodes for b in n.get_outputs()]
    local = OrderedSet(
        [b for b in produced if scheduler.can_buffer_be_removed_through_fusion(b, names)]
    )
    kernel = imported(nodes, local=local, name=name)
    kept_graphs.note(kernel, V.graph)
    return kernel, local


@contextmanager
def regions_seen_by(observer: Observer) -> Iterator[None]:
    """Inside, `observer` gets the nodes of every region, and the buffers that live in it only."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def _emit(nodes: Sequence[BaseSchedulerNode]) -> None:
    """Write the launch of one kernel for `nodes` into the wrapper."""
    wrapper: Any = V.graph.wrapper_code  # ours: SpyreWrapper or SpyreSubgraphWrapper
    kernel, local = region_kernel(nodes, _title(nodes))
    kernel = hinted(kernel)
    if (seen := _observer.get()) is not None:
        seen(nodes, local)
    V.graph.removed_buffers |= local
    with V.set_kernel_handler(AllocatingKernel()):
        for node in nodes:
            node.mark_run()
    for symbol in kernel.symbols:
        wrapper.ensure_size_computed(sympy.Symbol(symbol, integer=True))
    name = wrapper.spyre_kernel(print_kernel(kernel))
    wrapper.spyre_call(name, [*kernel.arguments, *kernel.symbols])


def _title(nodes: Sequence[BaseSchedulerNode]) -> str:
    """A name for reports: the ATen ops in the region."""
    ops = get_fused_kernel_name(nodes, "original_aten").removeprefix("fused").strip("_")
    return "".join(c if c.isalnum() or c == "_" else "_" for c in ops)[:60].strip("_") or "kernel"


class LastPass(CustomGraphModulePass):
    """What happens to a graph before it is lowered.

    Its uuid puts our compiler's sources and the user's hints into Inductor's cache keys.
    """

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        foreign_dtypes.mark_calls(gm.graph)

    def uuid(self) -> bytes:
        return _version() + hints_text().encode()


@functools.cache
def _version() -> bytes:
    root = Path(__file__).parent.parent
    parts = (root / "ir", root / "frontend", root / "compiler")
    files = sorted(str(f) for part in parts for f in part.glob("*.py"))
    return get_hash_for_files((*files, str(root / "spec.py")))


def _register() -> None:
    device_calls.register()
    lowerings.register()
    decompositions.register()
    ahead.register()
    register_backend_for_device(
        "spyre", SpyreScheduling, SpyreWrapper, ahead.SpyreCppWrapper, device_custom_pass=LastPass()
    )


_register()
