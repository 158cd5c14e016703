"""Random graphs compiled on the card: every stage, the checker, and the CPU's values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch._inductor import config

from openspyre.compiler.pipeline import compile_kernel
from openspyre.errors import BrokenInvariant
from openspyre.ir.binary import encode
from openspyre.ir.kernel import Kernel
from openspyre.ir.text import print_kernel
from openspyre.runtime import launch
from openspyre.runtime.check import proved
from openspyre.spec import CardSpec
from tests.random_graphs import Graph, random_graph, smaller_graphs
from tests.random_kernels import (
    NO_SIZES,
    Sizes,
    Stages,
    alike,
    changed_stage,
    problem,
    smallest,
)

_ROUNDING = {torch.float16: 2e-2, torch.bfloat16: 0.15, None: 1e-3}
Compiled = list[tuple[Kernel, Sizes, Stages]]


def fault(graph: Graph, *, dynamic: bool = False) -> tuple[str, Compiled]:
    """What goes wrong with a graph, in one line (empty if nothing does), and what it compiled."""
    seen: Compiled = []
    try:
        with _compiles_seen(seen):
            found = _differing(graph, dynamic=dynamic)
        changes = (changed_stage(kernel, stages, sizes) for kernel, sizes, stages in seen)
        return next(filter(None, changes), "") or found, seen
    except BrokenInvariant as error:
        return f"BrokenInvariant: {error.what}", seen
    except (RuntimeError, AssertionError, LookupError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}", seen


def _differing(graph: Graph, *, dynamic: bool) -> str:
    """The first output or input that is not as on the CPU.

    What PyTorch itself gets wrong when it traces the graph for the CPU is not ours: views of a
    changed input with dynamic strides, in 2.13.
    """
    found = _wrong(graph, "spyre", "inductor", dynamic=dynamic)
    if found and _wrong(graph, "cpu", "aot_eager", dynamic=dynamic):
        return ""
    return found


def _wrong(graph: Graph, device: str, backend: str, *, dynamic: bool) -> str:
    torch._dynamo.reset()
    right = [x.float() if x.is_floating_point() else x for x in graph.tensors()]
    right = [_lain(x, like) for x, like in zip(right, graph.tensors(), strict=True)]
    wanted = [*graph.function(wide=True)(*right), *right]
    ours = [_moved(x, device) for x in graph.tensors()]
    compiled = torch.compile(graph.function(), backend=backend, fullgraph=True, dynamic=dynamic)
    got = [*compiled(*ours), *ours]
    names = [*graph.outputs, *(x.name for x in graph.inputs)]
    rounding = _ROUNDING[graph.narrow]
    for name, a, b in zip(names, got, wanted, strict=True):
        found = a.cpu()
        if found.shape != b.shape:
            return f"shape of {name} is {list(found.shape)}, not {list(b.shape)}"
        largest = b.abs().max().item() if b.numel() and b.dtype != torch.bool else 0
        close = rounding * max(1.0, largest) if found.is_floating_point() else 0
        same = torch.isclose(found.to(b.dtype), b, rtol=rounding if close else 0, atol=close)
        if not same.all():
            return f"values of {name} differ in {int((~same).sum())} of {same.numel()} elements"
    return ""


def _lain(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Equal values, lying as `like` does."""
    if x.dtype == like.dtype:
        return x
    wide = like.untyped_storage().nbytes() // like.element_size()
    whole = like.as_strided((wide,), (1,), 0).float()
    return whole.as_strided(like.shape, like.stride(), like.storage_offset())


def _moved(x: torch.Tensor, device: str) -> torch.Tensor:
    """On a device, with the strides that it has here."""
    count = x.untyped_storage().nbytes() // x.element_size()
    whole = x.as_strided((count,), (1,), 0).to(device)
    return whole.as_strided(x.shape, x.stride(), x.storage_offset())


@contextmanager
def _compiles_seen(seen: Compiled) -> Iterator[None]:
    """Inside, every kernel that compiles is told with its stages."""

    def program(kernel: Kernel, card: CardSpec, sizes: Sizes = NO_SIZES) -> bytes:
        stages: Stages = []
        seen.append((kernel, sizes, stages))
        compiled = compile_kernel(kernel, card, lambda name, k: stages.append((name, k)))
        return encode(proved(compiled, kernel, card, sizes))

    with (
        pytest.MonkeyPatch.context() as patched,
        config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        patched.setattr(launch, "program_bytes", program)
        patched.setattr(launch, "_loaded", {})  # a kernel of another graph compiles again
        yield


def complaint(graph: Graph, found: str, compiled: Compiled, *, dynamic: bool) -> str:
    """A failure as small as it gets: a kernel's text, or the graph where no kernel is at fault."""
    for kernel, sizes, _ in compiled:
        if problem(kernel, sizes):
            small = smallest(kernel, sizes)
            return f"{found}\n{problem(small, sizes)}, at {dict(sizes)}\n{print_kernel(small)}"

    def fails(smaller: Graph) -> bool:
        return alike(fault(smaller, dynamic=dynamic)[0], found)

    while smaller := next(filter(fails, smaller_graphs(graph)), None):
        graph = smaller
    now, compiled = fault(graph, dynamic=dynamic)
    texts = "".join(print_kernel(kernel) for kernel, _, _ in compiled)
    return f"{found}\n{now}\n{graph.described()}{texts}"


def is_dynamic(seed: int) -> bool:
    return seed % 5 == 4


def examined(seed: int) -> tuple[str, int]:
    """The complaint about the graph of a seed, empty if there is none; how many kernels it has."""
    graph, dynamic = random_graph(seed), is_dynamic(seed)
    found, compiled = fault(graph, dynamic=dynamic)
    text = complaint(graph, found, compiled, dynamic=dynamic) if found else ""
    return f"seed {seed}: {text}" if text else "", len(compiled)
