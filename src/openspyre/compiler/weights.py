"""Stage 5: weights that stay in LX between launches (docs/decisions/0021.md).

A weight gets a local tensor that a step of the prologue copies it to. Cores share it as the step
that reads it is divided: a core that needs a slice has it (*near*), or, where a slice is for
several cores, each of them has a part of it and they fetch the rest on the ring (*spread*), during
an earlier step where that is sooner (`early.py`). LX takes as many as fit beside the tiles, small
ones near while that leaves room for what is fetched early.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType

from openspyre.compiler.addressing import lane_dim, pitches, rounded_up
from openspyre.compiler.axes import StepAxes, largest_part, step_axes, step_ops
from openspyre.compiler.capacity import minimal_step
from openspyre.compiler.contraction import contraction
from openspyre.compiler.residency import (
    Use,
    all_axes,
    below_weights,
    division_of,
    far_steps,
    fetching,
    gathered_form,
    kept_form,
    local_uses,
)
from openspyre.compiler.resident import kept_weights
from openspyre.compiler.rewrite import Fresh, rewritten, vars_of
from openspyre.compiler.ring_moves import by_ring_is_sooner
from openspyre.compiler.tiles import lx_peak
from openspyre.ir.index import Expr
from openspyre.ir.kernel import (
    Access,
    Dim,
    Division,
    Kernel,
    Kind,
    Load,
    Op,
    Part,
    Residency,
    Role,
    Scalar,
    Space,
    Step,
    StickLayout,
    loads,
)
from openspyre.spec import CardSpec

_SHARES = (0.75, 0.5, 0.25)  # of LX for weights: the first that leaves every step's tiles room
_NEAR = 0.5  # of LX: what weights fill at most for some to be near, not spread


@dataclass(frozen=True, slots=True)
class _Form:
    """How the cores of a reader hold a weight.

    Attributes:
        order: its dims from outermost to the stick dim.
        parts: of its dims, those that are split.
        copies: parts of the reader's division along which cores hold the same.
        spreads: cores that need the same have parts of it.
    """

    tensor: str
    order: tuple[int, ...]
    shape: tuple[int, ...]
    element: int
    parts: tuple[tuple[int, Part], ...]
    copies: tuple[Part, ...]
    spreads: bool = False

    @property
    def bytes(self) -> int:
        """Of the fullest core."""
        split = dict(self.parts)
        counts = [largest_part(n, split.get(d)) for d, n in enumerate(self.shape)]
        return pitches([counts[d] for d in self.order], self.element)[1]


def keep_weights(kernel: Kernel, card: CardSpec) -> Kernel:
    """The kernel with a prologue that brings weights into LX, as many as have room there."""
    for share in _SHARES if kernel.weights else ():
        kept = _with_most(kernel, int(card.lx_usable * share), card)
        if _leaves_room(kept, card):
            return kept
    return kernel


def _with_most(kernel: Kernel, room: int, card: CardSpec) -> Kernel:
    """The kernel with the weights in LX that have room there and are of use."""
    chosen = _chosen(kernel, room, card)
    while chosen:
        kept = _kept(kernel, chosen, card)
        useless = _useless(kept, card)
        if not useless:
            return kept
        chosen = [form for form in chosen if form.tensor not in useless]
    return kernel


# --- which weights, and how they are shared ---------------------------------------------------


def _candidates(kernel: Kernel) -> Iterator[tuple[_Form, _Form]]:
    """The near and the spread form of every weight that ops read only as LX can serve it."""
    reads: dict[str, list[tuple[Step, Op, Load]]] = defaultdict(list)
    looked_up: set[str] = set()
    for step in kernel.steps:
        for op in step_ops(kernel, step):
            names = frozenset(x.name for x in op.lookups)
            looked_up |= {x.tensor for x in op.lookups}
            for load in loads(op):
                if load.guarded or any(names & e.names for e in load.index):
                    looked_up.add(load.tensor)
                reads[load.tensor].append((step, op, load))
    for name in kernel.weights:
        tensor = kernel.tensors[name]
        shape = [e.constant for e in tensor.shape]
        known = None not in [*shape, *(e.constant for e in tensor.strides)] and 0 not in shape
        if tensor.role is Role.INPUT and known and reads[name] and name not in looked_up:
            yield _forms(kernel, name, *reads[name][0])


def _forms(kernel: Kernel, name: str, step: Step, op: Op, load: Load) -> tuple[_Form, _Form]:
    """How the cores of a step that reads a weight can hold it."""
    tensor = kernel.tensors[name]
    shape = tuple(e.constant or 0 for e in tensor.shape)
    division = division_of(kernel, step.name)
    axes = step_axes(kernel, step, division)
    order = _order(kernel, op, load)
    parts = dict(_parts(axes, op, load, tensor.shape))
    held = {p.axis for p in parts.values()}
    free = [p for p in division.parts if p.axis not in held and p.parts > 1]
    near = _Form(name, order, shape, tensor.dtype.bytes, tuple(parts.items()), tuple(free))
    copies = []
    for part in sorted(free, key=lambda p: -p.parts):
        dims = [d for d in order if d not in parts and shape[d] >= part.parts]
        if not dims:
            copies.append(part)
            continue
        dim = max(dims, key=lambda d: (d != order[-1], shape[d]))
        parts[dim] = replace(part, granule=1)
    spread = replace(near, parts=tuple(sorted(parts.items())), copies=tuple(copies))
    spread = replace(spread, spreads=spread != near)
    return near, spread


def _parts(axes: StepAxes, op: Op, load: Load, shape: Sequence[Expr]) -> Iterator[tuple[int, Part]]:
    """The dims of a tensor that a reader's division splits."""
    seen: set[int] = set()
    for dim, index in enumerate(load.index):
        axis = axes.exact(op, index)
        split = axes.axes[axis].split if axis >= 0 and axis not in seen else None
        if split and split.parts > 1 and axes.axes[axis].extent == shape[dim]:
            seen.add(axis)
            yield dim, split


