"""Merged dims of local tensors taken apart, where some op walks them apart.

A graph flattens [b, s, H] to [b*s, H] for a matmul and reads the result by b and s. Then a tensor
over b*s becomes one over b, s; the ops that walk b*s in one dim walk two; and so on through the
kernel. Dims that every op indexes alike are what steps can share (docs/decisions/0001.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from openspyre.compiler.contracts import roles
from openspyre.compiler.ranges import Facts, exact_quotient, split_multiples
from openspyre.compiler.rewrite import facts_of, reads, rewritten, sole_name
from openspyre.compiler.splits import divided_dim
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Access, Dim, Kernel, Kind, Load, Op, Role, Scalar, Tensor

Index = tuple[Expr, ...]


def take_dims_apart(kernel: Kernel) -> Kernel:
    """Reshapes local tensors until no op walks one of their outer dims with two of its own."""
    work = _Work(kernel, dict(kernel.tensors), list(kernel.ops))
    waiting = [t for t, tensor in kernel.tensors.items() if tensor.role is Role.LOCAL]
    for position, op in enumerate(kernel.ops):
        for tensor, _ in _accesses(op):
            work.users[tensor].add(position)
    while waiting:
        name = waiting.pop()
        touched = work.take_apart(name)
        waiting += [t for t in touched if t not in waiting]
    return replace(kernel, tensors=work.tensors, ops=tuple(work.ops))


@dataclass(slots=True)
class _Work:
    kernel: Kernel
    tensors: dict[str, Tensor]
    ops: list[Op]
    users: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def take_apart(self, name: str) -> set[str]:
        """Reshapes a tensor if that is possible; the locals that this concerns."""
        for position in range(len(self.tensors[name].shape) - 1):
            for inner in self.wishes(name, position):
                changed = self.reshaped(name, position, inner)
                if changed is not None:
                    for at, op in changed.items():
                        self.ops[at] = op
                    return self.locals_of(changed)
        return set()

    def locals_of(self, changed: dict[int, Op]) -> set[str]:
        names = {t for op in changed.values() for t, _ in _accesses(op)}
        return {t for t in names if self.tensors[t].role is Role.LOCAL}

    def wishes(self, name: str, position: int) -> list[Expr]:
        """Inner extents with which some op walks a dim of the tensor."""
        size = self.tensors[name].shape[position]
        found: list[Expr] = []
        for at in sorted(self.users[name]):
            op = self.ops[at]
            facts = facts_of(op, self.kernel)
            for tensor, index in _accesses(op):
                if tensor == name and len(index[position].terms) > 1:
                    found += _inner_extents(index[position], size, facts)
        return list(dict.fromkeys(found))

    def reshaped(self, name: str, position: int, inner: Expr) -> dict[int, Op] | None:
        """The ops that use the tensor, for the tensor with one dim in two; None if one cannot."""
        changed: dict[int, Op] = {}
        for at in sorted(self.users[name]):
            op = _walking_apart(self.ops[at], name, position, inner)
            op = None if op is None else self.indexed(op, name, position, inner)
            if op is None:
                return None
            changed[at] = op
        tensor = self.tensors[name]
        outer = exact_quotient(tensor.shape[position], inner)
        if outer is None:
            return None
        shape = (*tensor.shape[:position], outer, inner, *tensor.shape[position + 1 :])
        self.tensors[name] = replace(tensor, shape=shape)
        return changed

    def indexed(self, op: Op, name: str, position: int, inner: Expr) -> Op | None:
        """The op with every access to the tensor at two indices instead of one."""
        facts = facts_of(op, self.kernel)
        pairs = {}
        for tensor, index in _accesses(op):
            if tensor == name:
                outer, rest = split_multiples(index[position], inner)
                if not facts.within(rest, inner):
                    return None
                pairs[index] = (*index[:position], outer, rest, *index[position + 1 :])

        def node(value: Scalar) -> Scalar:
            if isinstance(value, Load) and value.tensor == name:
                return replace(value, index=pairs[value.index])
            return value

        out = op.out
        if out.tensor == name:
            out = Access(name, pairs[out.index])
        lookups = tuple(
            replace(k, index=pairs[k.index]) if k.tensor == name else k for k in op.lookups
        )
        return replace(op, body=rewritten(op.body, node), out=out, lookups=lookups)


def _accesses(op: Op) -> Iterator[tuple[str, Index]]:
    yield from reads(op)
    yield op.out.tensor, op.out.index


def _inner_extents(expr: Expr, size: Expr, facts: Facts) -> Iterator[Expr]:
    for name, extent in facts.extents.items():
        if name not in expr.names or extent.constant == 1 or extent == size:
            continue
        if exact_quotient(size, extent) is None:
            continue
        outer, rest = split_multiples(expr, extent)
        if outer.terms and facts.within(rest, extent):
            yield extent


def _walking_apart(op: Op, name: str, position: int, inner: Expr) -> Op | None:
    """The op with the dim that walks the tensor's dim alone split in two."""
    extents = {d.name: d for d in (*op.dims, *op.rdims)}
    for tensor, index in _accesses(op):
        if tensor != name:
            continue
        dim = extents.get(sole_name(index[position]) or "")
        if dim is None or dim.extent == inner:
            continue
        outer = exact_quotient(dim.extent, inner)
        if outer is None or not _splits_well(op, dim):
            return None
        return _walking_apart(divided_dim(op, dim, outer, inner), name, position, inner)
    return op


def _splits_well(op: Op, dim: Dim) -> bool:
    """False for dims that lie along sticks, in the PT or on the SFU's lanes."""
    if op.kind is Kind.CONTRACT:
        _, _, n, k = roles(op)
        return dim.name not in (*n, *k)
    if op.kind is Kind.SCAN and dim in op.rdims:
        return False
    return len(op.dims) + len(op.rdims) == 1 or dim != (*op.dims, *op.rdims)[-1]
