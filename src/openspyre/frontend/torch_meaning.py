"""What torch says that a kernel computes: its part of the graph, on the CPU, in float64.

Of kernels that were made while `graphs_kept` was in force.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._functorch.config
import torch._inductor.config
from torch import fx

from openspyre.errors import SpyreError, Unsupported
from openspyre.frontend import composites
from openspyre.frontend.kept_graphs import graph_of, keeping, symbol_of
from openspyre.frontend.values import STORED
from openspyre.ir.kernel import Kernel, Role, Tensor
from openspyre.ir.ops import Array
from openspyre.ir.text import parse_kernel
from openspyre.runtime.diagnosis import Fault, Judge, diagnosed
from openspyre.runtime.launch_values import LaunchValues, launch_values
from openspyre.runtime.recording import recorded
from openspyre.runtime.saved import Run, read_run
from openspyre.runtime.traced import card_of

Values = Mapping[str, Array]
Sizes = Mapping[str, int]
_ROOM = 4 << 30
_READ = (Role.INPUT, Role.MUTATED, Role.SCALAR)


@contextmanager
def graphs_kept() -> Iterator[None]:
    """Inside, every kernel that is made keeps its graph, and none is taken from a cache."""
    with (
        keeping(),
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield


@dataclass(frozen=True, slots=True)
class Meaning:
    """The graph of a kernel.

    Attributes:
        nodes: of the kernel's tensors, the node of the graph that each holds, as far as known.
    """

    graph: fx.GraphModule
    nodes: Mapping[str, fx.Node]

    def __call__(self, kernel: Kernel, given: Values, sizes: Sizes) -> dict[str, Array]:
        """What every tensor that the kernel writes holds by torch, as far as torch knows it.

        Raises:
            SpyreError: torch cannot compute it on the CPU, or needs what the kernel does not get.
        """
        known = {
            self.nodes[name]: _tensor(given[name], self.nodes[name])
            for name, tensor in kernel.tensors.items()
            if tensor.role in _READ and name in self.nodes
        }
        written = {op.out.tensor for op in kernel.ops}
        wanted = {n: self._result(n, kernel) for n in written if n in self.nodes}
        found = _computed(self.graph, known, list(wanted.values()), sizes)
        arrays = {name: found[node].detach().cpu().numpy() for name, node in wanted.items()}
        shapes = {n: tuple(e.evaluate(sizes) for e in kernel.tensors[n].shape) for n in arrays}
        return {n: a for n, a in arrays.items() if a.shape == shapes[n]}

    def code(self, kernel: Kernel) -> tuple[str, tuple[str, ...]]:
        """The kernel's part of the graph as a `forward` in Python, and what it takes in order.

        Raises:
            SpyreError: it needs what the kernel does not get.
        """
        arguments = [n for n in kernel.arguments if n in self.nodes]
        taken = [n for n in arguments if kernel.tensors[n].role in _READ]
        given = [n for n in arguments if kernel.tensors[n].role in (Role.OUTPUT, Role.MUTATED)]
        part = fx.Graph()
        copies = {self.nodes[name]: part.placeholder(name) for name in taken}
        results = [self._result(name, kernel) for name in given]
        needed = _needed(copies, results)
        for node in self.graph.graph.nodes:
            if node not in needed or node in copies:
                continue
            if node.op != "call_function":
                raise SpyreError(f"the graph needs {node.name}, which the kernel does not get")
            copies[node] = part.node_copy(node, lambda n: copies[n])
        part.output(tuple(copies[node] for node in results))
        return str(fx.GraphModule(torch.nn.Module(), part).code).strip(), tuple(taken)

    def _result(self, name: str, kernel: Kernel) -> fx.Node:
        """The node that a tensor holds at the end; an input that is written gets a copy of one."""
        node = self.nodes[name]
        if kernel.tensors[name].role is not Role.MUTATED:
            return node
        copies = [user for user in node.users if user.target is torch.ops.aten.copy_.default]
        return copies[-1].args[1] if copies and copies[-1].args[0] is node else node  # type: ignore[return-value]


def meaning_of(kernel: Kernel) -> Meaning | None:
    """What torch says of a kernel that was made while graphs were kept."""
    kept = graph_of(kernel)
    return None if kept is None else Meaning(kept.graph, kept.nodes)


def _tensor(values: Array, node: fx.Node) -> Any:
    """A kernel's argument as torch computes with it here: floats in float64."""
    wide = values.astype(np.float64) if values.dtype.kind == "f" else values
    expected = node.meta.get("val")
    if not isinstance(expected, torch.Tensor):
        return wide.item()
    found = torch.from_numpy(np.ascontiguousarray(wide).copy())
    if not expected.dtype.is_floating_point:
        found = found.to(expected.dtype)
    return found.reshape(()) if expected.dim() == 0 else found


