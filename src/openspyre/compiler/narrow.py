"""Contractions read weights as narrow as they are stored: fp8 or int8 that a map widens, and may
scale, only to be contracted.

The widened copy would be as large in device memory as weights that were never made narrow. PT's
operand is computed in LX instead, of what is loaded: the same values, rounded as the map rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from openspyre.compiler.rewrite import body_at, writes_whole
from openspyre.ir.kernel import (
    Call,
    Const,
    DType,
    Kernel,
    Kind,
    Load,
    Op,
    Role,
    Scalar,
    Tensor,
    operand,
    walk,
)
from openspyre.ir.ops import TABLE, Cost


def read_narrow(kernel: Kernel) -> Kernel:
    """Lets contractions read what maps have widened from narrow inputs."""
    writers: dict[str, list[Op]] = defaultdict(list)
    for op in kernel.ops:
        writers[op.out.tensor].append(op)
    widened = {
        name: ops[0]
        for name, ops in writers.items()
        if len(ops) == 1 and _widens(ops[0], kernel.tensors)
    }
    if not widened:
        return kernel
    return replace(kernel, ops=tuple(_reading(op, kernel, widened) for op in kernel.ops))


def in_lx(value: Scalar, tensors: Mapping[str, Tensor]) -> bool:
    """Whether an operand of PT is computed in LX: cheaply, of one input that is narrower and of
    others that are as large along fewer dims.
    """
    load = operand(value)
    if load is None or not isinstance(value, Call):
        return False
    for node in walk(value):
        match node:
            case Load(guarded=False):
                alone = node == load or _names(node) < _names(load)
                if not alone or tensors[node.tensor].role not in (Role.INPUT, Role.SCALAR):
                    return False
            case Call(op=name) if TABLE[name].cost is not Cost.TRANSCENDENTAL:
                continue
            case Const():
                continue
            case _:
                return False
    return tensors[load.tensor].dtype.bytes < value.dtype.bytes


def _widens(op: Op, tensors: Mapping[str, Tensor]) -> bool:
    target = tensors[op.out.tensor]
    plain = op.kind is Kind.MAP and not op.lookups and target.role is Role.LOCAL
    if not plain or not target.dtype.is_float or not writes_whole(op, target):
        return False
    return in_lx(_rounded(op.body, target.dtype), tensors)


def _rounded(body: Scalar, dtype: DType) -> Scalar:
    match body:
        case Call(op="cast") if body.dtype is dtype:
            return body
    return Call("cast", (body,), dtype)


def _reading(op: Op, kernel: Kernel, widened: Mapping[str, Op]) -> Op:
    match op:
        case Op(kind=Kind.CONTRACT, body=Call(op="mul", args=args)) if not op.lookups:
            pass
        case _:
            return op
    found = tuple(_through(value, kernel, widened) for value in args)
    return op if found == args else replace(op, body=Call("mul", found, op.body.dtype))


def _through(value: Scalar, kernel: Kernel, widened: Mapping[str, Op]) -> Scalar:
    """What the map that made an operand computes it of."""
    match value:
        case Load(guarded=False, tensor=tensor) if tensor in widened:
            writer = widened[tensor]
        case _:
            return value
    made = _rounded(writer.body, kernel.tensors[tensor].dtype)
    return _plain(body_at(replace(writer, body=made), value.index))


def _plain(value: Scalar) -> Scalar:
    """The load alone where widening is all that is done to it, and exact."""
    match value:
        case Call(op="cast", args=(Load(dtype=DType.F32) as load,)):
            return load
    return value


def _names(load: Load) -> frozenset[str]:
    return frozenset[str]().union(*(e.names for e in load.index))