def _order(kernel: Kernel, op: Op, load: Load) -> tuple[int, ...]:
    """The dims of an operand, the stick dim that its reader wants last."""
    stick: str | None
    if op.kind is Kind.CONTRACT:
        parts = contraction(kernel, op)
        row = parts.k if load == parts.a else parts.n
        stick = row[-1] if row else None
    else:
        stick = lane_dim(kernel, op)
    dims = range(len(load.index))
    return tuple(sorted(dims, key=lambda d: stick is not None and stick in load.index[d].names))


def _chosen(kernel: Kernel, room: int, card: CardSpec) -> list[_Form]:
    """The forms that fit: those for which LX saves most first, the smallest ones near."""

    def taken(form: _Form) -> int:
        return rounded_up(form.bytes, card.lx_granule)

    def saved(pair: tuple[_Form, _Form]) -> float:
        return prod(pair[1].shape) * pair[1].element / taken(pair[1])

    found = list(_candidates(kernel))
    left, chosen = room, list[tuple[_Form, _Form]]()
    for near, spread in sorted(found, key=lambda pair: -saved(pair)):
        if taken(spread) <= left:
            left -= taken(spread)
            chosen.append((near, spread))
    forms = []
    left -= max(0, room - int(card.lx_usable * _NEAR))
    for near, spread in sorted(chosen, key=lambda pair: taken(pair[0]) - taken(pair[1])):
        more = taken(near) - taken(spread)
        forms.append(near if more <= left else spread)
        left -= more if more <= left else 0
    return forms


def _useless(kept: Kernel, card: CardSpec) -> frozenset[str]:
    """The weights that a reader could not take from LX, or no sooner than from device memory."""
    steps, uses = all_axes(kept), local_uses(kept)
    found = set()
    for op in kept.ops[: len(kept_weights(kept))]:
        name = op.out.tensor
        if kept_form(kept, steps, name, uses[name]) is not None:
            continue
        if gathered_form(kept, steps, name, uses[name], None) is None or not all(
            by_ring_is_sooner(fetching(kept, steps, name, use), card, copies=1)
            for use in _far(kept, steps, name, uses[name])
        ):
            found |= {load.tensor for load in loads(op)}
    return frozenset(found)


