"""Which dims of an op tell the elements that it stores apart.

Cores may share those. Points that may name the same element stay on one core, in the op's order,
so that the last one wins.
"""

from __future__ import annotations

from collections.abc import Mapping

from openspyre.compiler.bounds import highest
from openspyre.compiler.ranges import Facts
from openspyre.compiler.rewrite import facts_of, writes_whole
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Call, Const, DType, Index, Kernel, Kind, Load, Op, Role, Scalar

_WIDE = (DType.I64, DType.I32)  # narrower ones may not hold what is counted


def told_apart(op: Op, kernel: Kernel) -> frozenset[str]:
    """The dims of which no two points of a scatter store to the same element."""
    distinct = distinct_lookups(op, kernel)
    facts = facts_of(op, kernel)
    found: set[str] = set()
    looked = {k.name for k in op.lookups}
    for expr in op.out.index:
        if not expr.names & looked:
            found |= _one_to_one(expr, op, facts)
        for lookup in op.lookups:
            if expr == Expr.var(lookup.name) and lookup.name in distinct:
                found |= distinct[lookup.name]
    return frozenset(found)


def distinct_lookups(op: Op, kernel: Kernel) -> Mapping[str, frozenset[str]]:
    """Lookups of an op that find another index at every point, each with the dims it walks.

    So it is proved where the kernel itself counts the indices, up from a number that may come from
    memory: the rows of a cache that a prefill fills.
    """
    if not op.lookups:
        return {}
    found = {}
    facts = facts_of(op, kernel)
    for lookup in op.lookups:
        dtype = kernel.tensors[lookup.tensor].dtype.compute
        counted = _counted(Load(lookup.tensor, lookup.index, dtype), kernel)
        if counted is None:
            continue
        dims = _one_to_one(counted, op, facts)
        # index -1 is the last row: indices further apart than the rows could meet
        if dims and (not lookup.wrap or _spans(counted, lookup.size, facts)):
            found[lookup.name] = dims
    return found


def _one_to_one(expr: Expr, op: Op, facts: Facts) -> frozenset[str]:
    """The dims that an expression walks if it has another value at each of their points."""
    dims = {d.name: d.extent for d in op.dims if d.name in expr.names}
    if expr.names & {d.name for d in op.rdims} or not expr.is_affine_in(frozenset(dims)):
        return frozenset()
    steps = []
    for name, extent in dims.items():
        by = expr.coefficient(name).constant
        if by is None:
            return frozenset()
        steps.append((abs(by), highest(extent, facts.limits)))
    reach = 0
    for by, points in sorted(steps):
        if by <= reach and points > 1:
            return frozenset()
        reach += by * max(0, points - 1)
    return frozenset(dims)


def _spans(expr: Expr, size: Expr, facts: Facts) -> bool:
    """Whether the largest value of an expression is less than `size` above the least."""
    for name in sorted(expr.names & facts.extents.keys()):
        by = expr.coefficient(name).constant or 0
        size = size - (facts.extents[name] - 1) * abs(by)
    return facts.nonnegative(size - 1)


def _counted(value: Scalar, kernel: Kernel) -> Expr | None:
    """The part of a value that differs from point to point, if that is an index expression."""
    match value:
        case Const():
            return Expr.of(0)
        case Index(value=expr):
            return expr
        case Call(op="add" | "sub", args=(left, right), dtype=dtype) if not dtype.is_float:
            one, other = _counted(left, kernel), _counted(right, kernel)
            if one is None or other is None:
                return None
            return one + other if value.op == "add" else one - other
        case Load(guarded=False):
            return _counted_by(value, kernel)
    return None


def _counted_by(load: Load, kernel: Kernel) -> Expr | None:
    """What is counted in a tensor, by the op that makes it."""
    if not any(e.names - set(kernel.symbols) for e in load.index):
        return Expr.of(0)  # one element, the same at all points
    tensor = kernel.tensors[load.tensor]
    writers = [op for op in kernel.ops if op.out.tensor == load.tensor]
    if tensor.role is not Role.LOCAL or len(writers) != 1 or tensor.dtype not in _WIDE:
        return None
    (writer,) = writers
    if writer.kind is not Kind.MAP or not writes_whole(writer, tensor):
        return None
    made = _counted(writer.body, kernel)
    if made is None:
        return None
    at = {
        next(iter(e.names)): here
        for e, here in zip(writer.out.index, load.index, strict=True)
        if e.names
    }
    return made.substitute(at)
