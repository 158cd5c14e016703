"""Inputs that cores fetch from each other: each brings a part into LX, once.

The rows of a matmul are for all cores that share its columns. Whole in LX they leave little room
for anything else, and in parts they are loaded again for every tile of columns. Spread over the
cores they take a small share of each, and come in parts on the ring as often as they are needed.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from openspyre.compiler.bounds import highest
from openspyre.compiler.contraction import contraction
from openspyre.compiler.groups import Grouping
from openspyre.compiler.rewrite import Fresh, names_walked, rewritten, settled
from openspyre.ir.index import Expr
from openspyre.ir.kernel import (
    Access,
    Dim,
    Kernel,
    Kind,
    Load,
    Op,
    Role,
    Scalar,
    Step,
    StickLayout,
    Tensor,
    loads,
)
from openspyre.spec import CardSpec

_SHARE = 1 / 8  # of LX: what an input takes of it at most
_WORTH = 32  # latencies: what its load takes at least


def with_inputs_near(kernel: Kernel, card: CardSpec) -> Kernel | None:
    """A kernel in steps, with a step more for every input that matmuls may fetch on the ring.

    None if there is none, or if hints name its steps.
    """
    found = [t for t in kernel.tensors.values() if _is_wanted(kernel, t, card)]
    if not found or kernel.hints:
        return None
    for tensor in found:
        kernel = _brought(kernel, tensor)
    steps = (replace(step, name=f"s{number}") for number, step in enumerate(kernel.steps))
    return replace(kernel, steps=tuple(steps))


def _is_wanted(kernel: Kernel, tensor: Tensor, card: CardSpec) -> bool:
    """Whether it is the smaller operand of matmuls, large enough to matter, and nothing else."""
    size = _bytes(kernel, tensor)
    least = _WORTH * card.dram_latency_ns * card.dram_oneway
    if tensor.role is not Role.INPUT or not least <= size <= card.cores * card.lx_usable * _SHARE:
        return False
    readers = [op for op in kernel.ops if any(x.tensor == tensor.name for x in _read(op))]
    return bool(readers) and all(_takes_it(kernel, op, tensor) for op in readers)


def _read(op: Op) -> tuple[Load, ...]:
    looked = tuple(Load(x.tensor, x.index, op.body.dtype) for x in op.lookups)
    return (*loads(op), *looked)


def _takes_it(kernel: Kernel, op: Op, tensor: Tensor) -> bool:
    """Whether an op multiplies it, as it lies, by something larger that not all dims walk."""
    if op.kind is not Kind.CONTRACT or op.lookups:
        return False
    parts = contraction(kernel, op)
    both = (parts.a, parts.b)
    own = [x for x in both if x.tensor == tensor.name]
    other = [x for x in both if x.tensor != tensor.name]
    if len(own) != 1 or len(other) != 1 or own[0].guarded or parts.computed(kernel, own[0]):
        return False
    larger = _bytes(kernel, kernel.tensors[other[0].tensor]) > _bytes(kernel, tensor)
    return larger and {d.name for d in op.dims} > names_walked(op, own[0]) - {
        d.name for d in op.rdims
    }


def _bytes(kernel: Kernel, tensor: Tensor) -> int:
    return tensor.dtype.bytes * prod(highest(extent, kernel.limits) for extent in tensor.shape)


def _brought(kernel: Kernel, tensor: Tensor) -> Kernel:
    """The kernel with a step that copies an input, before the first that reads it."""
    name = Fresh(kernel).name(f"{tensor.name}_near")
    number = next(n for n, op in enumerate(kernel.ops) if _reads(op, tensor))
    copy = _copy(tensor, name, kernel.ops[number].source)

    def change(value: Scalar) -> Scalar:
        if isinstance(value, Load) and value.tensor == tensor.name:
            return replace(value, tensor=name)
        return value

    ops = tuple(replace(op, body=rewritten(op.body, change)) for op in kernel.ops)
    at = next(n for n, step in enumerate(kernel.steps) if kernel.ops[number].name in step.ops)
    first = min(n for n, op in enumerate(kernel.ops) if op.name in kernel.steps[at].ops)
    made = replace(
        kernel,
        tensors={**kernel.tensors, name: Tensor(name, tensor.dtype, tensor.shape, Role.LOCAL)},
        layouts={**kernel.layouts, name: StickLayout(_order(tensor))},
        ops=(*ops[:first], copy, *ops[first:]),
    )
    group = Grouping(made).single(first)
    step = Step(copy.name, (copy.name,), group.axes, group.binding)
    return replace(made, steps=(*kernel.steps[:at], step, *kernel.steps[at:]))


def _reads(op: Op, tensor: Tensor) -> bool:
    return any(x.tensor == tensor.name for x in loads(op))


def _copy(tensor: Tensor, name: str, source: str) -> Op:
    """A map over its dims, unit dims left out."""
    long = [n for n, extent in enumerate(tensor.shape) if extent.constant != 1]
    dims = {n: Dim(f"i{at}", tensor.shape[n]) for at, n in enumerate(long)}
    index = tuple(
        Expr.var(dims[n].name) if n in dims else Expr.of(0) for n in range(len(tensor.shape))
    )
    body = Load(tensor.name, index, tensor.dtype.compute)
    op = Op(name, Kind.MAP, tuple(dims.values()), body, Access(name, index), source=source)
    return settled(op)


def _order(tensor: Tensor) -> tuple[int, ...]:
    """Its dims as its bytes lie."""
    strides = [e.constant or 0 for e in tensor.strides]
    return tuple(sorted(range(len(strides)), key=lambda n: (-strides[n], n)))
