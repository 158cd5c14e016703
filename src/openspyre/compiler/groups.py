"""Which ops can run under the same tile loops on the same cores (docs/decisions/0001.md, steps).

A group starts with one op whose dims are its axes. A further op joins if it walks every axis with
one of its own dims, and if what it reads from the group lies on its own core: every dim of such a
tensor is walked by the same axis on both sides, or by none. Axes for which that fails become
private dims; hazards that no binding cures keep the op out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from openspyre.compiler.bounds import highest, value_range
from openspyre.compiler.per_op import once_per_op
from openspyre.compiler.rewrite import lookups_used, reads, sole_name
from openspyre.compiler.stores import told_apart
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Dim, Kernel, Kind, Load, Op, Role, walk

# What walks one dim of a tensor that the group writes: the axis that is exactly its index, or
# axes that its index merely contains (no reader can then stay in the group without losing them).
Walked = tuple[str | None, frozenset[str]]
_PRIVATE: Walked = (None, frozenset())
_FAR = 1 << 62  # what is looked up may be any index


@dataclass(frozen=True, slots=True)
class Uses:
    """What grouping must know about one op.

    Attributes:
        splittable: parallel dims that cores may share.
        reads: (tensor, index, whether it must come from device memory).
    """

    op: Op
    extents: Mapping[str, Expr]
    splittable: tuple[str, ...]
    reads: tuple[tuple[str, tuple[Expr, ...], bool], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Ops that run together. `inside`: the tensors written here; `outside`: those read only."""

    ops: tuple[Op, ...]
    axes: tuple[Dim, ...]
    binding: Mapping[str, Mapping[str, str]]
    inside: Mapping[str, tuple[Walked, ...]]
    outside: frozenset[str]
    scattered: frozenset[str]
    hints: Mapping[tuple[str, int], str] = field(default_factory=dict)


@once_per_op
def uses(kernel: Kernel, op: Op) -> Uses:
    looked = lookups_used(op)
    found = []
    for node in walk(op.body):
        if isinstance(node, Load):
            table = any(e.names & looked for e in node.index)
            mutated = kernel.tensors[node.tensor].role is Role.MUTATED
            found.append((node.tensor, node.index, node.guarded or table or mutated))
    for lookup in op.lookups:
        mutated = kernel.tensors[lookup.tensor].role is Role.MUTATED
        found.append((lookup.tensor, lookup.index, mutated))
    extents = {d.name: d.extent for d in (*op.dims, *op.rdims)}
    return Uses(op, extents, _splittable(op, kernel), tuple(dict.fromkeys(found)))


def _splittable(op: Op, kernel: Kernel) -> tuple[str, ...]:
    """Dims whose points write different elements."""
    if op.kind is Kind.SCATTER:
        apart = told_apart(op, kernel)
    else:
        apart = frozenset[str]().union(*(e.names for e in op.out.index))
    return tuple(d.name for d in op.dims if d.name in apart)


class Grouping:
    """Answers whether ops of a kernel can run together."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.uses = tuple(uses(kernel, op) for op in kernel.ops)
        self.writers: dict[str, list[int]] = defaultdict(list)
        for position, op in enumerate(kernel.ops):
            self.writers[op.out.tensor].append(position)

    def single(self, position: int) -> Group:
        """The group of one op, alone."""
        use = self.uses[position]
        axes = tuple(d for d in use.op.dims if d.name in use.splittable)
        empty = Group((), axes, {}, {}, frozenset(), frozenset())
        return self._joined(empty, use, {d.name: d.name for d in axes})

    def extended(self, group: Group, start: int, position: int) -> Group | None:
        """The group (its first op stands at `start`) with one more op, or None."""
        use = self.uses[position]
        if self._hazard(group, use, start):
            return None
        bound = _bound(group, use, stores=not self._apart(group, use))
        return self._joined(group, use, bound)

    def _apart(self, group: Group, use: Uses) -> bool:
        """Whether nobody here reads what an op stores, or stores where it does."""
        target = use.op.out.tensor
        if any(t == target for t, *_ in use.reads) or target not in group.inside:
            return False
        if any(t == target for op in group.ops for t, _ in reads(op)):
            return False
        own = self._box(use.op)
        return all(
            any(a[1] < b[0] or b[1] < a[0] for a, b in zip(own, self._box(op), strict=True))
            for op in group.ops
            if op.out.tensor == target
        )

    def _box(self, op: Op) -> tuple[tuple[int, int], ...]:
        """For every dim of an op's result the least and the largest index it stores to."""
        limits = dict(self.kernel.limits) | {k.name: (-_FAR, _FAR) for k in op.lookups}
        limits |= {d.name: (0, max(0, highest(d.extent, limits) - 1)) for d in op.dims + op.rdims}
        return tuple(value_range(e, limits) for e in op.out.index)

    def _hazard(self, group: Group, use: Uses, start: int) -> bool:
        for tensor, _, far in use.reads:
            if tensor in group.scattered:
                return True
            if tensor in group.inside and (far or self.writers[tensor][0] < start):
                return True
        target = use.op.out.tensor
        if target in group.outside or target in group.scattered:
            return True
        again = target in group.inside
        mutated = self.kernel.tensors[target].role is Role.MUTATED
        return again and (mutated or use.op.kind is Kind.SCATTER)

    def _joined(self, group: Group, use: Uses, bound: Mapping[str, str]) -> Group:
        op, alive = use.op, set(bound.values())
        if len(alive) < len(group.axes):
            group = _without_others(group, alive)
        binding = {**group.binding, op.name: dict(bound)}
        inside = dict(group.inside)
        written = tuple(_walked(e, bound) for e in op.out.index)
        before = inside.get(op.out.tensor)
        inside[op.out.tensor] = written if before is None else _both(before, written)
        fresh = {t for t, _, _ in use.reads if t not in group.inside}
        hints = dict(group.hints)
        for tensor, index, _ in use.reads:
            for place, expr in enumerate(index):
                name = sole_name(expr)
                if name is not None and name in bound:
                    hints.setdefault((tensor, place), bound[name])
        scattered = group.scattered | ({op.out.tensor} if op.kind is Kind.SCATTER else set())
        return Group(
            (*group.ops, op), group.axes, binding, inside, group.outside | fresh, scattered, hints
        )


