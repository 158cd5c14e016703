"""Faults that tests put into the compiler, the emitter and the frontend, to see who finds them.

A fault changes the first op, or the first instruction, that it fits of every kernel that is
compiled. `Planted.ops` says which op that was in the kernel that ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from openspyre.compiler import pipeline, timed
from openspyre.compiler.rewrite import rewritten
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Call, Const, DType, Kernel, Kind, Load, Op, Scalar, Space, walk
from openspyre.ir.ops import TABLE
from openspyre.ir.program import Copy, Instr, Node, Place, Program, Pt, Ring, TileLoop, Vec
from openspyre.runtime import programs
from openspyre.spec import CardSpec

OpChange = Callable[[Op, Kernel], "Op | None"]
NodeChange = Callable[[Instr, Program], "Instr | None"]
Swap = tuple[tuple[Node, ...], Instr]


@dataclass
class Planted:
    """What a fault hit.

    Attributes:
        ops: as the compiler had it then, of every kernel that was compiled: its name, the tensor
            that it writes, and its source.
    """

    ops: list[tuple[str, str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Planting:
    """A fault and where it is put: after stage `canonicalize`, into programs, in the frontend."""

    name: str
    where: str
    change: Any
    checked: bool = True  # whether the checker of programs is left on


# --- into kernels -----------------------------------------------------------------------------


def _first_call(op: Op, fits: Callable[[Call], bool], new: Callable[[Call], Scalar]) -> Op | None:
    found = next((n for n in walk(op.body) if isinstance(n, Call) and fits(n)), None)
    if found is None or op.kind is Kind.CONTRACT:
        return None
    body = rewritten(op.body, lambda node: new(found) if node == found else node)
    return replace(op, body=body)


def other_row(old: str, new: str) -> OpChange:
    """A wrong row of the op table."""

    def change(op: Op, _: Kernel) -> Op | None:
        return _first_call(op, lambda c: c.op == old, lambda c: replace(c, op=new))

    return change


def argument_only(name: str, kept: int) -> OpChange:
    """`name(a, b, ...)` becomes one of its arguments: a mask, an addend, a sign is dropped."""

    def change(op: Op, _: Kernel) -> Op | None:
        def fits(c: Call) -> bool:
            if c.op != name or not c.dtype.is_float or c.args[kept].dtype != c.dtype:
                return False
            return name != "add" or all(map(_reads, c.args))

        return _first_call(op, fits, lambda c: c.args[kept])

    return change


def _reads(value: Scalar) -> bool:
    return any(isinstance(n, Load) for n in walk(value))


def swapped(name: str) -> OpChange:
    """Operands in the wrong order."""

    def change(op: Op, _: Kernel) -> Op | None:
        def fits(c: Call) -> bool:
            return c.op == name and c.args[0] != c.args[1]

        return _first_call(op, fits, lambda c: replace(c, args=(c.args[1], c.args[0])))

    return change


def scaled(op: Op, _: Kernel) -> Op | None:
    """A wrong scale."""

    def fits(c: Call) -> bool:
        return c.op == "mul" and any(_number(a) for a in c.args)

    def new(c: Call) -> Scalar:
        args = tuple(replace(a, value=a.value * 1.25) if _number(a) else a for a in c.args)  # type: ignore[call-arg, union-attr]
        return replace(c, args=args)

    return _first_call(op, fits, new)


def _number(value: Scalar) -> bool:
    return isinstance(value, Const) and value.dtype is DType.F32 and value.value not in (0, 1, -1)


def first_row_only(op: Op, kernel: Kernel) -> Op | None:
    """A wrong slice: one dim of what is loaded stays at its first row."""
    names = {d.name for d in op.dims if (d.extent.constant or 0) > 1}

    def moves(load: Scalar) -> int | None:
        if not isinstance(load, Load) or not kernel.tensors[load.tensor].dtype.is_float:
            return None
        hits = [n for n, e in enumerate(load.index) if str(e) in names]
        return hits[0] if len(hits) > 1 else None

    found = next((n for n in walk(op.body) if moves(n) is not None), None)
    if found is None or op.kind is Kind.CONTRACT or op.lookups:
        return None
    assert isinstance(found, Load)
    place = moves(found)
    index = tuple(Expr.of(0) if n == place else e for n, e in enumerate(found.index))
    wrong = replace(found, index=index)
    return replace(op, body=rewritten(op.body, lambda n: wrong if n == found else n))


def earlier_slice(op: Op, kernel: Kernel) -> Op | None:
    """A wrong offset of a slice: it begins at element 0."""
    del kernel
    for load in walk(op.body):
        if isinstance(load, Load) and op.kind is not Kind.CONTRACT:
            for n, e in enumerate(load.index):
                offset = dict(e.terms).get((), 0)
                if offset > 0 and len(e.terms) > 1 and not load.guarded:
                    index = tuple(x - offset if m == n else x for m, x in enumerate(load.index))
                    wrong = replace(load, index=index)
                    body = rewritten(op.body, lambda x: wrong if x == load else x)  # noqa: B023
                    return replace(op, body=body)
    return None


def reduced_by(old: str, new: str) -> OpChange:
    """A reduction by another operation."""

    def change(op: Op, _: Kernel) -> Op | None:
        fits = op.kind is Kind.REDUCE and op.reduce == old and op.body.dtype.is_float
        return replace(op, reduce=new) if fits else None

    return change


def head_zero(op: Op, kernel: Kernel) -> Op | None:
    """A product that reads the first matrix of a batch for all of them."""
    if op.kind is not Kind.CONTRACT or not isinstance(op.body, Call):
        return None
    left, right = op.body.args
    if not isinstance(left, Load) or not isinstance(right, Load):
        return None
    shared = [d.name for d in op.dims if _walks(left, d.name) and _walks(right, d.name)]
    if not shared or (op.dims[0].extent.constant or 0) < 2:
        return None
    wrong = tuple(e.substitute({shared[0]: Expr.of(0)}) for e in right.index)
    return replace(op, body=replace(op.body, args=(left, replace(right, index=wrong))))


def _walks(load: Load, name: str) -> bool:
    return any(name in e.names for e in load.index)


def wrong_gather(op: Op, _: Kernel) -> Op | None:
    """A gather that looks its index up at the first place."""
    if op.kind is not Kind.GATHER or not op.lookups[0].index:
        return None
    first = op.lookups[0]
    index = tuple(Expr.of(0) for _ in first.index)
    return (
        None
        if index == first.index
        else replace(op, lookups=(replace(first, index=index), *op.lookups[1:]))
    )


# --- into programs ----------------------------------------------------------------------------


def other_code(old: str, new: str) -> NodeChange:
    """A vector instruction that computes something else."""

    def change(node: Instr, _: Program) -> Instr | None:
        if not isinstance(node, Vec) or not any(o.code == TABLE[old].code for o in node.ops):
            return None
        ops = tuple(
            replace(o, code=TABLE[new].code) if o.code == TABLE[old].code else o for o in node.ops
        )
        return replace(node, ops=ops)

    return change


def wrong_number(node: Instr, _: Program) -> Instr | None:
    """A wrong constant in a vector instruction."""
    if not isinstance(node, Vec):
        return None
    hits = [o for o in node.ops if o.code == 1 and o.dtype is DType.F32 and o.number not in (0, 1)]
    if not hits:
        return None
    ops = tuple(replace(o, number=o.number * 2) if o is hits[0] else o for o in node.ops)
    return replace(node, ops=ops)


def wrong_reduction(node: Instr, _: Program) -> Instr | None:
    """A sum that the SFU takes as a maximum."""
    if not isinstance(node, Vec) or not any(out.reduce == "sum" for out in node.outputs):
        return None
    return replace(node, outputs=tuple(
        replace(out, reduce="max") if out.reduce == "sum" else out for out in node.outputs
    ))  # fmt: skip


def no_bounds(node: Instr, _: Program) -> Instr | None:
    """A load without the bounds that zero what lies outside."""
    return replace(node, bounds=()) if isinstance(node, Copy) and node.bounds else None


def short_of_an_axis(node: Instr, _: Program) -> Instr | None:
    """A product whose second operand stays at the first row of a summed axis."""
    if not isinstance(node, Pt) or not node.k:
        return None
    terms = tuple(t for t in node.b.terms if t.axis != node.k[0])
    return None if terms == node.b.terms else replace(node, b=replace(node.b, terms=terms))


def same_operand_twice(node: Instr, _: Program) -> Instr | None:
    """A vector instruction that reads one operand for two."""
    if not isinstance(node, Vec) or len(node.inputs) < 2:
        return None
    a, b = node.inputs[:2]
    if a.dtype is not b.dtype or a.buffer == b.buffer or a.terms != b.terms:
        return None
    return replace(node, inputs=(a, a, *node.inputs[2:]))


def shifted_load(node: Instr, program: Program) -> Instr | None:
    """A load that puts its tile a stick too far, within its buffer."""
    if not isinstance(node, Copy) or node.target.space is not Space.LX or node.indirect:
        return None
    buffer = program.buffers[node.target.buffer]
    if not isinstance(node.target.base, int) or buffer.bytes < 1024:
        return None
    return replace(node, source=_without_a_term(node.source)) if node.source.terms else None


def _without_a_term(place: Place) -> Place:
    return replace(place, terms=place.terms[1:])


def too_early(body: tuple[Node, ...], _: Program) -> Swap | None:
    """A missing wait: an instruction runs before the one that gives it an operand."""
    for number, (first, use) in enumerate(pairwise(body)):
        if isinstance(first, TileLoop) or isinstance(use, TileLoop):
            continue
        if {p.buffer for p in _written(first)} & {p.buffer for p in _read(use)} - {-1}:
            return (*body[:number], use, first, *body[number + 2 :]), use
    return None


def _written(node: Instr) -> tuple[Place, ...]:
    match node:
        case Copy() | Ring():
            return (node.target,)
        case Pt():
            return (node.c,)
        case Vec():
            return tuple(out.place for out in node.outputs)


def _read(node: Instr) -> tuple[Place, ...]:
    match node:
        case Copy() | Ring():
            return (node.source,)
        case Pt():
            return node.a, node.b
        case Vec():
            return node.inputs


# --- putting them in --------------------------------------------------------------------------


@contextmanager
def planted(fault: Planting, monkeypatch: pytest.MonkeyPatch) -> Iterator[Planted]:
    """Inside, whatever is compiled has the fault."""
    found = Planted()
    with monkeypatch.context() as patch:
        match fault.where:
            case "stage":
                _into_stage(fault.change, found, patch)
            case "program":
                _into_programs(fault.change, found, patch)
            case "frontend":
                _into_frontend(fault.change, found, patch)
        if not fault.checked:
            patch.setattr(programs, "proved", lambda program, *_: program)
        yield found


def _changed(kernel: Kernel, change: OpChange, found: Planted) -> Kernel:
    for number, op in enumerate(kernel.ops):
        if (new := change(op, kernel)) is not None and new != op:
            found.ops.append((op.name, op.out.tensor, op.source))
            return replace(kernel, ops=(*kernel.ops[:number], new, *kernel.ops[number + 1 :]))
    return kernel


def _into_stage(change: OpChange, found: Planted, patch: pytest.MonkeyPatch) -> None:
    def faulty(kernel: Kernel, card: CardSpec) -> Kernel:
        return _changed(pipeline.canonicalize(kernel, card), change, found)

    stages = [(n, faulty if n == "canonicalize" else run, c) for n, run, c in pipeline.STAGES]
    patch.setattr(pipeline, "STAGES", tuple(stages))


def _into_frontend(change: OpChange, found: Planted, patch: pytest.MonkeyPatch) -> None:
    from openspyre.frontend import scheduling

    sound = scheduling.imported
    patch.setattr(scheduling, "imported", lambda *a, **k: _changed(sound(*a, **k), change, found))


def _into_programs(change: Any, found: Planted, patch: pytest.MonkeyPatch) -> None:
    sound = pipeline.emit

    def faulty(kernel: Kernel, card: CardSpec) -> Program:
        named = replace(kernel, ops=tuple(replace(op, source=op.name) for op in kernel.ops))
        program = sound(named, card)
        by_name = kernel.by_name
        hit: list[str] = []

        def nodes(body: tuple[Node, ...]) -> tuple[Node, ...]:
            if change is too_early and not hit and (swap := too_early(body, program)):
                hit.append(program.sources[swap[1].origin])
                return swap[0]
            return tuple(map(node, body))

        def node(one: Node) -> Node:
            if isinstance(one, TileLoop):
                return replace(one, body=nodes(one.body))
            if change is not too_early and not hit and (new := change(one, program)):
                hit.append(program.sources[one.origin] if one.origin >= 0 else "")
                return new
            return one

        sections = tuple(replace(s, body=nodes(s.body)) for s in program.sections)
        if hit and hit[0] in by_name:
            op = by_name[hit[0]]
            found.ops.append((op.name, op.out.tensor, op.source))
        sources = tuple((by_name[s].source or s) if s in by_name else s for s in program.sources)
        return replace(program, sections=sections, sources=sources)

    patch.setattr(pipeline, "emit", faulty)
    patch.setattr(timed, "emit", faulty)


STAGE = (
    Planting("another row: exp2 for exp", "stage", other_row("exp", "exp2")),
    Planting("another row: sqrt for rsqrt", "stage", other_row("rsqrt", "sqrt")),
    Planting("a dropped mask", "stage", argument_only("where", 1)),
    Planting("a dropped addend", "stage", argument_only("add", 0)),
    Planting("swapped operands of sub", "stage", swapped("sub")),
    Planting("a wrong scale", "stage", scaled),
    Planting("a slice at its first row", "stage", first_row_only),
    Planting("a slice at another offset", "stage", earlier_slice),
    Planting("a sum taken as a maximum", "stage", reduced_by("sum", "max")),
    Planting("a product of one head for all", "stage", head_zero),
    Planting("a gather by one index", "stage", wrong_gather),
)
PROGRAM = (
    Planting("another code: exp2 for exp", "program", other_code("exp", "exp2")),
    Planting("another code: add for mul", "program", other_code("mul", "add")),
    Planting("another number", "program", wrong_number),
    Planting("a reduction by another code", "program", wrong_reduction),
    Planting("a product short of an axis", "program", short_of_an_axis, checked=False),
    Planting("one operand for two", "program", same_operand_twice, checked=False),
    Planting("a load of another tile", "program", shifted_load, checked=False),
    Planting("a use before its load", "program", too_early, checked=False),
)
FRONTEND = (
    Planting("the frontend's sqrt for rsqrt", "frontend", other_row("rsqrt", "sqrt")),
    Planting("the frontend's slice", "frontend", earlier_slice),
    Planting("the frontend's mask", "frontend", argument_only("where", 1)),
)
