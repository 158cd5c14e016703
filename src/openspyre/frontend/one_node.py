"""A graph of one ATen call, lowered by Inductor and read by the importer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._inductor import config
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import StorageBox
from torch._inductor.scheduler import NopKernelSchedulerNode
from torch._inductor.virtualized import V
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from openspyre.errors import SpyreError
from openspyre.frontend import PATCH
from openspyre.frontend.eager import Form, Inputs, Lowered, Number, SizeSource, Source
from openspyre.frontend.scheduling import region_kernel
from openspyre.ir.kernel import Kernel

aten = torch.ops.aten


class NotOneKernel(Exception):
    """The op is no single kernel of the card; the text says why."""


class _ResultIsView(NotOneKernel):
    """The lowering leaves a result as a view of another buffer."""


class Sizes:
    """Fake arguments whose sizes are symbols, equal sizes being one symbol."""

    def __init__(self) -> None:
        self.env = ShapeEnv(duck_shape=True)
        self.mode = FakeTensorMode(shape_env=self.env)
        self.sources: dict[str, SizeSource] = {}
        self._sizes: dict[int, Any] = {}

    def tensor(self, form: Form, number: int) -> torch.Tensor:
        """A dense fake tensor of the form's sizes."""
        sizes = [self.size(n, (0, number, dim)) for dim, n in enumerate(form.sizes)]
        with self.mode:
            return torch.empty(sizes, dtype=form.dtype, device="spyre")

    def size(self, example: int, source: SizeSource) -> Any:
        if example < 2:
            return example
        if example not in self._sizes:
            origin = ConstantSource(f"n{len(self._sizes)}")
            symbol = self.env.create_symbol(example, origin, DimDynamic.DUCK, None)
            self._sizes[example] = self.env.create_symintnode(symbol, hint=example, source=origin)
            self.sources[str(symbol)] = source
        return self._sizes[example]

    def number(self, example: float, position: int) -> Any:
        origin = ConstantSource(f"x{position}")
        symbol = self.env.create_unspecified_symbol(example, origin, DimDynamic.DYNAMIC)
        return self.env.create_symfloatnode(symbol, hint=example, source=origin)

    def host(self, form: Form) -> torch.Tensor:
        with self.mode:
            return torch.empty((), dtype=form.dtype, device="cpu")

    def exact(self) -> tuple[str, ...]:
        """Symbols whose value lowering looked at, beyond telling two sizes apart."""
        found: set[str] = set()
        for guard in self.env.guards:
            expr = guard.expr
            if isinstance(expr, sympy.Ne) and all(isinstance(a, sympy.Symbol) for a in expr.args):
                continue
            found |= {str(symbol) for symbol in expr.free_symbols}
        return tuple(sorted(found))


def kernel_of(
    op: OpOverload, call: OpOverload | None, inputs: Inputs, outputs: Sequence[Form]
) -> Lowered:
    """The kernel that computes an op into `outputs`.

    Raises:
        NotOneKernel: there is none.
        SpyreError: what the importer says.
    """
    assert call is not None
    try:
        return _with_fresh_results(op, call, inputs, outputs, symbolic=True)
    except NotOneKernel:
        # Some decompositions take a tensor where others take a number.
        if not any(isinstance(leaf, Form) and leaf.wrapped for leaf in inputs.leaves):
            raise
        return _with_fresh_results(op, call, inputs, outputs, symbolic=False)


def _with_fresh_results(
    op: OpOverload, call: OpOverload, inputs: Inputs, outputs: Sequence[Form], *, symbolic: bool
) -> Lowered:
    try:
        return _attempt(op, call, inputs, outputs, symbolic=symbolic, copied=False)
    except _ResultIsView:
        return _attempt(op, call, inputs, outputs, symbolic=symbolic, copied=True)