def _computed(
    graph: fx.GraphModule, known: Mapping[fx.Node, Any], wanted_nodes: list[fx.Node], sizes: Sizes
) -> Mapping[fx.Node, Any]:
    """The values of nodes, and of all that they need."""
    needed = _needed(known, wanted_nodes)
    runner = _Wide(graph)
    runner.env.update(known)
    for node in graph.graph.nodes:
        if node not in needed or node in known:
            continue
        if node.op == "placeholder":
            runner.env[node] = _number(node, sizes)
            continue
        try:
            runner.env[node] = runner.run_node(node)
        except Exception as error:  # any op of torch, on any input
            line = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise Unsupported(f"{node.target} on the CPU in float64", why=line) from None
    return runner.env


def _needed(known: Collection[fx.Node], wanted_nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """The nodes that some nodes are made of, down to those that are known."""
    needed, open_ = set(known), list(wanted_nodes)
    while open_:
        node = open_.pop()
        if node not in needed:
            needed.add(node)
            open_ += node.all_input_nodes
    return needed


def _number(node: fx.Node, sizes: Sizes) -> int:
    symbol = str(symbol_of(node))
    if symbol not in sizes:
        raise SpyreError(f"the graph needs {node.name}, which the kernel does not get")
    return sizes[symbol]


class _Wide(fx.Interpreter):
    """Runs nodes of a graph on the CPU; every float is a float64."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = torch.utils._pytree.tree_map(_on_cpu, (args, kwargs))
        own = composites.EAGER.get(getattr(target, "_opname", ""))
        if own is not None and str(target).startswith("spyre."):
            target = own
        return torch.utils._pytree.tree_map(_wide, super().call_function(target, args, kwargs))

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _wide(_on_cpu(super().get_attr(target, args, kwargs)))


def _on_cpu(value: Any) -> Any:
    match value:
        case torch.device():
            return torch.device("cpu")
        case torch.dtype() if value.is_floating_point:
            return torch.float64
        case torch.Tensor() if value.device.type != "cpu":
            return value.cpu()
    return value


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return value


def repeated(capture: Path, graph: torch.nn.Module, names: Sequence[str]) -> int:
    """Compiles a graph for the card, calls it with tensors out of a capture, and judges that.

    Returns 1 where a kernel does not mean what torch computes, else 0. Prints what is wrong.

    Args:
        names: the tensors of the capture's kernel that the graph takes.
    """
    run = read_run(capture)
    kernel = next(k for k in run.kernels if k.launches)
    region = parse_kernel(kernel.text)
    values = launch_values(region, kernel.launches[0])
    arguments = [_on_card(values, region.tensors[name]) for name in names]
    torch._dynamo.reset()
    with graphs_kept():
        with recorded("reproduce", _ROOM) as recorder, torch.no_grad():
            torch.compile(graph, dynamic=False)(*arguments)
            torch.spyre.synchronize()  # type: ignore[attr-defined]
        return _judged(recorder.run)


def _judged(run: Run) -> int:
    found, worst = diagnosed(run, Judge(card_of(run.card), meaning_of, _unsaid))
    wrong = [one for one in found if one.fault is Fault.REFERENCE]
    for one in wrong:
        print("\n".join([f"{one.kernel}: {one.why}", *map(str, one.wrong)]))
    if worst is not None and worst[2].culprit is not None:
        print(f"op {worst[2].culprit.op} from {worst[2].culprit.source}")
    return 1 if wrong else 0


def _on_card(values: LaunchValues, tensor: Tensor) -> Any:
    """A tensor of a launch as it was, strides included."""
    given = values.given[tensor.name]
    if tensor.role is Role.SCALAR:
        return given.item()
    dtype = next(theirs for theirs, ours in STORED.items() if ours is tensor.dtype)
    strides = [stride.evaluate(values.sizes) for stride in tensor.strides]
    made = torch.empty_strided(given.shape, strides, dtype=dtype, device="spyre")
    return made.copy_(torch.from_numpy(np.ascontiguousarray(given)).to(dtype))


def _unsaid(_: str) -> None:
    """Tells nobody what is being done."""
