"""One eager op -> a kernel, through the importer, as a graph of one node.

The native side (csrc/device/eager.cpp) asks twice: once per op what may be served (`description`),
and once per pattern of arguments for a kernel (`compiled`). Importing this module loads neither
Dynamo nor Inductor; the first pattern that is not on the disk does.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from openspyre.errors import InvalidKernel, Unsupported
from openspyre.frontend import patterns
from openspyre.frontend.eager_call import Argument, Form, Inputs, Number, SizeSource, Source
from openspyre.frontend.patterns import Answer, recalled, record
from openspyre.runtime.launch import load_kernel

# The native side finds all of this here.
__all__ = [
    "Compiled", "Form", "Number", "Unsupported", "compiled", "description", "reason", "recalled",
    "record",
]  # fmt: skip

aten = torch.ops.aten

# Numbers that become launch scalars where they are given as a float (or the tensors are floats):
# no lowering looks at their value.
_SCALARS = frozenset({"other", "value", "min", "max", "alpha"})
_FLOAT_ONLY = frozenset({"alpha"})  # 1 is the default, and worth its own program
# But for ops whose lowerings do, or that cut a number to the integers of the tensor.
_BY_VALUE = frozenset({"histc", "masked_fill", "scatter"})
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_UNSERVED_TAGS = {
    torch.Tag.nondeterministic_seeded: "it draws random numbers",
    torch.Tag.data_dependent_output: "its result depends on values, not only on shapes",
    torch.Tag.dynamic_output_shape: "the size of its result depends on values",
}


class Described(NamedTuple):
    """What the native side must know of an op.

    Attributes:
        why: why it is never served; empty if it may be.
        pointwise: the result at a point depends on the arguments at that point only.
        scalars: by argument, 1 where a float is a launch scalar, 2 where any number is one if the
            tensors are floats, 3 where any number is one and sizes depend on it, else 0.
        rounds: launch scalars are rounded to the dtype of the tensors.
    """

    why: str
    pointwise: bool = False
    scalars: tuple[int, ...] = ()
    rounds: bool = False


class Compiled(NamedTuple):
    """A kernel and what a launch passes; tensors are numbered in argument order, outputs last.

    Attributes:
        kernel: None if there is none.
        why: why there is none.
        exact: sizes that must be as in the example, for this to be so.
    """

    kernel: Any
    why: str
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
        given = [(a.name, str(a.type)) for a in candidate._schema.arguments]
        left = candidate._schema.arguments[len(wanted) :]
        if given[: len(wanted)] == wanted and all(a.has_default_value() for a in left):
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


def compiled(
    name: str,
    overload: str,
    pattern: bytes,
    arguments: tuple[Argument, ...],
    outputs: tuple[Form, ...],
) -> Compiled:
    """A kernel for the op, or why there is none: from the disk, lowered where it is not there.

    Args:
        pattern: stands for all of `arguments` and `outputs` but what are examples.
        arguments: one per argument of the schema; those written to (`out`) are None.
        outputs: the tensors to write.
    """
    inputs = Inputs(arguments)
    asked = patterns.Asked.of(inputs, outputs)
    key = patterns.pattern_key(name, overload, pattern)
    answer = patterns.found(key, asked)
    if answer is not None:
        try:
            return _loaded(answer)
        except InvalidKernel:
            patterns.discard(key)
    answer = _lowered(name, overload, inputs, outputs)
    patterns.keep(key, asked, answer)
    return _loaded(answer)


def reason(error: Unsupported) -> str:
    """Why an op runs on the CPU, from what the compiler says."""
    return f"{error.what}: {error.why}" if error.why else error.what


def _loaded(answer: Answer) -> Compiled:
    kernel = load_kernel(answer.text) if answer.text else None
    exact = tuple(source for source, _ in answer.exact)
    return Compiled(kernel, answer.why, answer.arguments, answer.symbols, exact)


def _lowered(name: str, overload: str, inputs: Inputs, outputs: tuple[Form, ...]) -> Answer:
    op = _overload(name, overload)
    assert op is not None
    result: list[Answer | BaseException] = []

    def work() -> None:
        try:
            from openspyre.frontend.one_node import answer_for  # loads Inductor

            result.append(answer_for(op, functional(op), inputs, outputs))
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