def _attempt(
    op: OpOverload,
    call: OpOverload,
    inputs: Inputs,
    outputs: Sequence[Form],
    *,
    symbolic: bool,
    copied: bool,
) -> Lowered:
    """One way to lower the call.

    Args:
        symbolic: Python numbers enter the graph as numbers, else as tensors of the host.
        copied: results are copied, for the lowering makes views of something.
    """
    sizes = Sizes()
    fakes, origins = _fakes(op, inputs, outputs, sizes, symbolic=symbolic)
    tensors_in = sum(isinstance(leaf, Form) and leaf.on_card for leaf in inputs.leaves)
    kept = [k for k, form in enumerate(outputs) if 0 not in form.sizes]
    if op is not call and _name(op) == "arange":
        fakes.append(sizes.size(outputs[0].sizes[0], (0, tensors_in, 0)))
        function = _arange(inputs, outputs[0])
    else:
        function = _function(call, inputs, outputs, kept)
    function = _on_card(function)
    if copied:
        function = _copied(function)
    with config.patch(dict(PATCH)):
        try:
            with sizes.mode:
                graph = make_fx(
                    function, decomposition_table=select_decomp_table(), tracing_mode="symbolic"
                )(*fakes)
            kernel, written = _lowered(graph, fakes, sizes, op)
        except (SpyreError, NotOneKernel):
            raise
        except Exception as error:  # whatever Inductor does not know about an op
            raise NotOneKernel(f"Inductor cannot lower it: {_first_line(error)}") from error
    names = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
    sources, tensors = _sources(kernel, names, fakes, origins, inputs)
    for position, name in zip(kept, written, strict=True):
        if name in sources or name not in kernel.arguments:
            raise _ResultIsView("a result of it is no new tensor")
        sources[name] = (0, tensors_in + position)
        tensors[name] = (tensors_in + position, outputs[position])
    return _checked(kernel, sources, tensors, sizes)


def _checked(
    kernel: Kernel,
    sources: dict[str, Source],
    tensors: dict[str, tuple[int, Form]],
    sizes: Sizes,
) -> Lowered:
    for symbol in kernel.symbols:
        if symbol not in sizes.sources:
            raise NotOneKernel(f"it computes with the size {symbol}, which no tensor has")
    exact = sizes.exact()
    if any(symbol not in sizes.sources for symbol in exact):
        raise NotOneKernel("its lowering depends on the value of a number")
    return Lowered(kernel, sources, tensors, dict(sizes.sources), exact)


def _name(op: OpOverload) -> str:
    return op._schema.name.partition("::")[2].strip("_")


def _fakes(
    op: OpOverload, inputs: Inputs, outputs: Sequence[Form], sizes: Sizes, *, symbolic: bool
) -> tuple[list[Any], list[Source]]:
    """Fake values of the leaves, and their numbers among tensors or launch scalars."""
    given = [leaf for leaf in inputs.leaves if isinstance(leaf, Form) and leaf.on_card]
    floats = any(f.dtype.is_floating_point for f in given or outputs)
    fakes: list[Any] = []
    origins: list[Source] = []
    counts = [0, 0]
    for leaf in inputs.leaves:
        on_card = isinstance(leaf, Form) and leaf.on_card
        kind = 0 if on_card else 1
        origins.append((kind, counts[kind]))
        match leaf:
            case Number() if _name(op) == "arange" and not floats:
                fakes.append(sizes.host(Form(torch.int64, False, True, (), ())))
            case Number(example):
                fakes.append(sizes.number(example, counts[1]))
            case Form(on_card=True):
                fakes.append(sizes.tensor(leaf, counts[0]))
            case Form(wrapped=True) if symbolic and (floats or leaf.dtype.is_floating_point):
                fakes.append(sizes.number(2.5, counts[1]))
            case Form():
                fakes.append(sizes.host(leaf))
        counts[kind] += 1
    return fakes, origins


Function = Callable[..., list[torch.Tensor]]


def _function(
    call: OpOverload, inputs: Inputs, outputs: Sequence[Form], kept: Sequence[int]
) -> Function:
    """The call, of the leaves; its results in the dtypes of the outputs."""
    schema = call._schema.arguments
    positional = [a for a in schema if not a.kwarg_only]
    here: dict[str, Any] = {}
    if any(a.name == "device" for a in schema) and outputs:
        here = {"dtype": outputs[0].dtype, "device": torch.device("spyre")}

    def function(*leaves: Any) -> list[torch.Tensor]:
        arguments = inputs.filled(leaves)[: len(schema)]
        named = zip(schema[len(positional) :], arguments[len(positional) :], strict=False)
        options = {a.name: value for a, value in named if value is not None}
        result = call(*arguments[: len(positional)], **(here | options))
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        if len(results) != len(outputs):
            raise NotOneKernel("its lowering gives another number of results than the op")
        return [_fitted(results[k], outputs[k]) for k in kept]

    return function