def _without_others(group: Group, alive: set[str]) -> Group:
    """The group when only the axes of `alive` are shared any longer."""
    return replace(
        group,
        axes=tuple(a for a in group.axes if a.name in alive),
        binding={
            name: {d: a for d, a in pairs.items() if a in alive}
            for name, pairs in group.binding.items()
        },
        inside={t: tuple(_kept(w, alive) for w in dims) for t, dims in group.inside.items()},
        hints={k: a for k, a in group.hints.items() if a in alive},
    )


def _kept(walked: Walked, alive: set[str]) -> Walked:
    axis, mixed = walked
    return (axis if axis in alive else None, mixed & alive)


def _both(one: tuple[Walked, ...], other: tuple[Walked, ...]) -> tuple[Walked, ...]:
    """Two writers of a tensor: an axis counts as exact where both agree."""
    merged = []
    for (a, mixed_a), (b, mixed_b) in zip(one, other, strict=True):
        exact = a if a == b else None
        apart = {x for x in (a, b) if x is not None and x != exact}
        merged.append((exact, mixed_a | mixed_b | frozenset(apart)))
    return tuple(merged)


def _walked(expr: Expr, bound: Mapping[str, str]) -> Walked:
    name = sole_name(expr)
    if name is not None and name in bound:
        return bound[name], frozenset()
    return None, frozenset(bound[n] for n in expr.names if n in bound)


def _bound(group: Group, use: Uses, *, stores: bool) -> Mapping[str, str]:
    """For every axis that can stay the dim of the op that walks it.

    `stores`: where others of the group store to says which dims of the op's result walk what.
    """
    alive = {a.name: a.extent for a in group.axes}
    while alive:
        pairs, lost, private = _demanded(group, use, alive, stores=stores)
        if not lost:
            rest = [a for a in alive if a not in pairs.values()]
            lost = _offered(group, use, pairs, rest, alive, private)
        if not lost:
            return pairs
        alive = {a: e for a, e in alive.items() if a not in lost}
    return {}


def _demanded(
    group: Group, use: Uses, alive: Mapping[str, Expr], *, stores: bool
) -> tuple[dict[str, str], set[str], set[str]]:
    """Pairs that tensors of the group force, axes that they rule out, dims that stay private."""
    pairs: dict[str, str] = {}
    lost: set[str] = set()
    private: set[str] = set()
    accesses = [(t, i) for t, i, _ in use.reads]
    accesses += [(use.op.out.tensor, use.op.out.index)] if stores else []
    for tensor, index in accesses:
        for (axis, mixed), expr in zip(group.inside.get(tensor, ()), index, strict=False):
            lost |= mixed & alive.keys()
            if axis not in alive or axis is None:
                private |= expr.names
                continue
            name = sole_name(expr)
            fits = name in use.splittable and use.extents[name or ""] == alive[axis]
            taken = axis in pairs.values() and pairs.get(name or "") != axis
            if name is None or not fits or taken or pairs.get(name, axis) != axis:
                lost.add(axis)
            else:
                pairs[name] = axis
    lost |= {a for d, a in pairs.items() if d in private}
    return pairs, lost, private


def _offered(
    group: Group,
    use: Uses,
    pairs: dict[str, str],
    rest: list[str],
    alive: Mapping[str, Expr],
    private: set[str],
) -> set[str]:
    """Pairs dims with the axes that nothing demands; returns the axes that found none."""
    lost: set[str] = set()
    for axis in rest:
        free = [
            d for d in use.splittable
            if d not in pairs and d not in private and use.extents[d] == alive[axis]
        ]  # fmt: skip
        hinted = [
            d
            for d in free
            for tensor, index, _ in use.reads
            for place, expr in enumerate(index)
            if sole_name(expr) == d and group.hints.get((tensor, place)) == axis
        ]
        chosen = next(iter([*hinted, *free]), None)
        if chosen is None:
            lost.add(axis)
        else:
            pairs[chosen] = axis
    return lost
