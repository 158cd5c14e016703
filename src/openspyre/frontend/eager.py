"""One eager op -> a kernel, through the importer, as a graph of one node.

The native side (csrc/device/eager.cpp) asks twice: once per op what may be served (`description`),
and once per pattern of arguments for a kernel (`compiled`). Importing this module loads neither
Dynamo nor Inductor; the first `compiled` does.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Union

import torch
from torch._ops import OpOverload

from openspyre.errors import Unsupported
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Kernel, Role, Tensor
from openspyre.ir.text import print_kernel
from openspyre.runtime.launch import load_kernel

aten = torch.ops.aten

# Numbers that become launch scalars where they are given as a float (or the tensors are floats):
# no lowering looks at their value.
_SCALARS = frozenset({"other", "value", "min", "max", "alpha"})
_FLOAT_ONLY = frozenset({"alpha"})  # 1 is the default, and worth its own program
_BY_VALUE = frozenset({"histc"})  # but for ops whose lowerings do
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_UNSERVED_TAGS = {
    torch.Tag.nondeterministic_seeded: "it draws random numbers",
    torch.Tag.data_dependent_output: "its result depends on values, not only on shapes",
    torch.Tag.dynamic_output_shape: "the size of its result depends on values",
}
_STRIDES = (2, 2**40)  # what a stride may be: one program serves them all


class Described(NamedTuple):
    """What the native side must know of an op.

    Attributes:
        why: why it is never served; empty if it may be.
        pointwise: the result at a point depends on the arguments at that point only.
        scalars: by argument, 1 where a float is a launch scalar, 2 where any number is one if the
            tensors are floats, 3 where any number is one, else 0.
        rounds: launch scalars are rounded to the dtype of the tensors.
    """

    why: str
    pointwise: bool = False
    scalars: tuple[int, ...] = ()
    rounds: bool = False


class Form(NamedTuple):
    """A tensor without its values; sizes and strides are examples, except that 0 and 1 stay."""

    dtype: torch.dtype
    on_card: bool
    wrapped: bool  # a Python number that PyTorch made a tensor of
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


class Number(NamedTuple):
    """A number that is passed at launch."""

    example: float


Source = tuple[int, int]  # (0, tensor), (1, launch scalar)
SizeSource = tuple[int, int, int]  # (0 size or 1 stride, tensor, dim)


class Compiled(NamedTuple):
    """A kernel and what a launch passes; tensors are numbered in argument order, outputs last.

    Attributes:
        exact: sizes that must be as in the example.
    """

    kernel: Any
    arguments: tuple[Source, ...]
    symbols: tuple[SizeSource, ...]
    exact: tuple[SizeSource, ...]


# --- which op ---------------------------------------------------------------------------------


def description(name: str, overload: str) -> Described:
    """What may be served of the op `name.overload`."""
    op = _overload(name, overload)
    if op is None:
        return Described("it is not an op of ATen")
    for tag, why in _UNSERVED_TAGS.items():
        if tag in op.tags:
            return Described(why)
    if not op._schema.is_mutable and any(r.alias_info for r in op._schema.returns):
        return Described("it is a view")
    if not op._schema.returns and not op._schema.is_mutable:
        return Described("it computes nothing, what it does is something else")
    found = functional(op)
    if found is None:
        return Described("it has no functional form")
    if torch.Tag.nondeterministic_seeded in found.tags:
        return Described("it draws random numbers")
    pointwise = torch.Tag.pointwise in found.tags or torch.Tag.pointwise in op.tags
    scalars = tuple(_scalar_kind(a) for a in op._schema.arguments)
    if _packet_name(found) in _BY_VALUE:
        scalars = tuple(0 for _ in op._schema.arguments)
    if _packet_name(op) == "arange":
        scalars = tuple(0 if a.is_out else 3 for a in op._schema.arguments)
    return Described("", pointwise, scalars, _packet_name(found) in _COMPARISONS)


def _overload(name: str, overload: str) -> OpOverload | None:
    space, _, packet = name.partition("::")
    if space != "aten":
        return None
    found: OpOverload = getattr(getattr(aten, packet), overload or "default")
    return found


def _packet_name(op: OpOverload) -> str:
    return op._schema.name.partition("::")[2]


def _scalar_kind(argument: Any) -> int:
    if str(argument.real_type) not in ("number", "Scalar") or argument.name not in _SCALARS:
        optional = str(argument.real_type) in ("Optional[number]", "Optional[Scalar]")
        if not (optional and argument.name in _SCALARS):
            return 0
    return 1 if argument.name in _FLOAT_ONLY else 2


def functional(op: OpOverload) -> OpOverload | None:
    """The overload that computes what `op` writes, without writing."""
    schema = op._schema
    if not schema.is_mutable:
        return op
    name = _packet_name(op)
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    packet = getattr(aten, _RENAMED.get(name, name), None)
    if packet is None:
        return None
    wanted = [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]
    if name in _RENAMED:
        wanted.pop()
    for other in packet.overloads():
        candidate = getattr(packet, other)
        if candidate._schema.is_mutable or any(r.alias_info for r in candidate._schema.returns):
            continue
        if [(a.name, str(a.type)) for a in candidate._schema.arguments][: len(wanted)] == wanted:
            found: OpOverload = candidate
            return found
    return None


# Ops whose functional form has another name, and lacks the last argument.
_RENAMED = {"_index_put_impl": "index_put"}


# --- one op as a kernel -------------------------------------------------------------------------

# A trace sets a flag of the whole process; two at once would leave it set, and torch.compile
# refuses to run while it is. The caller holds the lock while its thread traces.
_tracing = threading.RLock()
_TRACER = "spyre-eager"

Argument = Union[Form, Number, Sequence[Any], Any]


def compiled(
    name: str, overload: str, arguments: tuple[Argument, ...], outputs: tuple[Form, ...]
) -> Compiled | str:
    """A kernel for the op, or why there is none.

    Args:
        arguments: one per argument of the schema; those written to (`out`) are None.
        outputs: the tensors to write.
    """
    op = _overload(name, overload)
    assert op is not None
    result: list[Compiled | str | BaseException] = []

    def work() -> None:
        try:
            result.append(_compiled(op, arguments, outputs))
        except BaseException as error:  # handed to the caller's thread below
            result.append(error)

    # A thread of its own: the caller's modes (inference, autocast, dispatch) must not be seen.
    thread = threading.Thread(target=work, name=_TRACER)
    nested = threading.current_thread().name == _TRACER  # its caller has the lock
    with nullcontext() if nested else _tracing:
        thread.start()
        thread.join()
    if isinstance(result[0], BaseException):
        raise result[0]
    return result[0]


def _compiled(
    op: OpOverload, arguments: tuple[Argument, ...], outputs: tuple[Form, ...]
) -> Compiled | str:
    from openspyre.frontend.one_node import NotOneKernel, kernel_of  # loads Inductor

    inputs = Inputs(arguments)
    forms = [f for f in inputs.leaves if isinstance(f, Form) and f.on_card] + list(outputs)
    try:
        lowered = kernel_of(op, functional(op), inputs, outputs)
        kernel, symbols = _free_strides(lowered.kernel, lowered.tensors, lowered.symbols)
        sources = tuple(symbols[s] for s in kernel.symbols)
        first = tuple(forms[n].strides[d] if kind else forms[n].sizes[d] for kind, n, d in sources)
        callable_kernel = load_kernel(print_kernel(kernel), first)
    except NotOneKernel as error:
        return str(error)
    except Unsupported as error:
        return f"{error.what}: {error.why}" if error.why else error.what
    return Compiled(
        callable_kernel,
        tuple(lowered.sources[a] for a in kernel.arguments),
        sources,
        tuple(symbols[s] for s in lowered.exact),
    )


class Inputs:
    """The leaves of the arguments in order: tensors on the card, and launch scalars."""

    def __init__(self, arguments: tuple[Argument, ...]) -> None:
        self.leaves: list[Form | Number] = []
        self.arguments = tuple(self._slot(a) for a in arguments)

    def _slot(self, argument: Argument) -> Any:
        match argument:
            case Form() | Number():
                self.leaves.append(argument)
                return Slot(len(self.leaves) - 1)
            case tuple():
                return [self._slot(a) for a in argument]
        return argument

    def filled(self, values: Sequence[Any]) -> list[Any]:
        """The arguments with `values` for the leaves."""

        def fill(argument: Any) -> Any:
            match argument:
                case Slot(number):
                    return values[number]
                case list():
                    return [fill(a) for a in argument]
            return argument

        return [fill(a) for a in self.arguments]


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a leaf."""

    number: int


@dataclass(frozen=True, slots=True)
class Lowered:
    """What became of one op.

    Attributes:
        sources: of every argument of the kernel.
        tensors: for every tensor of the kernel on the card, its number and its form.
        symbols: where the kernel's symbols come from.
        exact: symbols that must be as in the example.
    """

    kernel: Kernel
    sources: dict[str, Source]
    tensors: dict[str, tuple[int, Form]]
    symbols: dict[str, SizeSource]
    exact: tuple[str, ...]


def _free_strides(
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
