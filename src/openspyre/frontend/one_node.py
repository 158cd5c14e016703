"""A graph of one ATen call, lowered by Inductor and read by the importer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import StorageBox
from torch._inductor.lowering import lowerings, user_lowerings
from torch._inductor.scheduler import NopKernelSchedulerNode
from torch._inductor.virtualized import V
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx

from openspyre.errors import Unsupported
from openspyre.frontend.activation import PATCH
from openspyre.frontend.eager import reason
from openspyre.frontend.eager_call import Form, Inputs, SizeSource, Source
from openspyre.frontend.eager_fakes import Sizes, fakes_of
from openspyre.frontend.not_lowered import NotOneKernel, what_inductor_does_not_know
from openspyre.frontend.patterns import Answer, Asked
from openspyre.frontend.scheduling import region_kernel
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Kernel, Role, Tensor
from openspyre.ir.text import print_kernel

aten = torch.ops.aten

Exact = tuple[tuple[SizeSource, int], ...]  # sizes that must be so, and their values
_STRIDES = (2, 2**40)  # what a stride may be: one program serves them all


class _ResultIsView(NotOneKernel):
    """The lowering leaves a result as a view of another buffer."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """What became of one op.

    Attributes:
        sources: of every argument of the kernel.
        tensors: for every tensor of the kernel on the card, its number and its form.
        symbols: where the kernel's symbols come from.
        exact: sizes that must be as in the example.
        computed_one: a result has a size of 1 that the kernel computes from other sizes.
    """

    kernel: Kernel
    sources: dict[str, Source]
    tensors: dict[str, tuple[int, Form]]
    symbols: dict[str, SizeSource]
    exact: Exact
    computed_one: bool


def answer_for(
    op: OpOverload, call: OpOverload | None, inputs: Inputs, outputs: Sequence[Form]
) -> Answer:
    """What becomes of an op.

    Args:
        call: its functional form.

    Raises:
        BrokenInvariant: a mistake of ours.
    """
    assert call is not None
    try:
        lowered = _lowered_either_way(op, call, inputs, outputs)
    except NotOneKernel as error:
        return Answer("", str(error), exact=error.exact)
    kernel, symbols = _with_free_strides(lowered.kernel, lowered.tensors, lowered.symbols)
    return Answer(
        print_kernel(kernel),
        "",
        tuple(lowered.sources[a] for a in kernel.arguments),
        tuple(symbols[s] for s in kernel.symbols),
        lowered.exact,
    )


def _with_free_strides(
    kernel: Kernel,
    forms: dict[str, tuple[int, Form]],
    symbols: dict[str, SizeSource],
) -> tuple[Kernel, dict[str, SizeSource]]:
    """The kernel with the strides of its tensors as launches give them; 0 and 1 stay."""
    tensors, found, limits = dict(kernel.tensors), dict(symbols), dict(kernel.limits)
    for name in kernel.arguments:
        tensor = tensors[name]
        if tensor.role is Role.SCALAR:
            continue
        number, form = forms[name]
        strides = []
        for dim, stride in enumerate(form.strides):
            if stride in (0, 1) or form.sizes[dim] <= 1:
                strides.append(Expr.of(stride if stride in (0, 1) else 0))
                continue
            symbol = f"p{number}_{dim}"
            strides.append(Expr.var(symbol))
            found[symbol] = (1, number, dim)
            limits[symbol] = _STRIDES
        tensors[name] = Tensor(tensor.name, tensor.dtype, tensor.shape, tensor.role, tuple(strides))
    names = tuple(limits)
    return replace(kernel, tensors=tensors, symbols=names, limits=limits), found


def _lowered_either_way(
    op: OpOverload, call: OpOverload, inputs: Inputs, outputs: Sequence[Form]
) -> Lowered:
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
    exact: Exact = ()
    try:
        with what_inductor_does_not_know():
            found = _traced(op, call, inputs, outputs, sizes, symbolic=symbolic, copied=copied)
            if found.computed_one:
                # Inductor leaves such a size out of strides and addresses, and not out of loops.
                exact = found.exact
                sizes = Sizes(frozenset(value for _, value in exact))
                found = _traced(op, call, inputs, outputs, sizes, symbolic=symbolic, copied=copied)
            return replace(found, exact=_both(exact, found.exact))
    except Unsupported as error:
        refused = NotOneKernel(reason(error))
    except NotOneKernel as error:
        refused = error
    refused.exact = _both(exact, _known_sizes(sizes, inputs, outputs))
    raise refused


def _both(some: Exact, more: Exact) -> Exact:
    return tuple(dict.fromkeys((*some, *more)))


def _traced(
    op: OpOverload,
    call: OpOverload,
    inputs: Inputs,
    outputs: Sequence[Form],
    sizes: Sizes,
    *,
    symbolic: bool,
    copied: bool,
) -> Lowered:
    fakes, origins = fakes_of(_name(op), inputs, outputs, sizes, symbolic=symbolic)
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
        with sizes.mode:
            graph = make_fx(
                function, decomposition_table=select_decomp_table(), tracing_mode="symbolic"
            )(*fakes)
        kernel, written = _lowered(graph, fakes, sizes, op)
    names = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
    sources, tensors = _sources(kernel, names, fakes, origins, inputs)
    for position, name in zip(kept, written, strict=True):
        if name in sources or name not in kernel.arguments:
            raise _ResultIsView("a result of it is no new tensor")
        sources[name] = (0, tensors_in + position)
        tensors[name] = (tensors_in + position, outputs[position])
    kernel = _with_own_temporaries(kernel, sources)
    for symbol in kernel.symbols:
        if symbol not in sizes.sources:
            raise NotOneKernel(f"it computes with the size {symbol}, which no tensor has")
    if any(symbol not in sizes.sources for symbol in sizes.exact()):
        raise NotOneKernel("its lowering depends on the value of a number")
    ones = _behind_ones(kernel, tensors, outputs)
    exact = _known_sizes(sizes, inputs, outputs, ones)
    values = dict(exact)
    fixed = {s: (values[o],) * 2 for s, o in sizes.sources.items() if o in values}
    limits = {s: fixed.get(s, limit) for s, limit in kernel.limits.items()}
    kernel = replace(kernel, limits=limits)
    return Lowered(kernel, sources, tensors, dict(sizes.sources), exact, bool(ones))


def _behind_ones(
    kernel: Kernel, tensors: Mapping[str, tuple[int, Form]], outputs: Sequence[Form]
) -> frozenset[str]:
    """The symbols that make a size of a result 1, which is part of the pattern: that size has
    no stride of its own."""
    found: set[str] = set()
    for name, (_, form) in tensors.items():
        if any(form is output for output in outputs):
            for dim, size in enumerate(form.sizes):
                if size == 1:
                    found |= kernel.tensors[name].shape[dim].names
    return frozenset(found)


def _with_own_temporaries(kernel: Kernel, sources: Mapping[str, Source]) -> Kernel:
    """The kernel with those outputs local that are no result: Inductor keeps what is mutated."""
    tensors = dict(kernel.tensors)
    for name in kernel.arguments:
        if name not in sources:
            tensors[name] = replace(tensors[name], role=Role.LOCAL, strides=())
    kept = tuple(name for name in kernel.arguments if name in sources)
    return replace(kernel, arguments=kept, tensors=tensors)


def _known_sizes(
    sizes: Sizes,
    inputs: Inputs,
    outputs: Sequence[Form],
    also: frozenset[str] = frozenset(),
) -> Exact:
    """The sizes that lowering looked at, with their values."""
    asked = Asked.of(inputs, outputs)
    known = sorted({*sizes.exact(), *also})
    sources = (sizes.sources[s] for s in known if s in sizes.sources)
    return tuple((source, asked.size(source)) for source in sources)


def _name(op: OpOverload) -> str:
    return op._schema.name.partition("::")[2].strip("_")


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

    numbers = torch._C._should_allow_numbers_as_tensors(_name(call))

    def function(*leaves: Any) -> list[torch.Tensor]:
        arguments = inputs.filled(leaves)[: len(schema)]
        if not numbers:
            arguments = [_tensor(a, v) for a, v in zip(schema, arguments, strict=False)]
        named = zip(schema[len(positional) :], arguments[len(positional) :], strict=False)
        options = {a.name: value for a, value in named if value is not None}
        result = call(*arguments[: len(positional)], **(here | options))
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        if len(results) != len(outputs):
            raise NotOneKernel("its lowering gives another number of results than the op")
        return [_fitted(results[k], outputs[k]) for k in kept]

    return function


def _tensor(argument: Any, value: Any) -> Any:
    """A number where the op takes a tensor: the call was of another overload, which made one."""
    if not isinstance(argument.type, torch.TensorType):
        return value
    match value:
        case bool() | int():
            return aten.full([], value, dtype=_dtype_of(value), device="spyre")
        case float() | torch.SymFloat():
            one = aten.full([], 1.0, dtype=torch.float32, device="spyre")
            return aten.mul(one, value)
    return value


def _dtype_of(number: int) -> torch.dtype:
    return torch.bool if isinstance(number, bool) else torch.int64


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
    for node in graph.graph.nodes:
        # (What Inductor does about it depends on the environment: under CI it raises.)
        known = node.target in lowerings or node.target in user_lowerings
        if isinstance(node.target, OpOverload) and not known:
            raise NotOneKernel(f"{node.target} has no lowering")
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
