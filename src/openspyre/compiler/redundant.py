"""Work that need not be done: copies of tensors, equal ops, ops that nobody reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from openspyre.compiler.rewrite import reads, rewritten, settled, writes_whole
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Access, Kernel, Kind, Load, Op, Role, Scalar, Tensor


def substitute_copies(kernel: Kernel) -> Kernel:
    """Readers of a copy (also a transposed or broadcast one) read the original."""
    writes = _writes(kernel)
    copies: dict[str, tuple[Op, Load]] = {}
    ops: list[Op] = []
    last_read = _last_reads(kernel)
    for position, op in enumerate(kernel.ops):
        op = _through_copies(op, copies)
        ops.append(op)
        source = _copied(op, kernel.tensors)
        if source is None or len(writes[op.out.tensor]) != 1:
            continue
        until = last_read.get(op.out.tensor, position)
        if not any(position < w <= until for w in writes[source.tensor]):
            copies[op.out.tensor] = (op, source)
    return replace(kernel, ops=tuple(ops))


def _copied(op: Op, tensors: Mapping[str, Tensor]) -> Load | None:
    """The load that a whole local tensor is a copy of."""
    match op:
        case Op(kind=Kind.MAP, body=Load(guarded=False) as load):
            target, source = tensors[op.out.tensor], tensors[load.tensor]
            same = target.dtype is source.dtype and source.role is not Role.SCALAR
            if target.role is Role.LOCAL and same and writes_whole(op, target):
                return load
    return None


def _through_copies(op: Op, copies: Mapping[str, tuple[Op, Load]]) -> Op:
    def origin(tensor: str, index: tuple[Expr, ...]) -> tuple[str, tuple[Expr, ...]]:
        made, source = copies[tensor]
        at = {
            next(iter(e.names)): value
            for e, value in zip(made.out.index, index, strict=True)
            if e.names
        }
        return source.tensor, tuple(e.substitute(at) for e in source.index)

    def node(value: Scalar) -> Scalar:
        # A guarded load is 0 outside of the copy, which may lie inside of the original.
        if isinstance(value, Load) and value.tensor in copies and not value.guarded:
            tensor, index = origin(value.tensor, value.index)
            return replace(value, tensor=tensor, index=index)
        return value

    lookups = []
    for lookup in op.lookups:
        if lookup.tensor in copies:
            tensor, index = origin(lookup.tensor, lookup.index)
            lookup = replace(lookup, tensor=tensor, index=index)
        lookups.append(lookup)
    return replace(op, body=rewritten(op.body, node), lookups=tuple(lookups))


def merge_equal_ops(kernel: Kernel) -> Kernel:
    """Of ops that compute the same local tensor from the same values, the first one stays."""
    writes = _writes(kernel)
    seen: dict[object, tuple[int, str]] = {}
    same: dict[str, str] = {}
    ops: list[Op] = []
    for position, original in enumerate(kernel.ops):
        op = _renamed(original, same)
        target = kernel.tensors[op.out.tensor]
        if target.role is Role.LOCAL and len(writes[target.name]) == 1:
            key = (
                target.dtype, target.shape, op.kind, op.dims, op.rdims, op.body, op.out.index,
                op.reduce, op.lookups, op.accumulate,
            )  # fmt: skip
            earlier = seen.get(key)
            changed = earlier is not None and any(
                earlier[0] < w < position for t, _ in reads(op) for w in writes[t]
            )
            if earlier is not None and not changed and op.kind is not Kind.SCATTER:
                same[target.name] = earlier[1]
                continue
            seen[key] = (position, target.name)
        ops.append(op)
    return replace(kernel, ops=tuple(ops))


def _renamed(op: Op, names: Mapping[str, str]) -> Op:
    def node(value: Scalar) -> Scalar:
        if isinstance(value, Load) and value.tensor in names:
            return replace(value, tensor=names[value.tensor])
        return value

    lookups = tuple(replace(k, tensor=names.get(k.tensor, k.tensor)) for k in op.lookups)
    return replace(op, body=rewritten(op.body, node), lookups=lookups)


def drop_dead(kernel: Kernel) -> Kernel:
    """Drops ops without points, ops whose result nobody reads, and unused locals."""
    wanted = {t.name for t in kernel.tensors.values() if t.role is not Role.LOCAL}
    kept: list[Op] = []
    for op in reversed(kernel.ops):
        no_points = any(d.extent.constant == 0 for d in op.dims)
        if op.out.tensor not in wanted or no_points:
            continue
        kept.append(op)
        wanted |= {tensor for tensor, _ in reads(op)}
    tensors = {n: t for n, t in kernel.tensors.items() if n in wanted}
    return replace(kernel, tensors=tensors, ops=tuple(reversed(kept)))


def read_only_what_is_kept(kernel: Kernel) -> Kernel:
    """An op that reads a tensor it writes at another index computes into a tensor of its own."""
    tensors, ops = dict(kernel.tensors), list[Op]()
    taken = {*tensors, *(op.name for op in kernel.ops)}
    for op in kernel.ops:
        clashes = any(
            tensor == op.out.tensor and (index != op.out.index or op.kind is not Kind.MAP)
            for tensor, index in reads(op)
        )
        if not clashes:
            ops.append(op)
            continue
        name = f"{op.name}_new"
        while name in taken:
            name += "x"
        taken.add(name)
        dims = (*op.dims, *(op.rdims if op.kind is Kind.SCAN else ()))
        dtype = tensors[op.out.tensor].dtype
        tensors[name] = Tensor(name, dtype, tuple(d.extent for d in dims), Role.LOCAL)
        index = tuple(Expr.var(d.name) for d in dims)
        first = settled(replace(op, name=name, out=Access(name, index), accumulate=False))
        body = Load(name, index, dtype.compute)
        # the store is a plain copy, or a scatter when its index is looked up
        second = replace(op, kind=Kind.MAP, dims=dims, rdims=(), reduce=None, body=body)
        ops += [first, settled(second)]
    return replace(kernel, tensors=tensors, ops=tuple(ops))


def _writes(kernel: Kernel) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for position, op in enumerate(kernel.ops):
        found[op.out.tensor].append(position)
    return found


def _last_reads(kernel: Kernel) -> Mapping[str, int]:
    return {t: position for position, op in enumerate(kernel.ops) for t, _ in reads(op)}