def _on_card(function: Function) -> Function:
    """Lets scalars of the host count as tensors of the card, for Inductor asks the first operand
    of an op where it runs."""

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.device.type != "cpu":
            return leaf
        return aten.where(aten.full([], True, dtype=torch.bool, device="spyre"), leaf, leaf)

    return lambda *leaves: function(*map(moved, leaves))


def _copied(function: Function) -> Function:
    return lambda *leaves: [aten.clone(result) for result in function(*leaves)]


def _arange(inputs: Inputs, output: Form) -> Function:
    """arange of a length that is known: its bounds are then launch scalars."""

    def function(*leaves: Any) -> list[torch.Tensor]:
        *_, length = leaves
        arguments = inputs.filled(leaves)
        start, step = (arguments[0], arguments[2]) if len(arguments) > 2 else (0, 1)
        whole = torch.ops.prims.iota(
            length, start=0, step=1, dtype=torch.int64, device="spyre", requires_grad=False
        )
        if output.dtype.is_floating_point:
            whole = torch.ops.prims.convert_element_type(whole, torch.float32)
        return [_fitted(aten.add(aten.mul(whole, step), start), output)]

    return function


def _fitted(result: torch.Tensor, output: Form) -> torch.Tensor:
    """A result in the dtype of the tensor it goes to."""
    if not isinstance(result, torch.Tensor):
        raise NotOneKernel("it does not return tensors")
    if result.dim() != len(output.sizes):
        raise NotOneKernel("its lowering gives another shape than the op")
    if result.dtype == output.dtype:
        return result
    converted: torch.Tensor = torch.ops.prims.convert_element_type(result, output.dtype)
    return converted


def _lowered(
    graph: torch.fx.GraphModule, fakes: Sequence[Any], sizes: Sizes, op: OpOverload
) -> tuple[Kernel, list[str]]:
    """The kernel of a graph, and the names of its results."""
    view_to_reshape(graph)
    lowering = GraphLowering(graph, example_inputs=fakes, shape_env=sizes.env, is_inference=True)
    with (
        V.set_fake_mode(sizes.mode),
        V.set_debug_handler(DebugContext()),
        V.set_graph_handler(lowering),
        V.set_extern_kernel_nodes([]),
    ):
        lowering.run(*fakes)
        lowering.init_wrapper_code()
        lowering._update_scheduler()
        nodes = [n for n in lowering.scheduler.nodes if not isinstance(n, NopKernelSchedulerNode)]
        for node in nodes:
            if node.is_extern():
                raise NotOneKernel(f"{_called(node)} has no lowering for these arguments")
            device = node.get_device()
            if device is None or device.type != "spyre":
                raise NotOneKernel("a part of it runs on the CPU")
        if not nodes:
            raise NotOneKernel("it computes nothing")
        if any(not isinstance(result, StorageBox) for result in lowering.graph_outputs):
            raise _ResultIsView("a result of it is a view")
        kernel, _ = region_kernel(nodes, _name(op))
        return kernel, [result.get_name() for result in lowering.graph_outputs]


def _called(node: Any) -> str:
    return str(getattr(node.node, "op_overload", None) or type(node.node).__name__)


def _sources(
    kernel: Kernel,
    names: Sequence[str],
    fakes: Sequence[Any],
    origins: Sequence[Source],
    inputs: Inputs,
) -> tuple[dict[str, Source], dict[str, tuple[int, Form]]]:
    """Where the kernel's arguments come from, and the forms of those on the card."""
    sources: dict[str, Source] = {}
    tensors: dict[str, tuple[int, Form]] = {}
    # The length of an arange has no leaf: it is a size of the output.
    for name, fake, origin, leaf in zip(names, fakes, origins, inputs.leaves, strict=False):
        known = str(fake.node.expr) if isinstance(fake, torch.SymFloat) else name
        sources[known] = origin
        if isinstance(leaf, Form) and leaf.on_card:
            tensors[name] = (origin[1], leaf)
    return sources, tensors


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:150]}" if lines else type(error).__name__
