"""Small maps that one map alone reads become part of it.

Inductor keeps what several nodes of a graph read (`activation.PATCH`). Where these nodes are one
nest in the end, as those of a GELU behind a bias, nothing is gained by storing it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from openspyre.compiler.rewrite import (
    body_at,
    point_for_point,
    reads,
    rewritten,
    writes_whole,
)
from openspyre.ir.kernel import (
    Call,
    DType,
    Kernel,
    Kind,
    Load,
    Op,
    Role,
    Scalar,
    Tensor,
    walk,
)

_SMALL = 4  # calls; long chains are cut on purpose
_WRAPPING = (DType.I16, DType.I8, DType.U8)  # a store drops bits that a value keeps


def inlined(kernel: Kernel) -> Kernel:
    """The kernel without the local tensors of such maps; their values are not rounded between."""
    writers, readers = defaultdict[str, list[int]](list), defaultdict[str, set[int]](set)
    for position, op in enumerate(kernel.ops):
        writers[op.out.tensor].append(position)
        for tensor, _ in reads(op):
            readers[tensor].add(position)
    ops: dict[int, Op] = dict(enumerate(kernel.ops))
    for position in range(len(kernel.ops)):
        op = ops[position]
        made = kernel.tensors[op.out.tensor]
        if len(readers[made.name]) != 1 or len(writers[made.name]) != 1 or not _small(op, made):
            continue
        (reader,) = readers[made.name]
        sources = {tensor for tensor, _ in reads(op)}
        if any(position < w <= reader for tensor in sources for w in writers[tensor]):
            continue
        joined = _joined(ops[reader], op, made)
        if joined is None:
            continue
        ops[reader] = joined
        del ops[position]
        for tensor in sources:
            readers[tensor] = readers[tensor] - {position} | {reader}
    if len(ops) == len(kernel.ops):
        return kernel
    kept = {op.out.tensor for op in ops.values()}
    tensors = {
        n: t for n, t in kernel.tensors.items() if t.role is not Role.LOCAL or n in kept
    }  # fmt: skip
    return replace(kernel, tensors=tensors, ops=tuple(ops.values()))


def _small(op: Op, made: Tensor) -> bool:
    plain = op.kind is Kind.MAP and not op.lookups and made.role is Role.LOCAL
    if not plain or made.dtype in _WRAPPING or op.body.dtype is not made.dtype.compute:
        return False
    nodes = list(walk(op.body))
    if any(isinstance(node, Load) and node.guarded for node in nodes):
        return False
    return sum(isinstance(node, Call) for node in nodes) <= _SMALL and writes_whole(op, made)


def _joined(reader: Op, op: Op, made: Tensor) -> Op | None:
    """The reader with the map's body in place of its tensor, if each reads a point for a point."""
    loads = [n for n in walk(reader.body) if isinstance(n, Load) and n.tensor == made.name]
    looked_up = any(lookup.tensor == made.name for lookup in reader.lookups)
    if reader.kind is not Kind.MAP or looked_up or not all(_same(n, reader, made) for n in loads):
        return None

    def node(value: Scalar) -> Scalar:
        if isinstance(value, Load) and value.tensor == made.name:
            return body_at(op, value.index)
        return value

    return replace(reader, body=rewritten(reader.body, node))


def _same(load: Load, reader: Op, made: Tensor) -> bool:
    return not load.guarded and point_for_point(load.index, made, reader.dims)