def _far(
    kernel: Kernel, steps: Mapping[int, StepAxes], name: str, uses: Sequence[Use]
) -> Iterator[Use]:
    far = far_steps(kernel, steps, name, uses)
    yield from (use for use in uses if use.step in far)


def _leaves_room(kept: Kernel, card: CardSpec) -> bool:
    """Whether the smallest tiles of every step fit beside the weights."""
    room = below_weights(kept, card)
    return all(
        lx_peak(kept, minimal_step(kept, step, card), division_of(kept, step.name), card) <= room
        for step in kept.steps[kept.prologue :]
    )


# --- the prologue -----------------------------------------------------------------------------


def _kept(kernel: Kernel, forms: Collection[_Form], card: CardSpec) -> Kernel:
    """The kernel that copies the weights first and reads the copies."""
    fresh = Fresh(kernel)
    alike: dict[object, list[tuple[_Form, Op]]] = {}
    for form in forms:
        made = form, _copy(kernel, form, fresh)
        alike.setdefault((form.shape, form.parts, form.copies), []).append(made)
    together = list(alike.values())
    steps = [_step(f"keep{n}", [op for _, op in pairs]) for n, pairs in enumerate(together)]
    divisions = {
        step.name: _division(pairs[0][0]) for step, pairs in zip(steps, together, strict=True)
    }
    made_by = {op.out.tensor: (form, op) for pairs in together for form, op in pairs}
    rows, at = dict(kernel.residency), card.lx_usable // card.lx_granule * card.lx_granule
    for name, (form, _) in made_by.items():
        size = rounded_up(form.bytes, card.lx_granule)
        at -= size
        rows[name] = Residency(Space.LX, at, size, 0, len(steps) + len(kernel.steps) - 1)
    tensors = {
        name: replace(kernel.tensors[form.tensor], name=name, role=Role.LOCAL, strides=())
        for name, (form, _) in made_by.items()
    }
    layouts = {name: StickLayout(form.order) for name, (form, _) in made_by.items()}
    copies = {form.tensor: name for name, (form, _) in made_by.items()}
    return replace(
        kernel,
        tensors=MappingProxyType({**kernel.tensors, **tensors}),
        layouts=MappingProxyType({**kernel.layouts, **layouts}),
        ops=(*(op for _, op in made_by.values()), *(_reading(op, copies) for op in kernel.ops)),
        steps=(*steps, *kernel.steps),
        divisions=MappingProxyType({**kernel.divisions, **divisions}),
        residency=MappingProxyType(rows),
        prologue=len(steps),
    )


def _copy(kernel: Kernel, form: _Form, fresh: Fresh) -> Op:
    """The op that copies a weight; every core that holds the same does it."""
    dims = tuple(Dim(f"w{d}", Expr.of(n)) for d, n in enumerate(form.shape))
    again = tuple(Dim(f"c{n}", Expr.of(p.parts)) for n, p in enumerate(form.copies))
    body = Load(form.tensor, vars_of(dims), kernel.tensors[form.tensor].dtype.compute)
    out = Access(fresh.name(f"{form.tensor}.kept"), vars_of(dims))
    return Op(fresh.name(f"keep_{form.tensor}"), Kind.MAP, (*again, *dims), body, out)


def _step(name: str, ops: Sequence[Op]) -> Step:
    """Ops over one space as a step."""
    binding = {op.name: MappingProxyType({d.name: d.name for d in op.dims}) for op in ops}
    return Step(name, tuple(op.name for op in ops), ops[0].dims, MappingProxyType(binding))


def _division(form: _Form) -> Division:
    """How the step is divided that copies weights of a form."""
    split = [replace(part, axis=f"w{dim}") for dim, part in form.parts]
    return Division((*split, *(replace(p, axis=f"c{n}") for n, p in enumerate(form.copies))))


def _reading(op: Op, copies: Mapping[str, str]) -> Op:
    """The op with loads of the copies instead of the weights."""

    def node(value: Scalar) -> Scalar:
        if isinstance(value, Load) and value.tensor in copies:
            return replace(value, tensor=copies[value.tensor])
        return value

    return replace(op, body=rewritten(op.body, node))
