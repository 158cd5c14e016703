"""What SFU can do while PT is busy with a later product of the same step.

SFU takes its instructions in order. Where it computes an operand of a product, panel by panel (fp8
weights that are widened and scaled), PT waits for all that stands before the next panel's: the
activation behind two products, as in SwiGLU, once for every tile. What of it needs the first
product alone becomes an op of its own, and the second product is rounded where it is used: SFU is
then done with the activation before PT is with the last panels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

from openspyre.compiler.addressing import lane_dim
from openspyre.compiler.axes import step_ops
from openspyre.compiler.contraction import contraction
from openspyre.compiler.rewrite import Fresh, reads, rewritten, vars_of
from openspyre.ir.kernel import (
    Access,
    Call,
    DType,
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
    walk,
)
from openspyre.ir.ops import TABLE, Cost


def work_between_products(kernel: Kernel) -> Kernel:
    """Cuts maps of two products of their step, the second with an operand that SFU computes."""
    for step in kernel.steps:
        for op in step_ops(kernel, step):
            found = _cut(kernel, step, op)
            if found is not None:
                kernel = _in_two(kernel, op, *found)
    return kernel


def _cut(kernel: Kernel, step: Step, op: Op) -> tuple[Op, Call] | None:
    """The later product of a map, which nothing else reads, and what does not need it."""
    if op.kind is not Kind.MAP or op.lookups:
        return None
    own = {load.tensor for load in loads(op)}
    before = step_ops(kernel, step)[: step.ops.index(op.name)]
    products = [x for x in before if x.kind is Kind.CONTRACT and x.out.tensor in own]
    if len(products) < 2:
        return None
    product = products[-1]
    name, dtype = product.out.tensor, kernel.tensors[product.out.tensor].dtype
    readers = [x.name for x in kernel.ops if any(t == name for t, _ in reads(x))]
    local = kernel.tensors[name].role is Role.LOCAL and name not in kernel.residency
    if not local or dtype not in (DType.F16, DType.BF16) or readers != [op.name]:
        return None
    parts = contraction(kernel, product)
    if not any(parts.computed(kernel, load) for load in (parts.a, parts.b)):
        return None
    node = next(_without(op.body, name), None)
    return None if node is None else (product, node)


def _without(value: Scalar, product: str) -> Iterator[Call]:
    """The largest values with a transcendental that do not need a product."""
    if not isinstance(value, Call):
        return
    within = list(walk(value))
    if not any(isinstance(n, Call) and TABLE[n.op].cost is Cost.TRANSCENDENTAL for n in within):
        return
    if any(isinstance(n, Load) and (n.tensor == product or n.guarded) for n in within):
        for arg in value.args:
            yield from _without(arg, product)
    elif value.dtype in (DType.F16, DType.BF16, DType.F32):
        yield value


def _in_two(kernel: Kernel, op: Op, product: Op, node: Call) -> Kernel:
    """The kernel in which a value of a map has an op before it, and a product is not rounded."""
    name, wide = Fresh(kernel).name(f"{op.name}_alone"), product.out.tensor
    index, dtype = vars_of(op.dims), kernel.tensors[wide].dtype
    alone = Op(name, Kind.MAP, op.dims, node, Access(name, index), source=op.source)

    def change(value: Scalar) -> Scalar:
        if value == node:
            return Load(name, index, node.dtype.compute)
        if isinstance(value, Load) and value.tensor == wide:
            return Call("cast", (value,), dtype)
        return value

    def listed(ops: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(x for old in ops for x in ((name, old) if old == op.name else (old,)))

    less = replace(op, body=rewritten(op.body, change))
    lane = lane_dim(kernel, op)
    order = sorted(range(len(op.dims)), key=lambda n: op.dims[n].name == lane)
    shape = tuple(d.extent for d in op.dims)
    tensors = {
        **kernel.tensors,
        wide: replace(kernel.tensors[wide], dtype=DType.F32),
        name: Tensor(name, node.dtype, shape, Role.LOCAL),
    }
    steps = tuple(
        replace(s, ops=listed(s.ops), binding={**s.binding, name: s.binding[op.name]})
        if op.name in s.ops
        else s
        for s in kernel.steps
    )
    ops = (x for old in kernel.ops for x in ((alone, less) if old == op else (old,)))
    return replace(
        kernel,
        tensors=MappingProxyType(tensors),
        layouts=MappingProxyType({**kernel.layouts, name: StickLayout(tuple(order))}),
        ops=tuple(ops),
        steps=steps,
    )
