"""What must hold of a Kernel after each stage. Checks yield problems in words; none is valid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set

from openspyre.ir.index import Expr
from openspyre.ir.kernel import (
    Call,
    Index,
    Kernel,
    Kind,
    Load,
    Loop,
    Op,
    Residency,
    Role,
    Space,
    Step,
    loads,
    operand,
    operand_dtype,
    pt_dtypes,
    walk,
)
from openspyre.spec import CardSpec


def well_formed(kernel: Kernel, card: CardSpec) -> Iterator[str]:
    """Names exist, ranks agree, locals are written before they are read."""
    written: set[str] = set()
    seen: set[str] = set()
    for op in kernel.ops:
        if op.name in seen:
            yield f"two ops are called {op.name}"
        seen.add(op.name)
        accesses = [*_reads(op), (op.out.tensor, op.out.index)]
        unknown = [t for t, _ in accesses if t not in kernel.tensors]
        if unknown:
            yield f"{op.name} uses tensors that do not exist: {', '.join(unknown)}"
            continue
        for name, index in accesses:
            if len(index) != len(kernel.tensors[name].shape):
                yield f"{op.name} indexes {name} with {len(index)} expressions"
        yield from _unknown_names(op, kernel)
        for name, _ in _reads(op):
            tensor = kernel.tensors[name]
            empty = any(e.constant == 0 for e in tensor.shape) or any(
                d.extent.constant == 0 for d in (*op.dims, *op.rdims)
            )
            if tensor.role is Role.LOCAL and name not in written and not empty:
                yield f"{op.name} reads {name} before anything writes it"
        if kernel.tensors[op.out.tensor].role in (Role.INPUT, Role.SCALAR):
            yield f"{op.name} writes the input {op.out.tensor}"
        written.add(op.out.tensor)


def canonical(kernel: Kernel, card: CardSpec) -> Iterator[str]:
    """The form that planning understands (docs/decisions/0001.md)."""
    yield from well_formed(kernel, card)
    for op in kernel.ops:
        dims = frozenset(d.name for d in (*op.dims, *op.rdims))
        looked = frozenset(k.name for k in op.lookups)
        for node in walk(op.body):
            if isinstance(node, Load):
                for expr in node.index:
                    if not expr.is_affine_in(dims | looked):
                        yield f"{op.name} reads {node.tensor} at {expr}, which is not affine"
            if isinstance(node, Index) and not node.value.is_affine_in(dims):
                yield f"{op.name} uses the value {node.value}, which is not affine"
        for expr in (e for k in op.lookups for e in k.index):
            if not expr.is_affine_in(dims):
                yield f"{op.name} looks up at {expr}, which is not affine"
        for expr in op.out.index:
            if not expr.is_affine_in(dims | looked):
                yield f"{op.name} stores at {expr}, which is not affine"
        if op.kind is Kind.CONTRACT:
            yield from _contract(op, kernel)
        yield from _same_tensor(op)


def laid_out(kernel: Kernel, card: CardSpec) -> Iterator[str]:
    """Every local tensor has a layout that names each of its dims once."""
    for tensor in kernel.tensors.values():
        if tensor.role is not Role.LOCAL:
            continue
        layout = kernel.layouts.get(tensor.name)
        if layout is None or sorted(layout.order) != list(range(len(tensor.shape))):
            yield f"the layout of {tensor.name} is {layout}"


def stepped(kernel: Kernel, card: CardSpec) -> Iterator[str]:
    """Steps partition the ops in an order that keeps dependences, and bind their dims legally."""
    by_name = kernel.by_name
    order = [name for step in kernel.steps for name in step.ops]
    if sorted(order) != sorted(by_name):
        yield "the steps do not hold every op exactly once"
        return
    yield from _order_kept(kernel, order)
    earlier: set[str] = set()
    for step in kernel.steps:
        ops = [by_name[n] for n in step.ops]
        yield from _bindings(step, ops)
        yield from _shared_tensors(kernel, step, ops, earlier)
        earlier |= {op.out.tensor for op in ops}


def divided(kernel: Kernel, card: CardSpec) -> Iterator[str]:
    """Divisions name axes of their step, cores suffice, every core has one coordinate."""
    for step in kernel.steps:
        division = kernel.divisions.get(step.name)
        if division is None:
            yield f"step {step.name} has no division"
            continue
        if division.cores > card.cores:
            yield f"step {step.name} wants {division.cores} of {card.cores} cores"
        names = [p.axis for p in division.parts]
        if len(set(names)) != len(names) or not set(names) <= {a.name for a in step.axes}:
            yield f"the division of step {step.name} splits {', '.join(names)}"
        stride = 1
        for part in sorted(division.parts, key=lambda p: p.stride):
            if part.parts < 1 or part.granule < 1 or part.stride != stride:
                yield f"step {step.name}: part {part} does not follow stride {stride}"
            stride *= part.parts


def kept(kernel: Kernel, card: CardSpec) -> Iterator[str]:
    """The prologue copies weights whole into local tensors that stay in LX for the whole kernel."""
    if not kernel.prologue:
        return
    yield from laid_out(kernel, card)
    yield from stepped(kernel, card)
    yield from divided(kernel, card)
    last = len(kernel.steps) - 1
    made: set[str] = set()
    for step in kernel.steps[: kernel.prologue]:
        for op in (kernel.by_name[name] for name in step.ops):
            made.add(op.out.tensor)
            row = kernel.residency.get(op.out.tensor)
            if row is None or row.space is not Space.LX or (row.first, row.last) != (0, last):
                yield f"{op.name} of the prologue leaves {op.out.tensor} at {row}"
            if not isinstance(op.body, Load) or op.body.tensor not in kernel.weights:
                yield f"{op.name} of the prologue copies no weight"
            elif op.body.index != op.out.index or kernel.tensors[op.out.tensor].role is not (
                Role.LOCAL
            ):
                yield f"{op.name} of the prologue is no copy"
    for op in kernel.ops[len(made) :]:
        if op.out.tensor in made:
            yield f"{op.name} writes {op.out.tensor}, which the prologue has made"
    yield from placed(kernel, card)


def looped(kernel: Kernel, card: CardSpec) -> Iterator[str]:
    """Tile loops walk axes (or private dims) once each, with tiles of at least one point."""
    by_name = kernel.by_name
    for step in kernel.steps:
        axes = [loop.axis for loop in step.loops]
        if len(set(axes)) != len(axes) or not set(axes) <= {a.name for a in step.axes}:
            yield f"step {step.name} loops over {', '.join(axes)}"
        for name, loops in step.inner.items():
            op, bound = by_name[name], step.binding[name]
            private = {d.name for d in (*op.dims, *op.rdims)} - bound.keys()
            if op.kind is Kind.SCAN:
                private -= {d.name for d in op.rdims}
            walked = [loop.axis for loop in loops]
            if len(set(walked)) != len(walked) or not set(walked) <= private:
                yield f"{name} loops over {', '.join(walked)}"
            if op.kind is Kind.SCATTER and not in_order(op, loops, private):
                yield f"{name} loops over {', '.join(walked)}: its last store must win"
        every = [*step.loops, *(loop for loops in step.inner.values() for loop in loops)]
        if any(loop.tile < 1 for loop in every):
            yield f"step {step.name} has an empty tile"


def in_order(op: Op, loops: Sequence[Loop], private: Collection[str]) -> bool:
    """Whether loops over private dims leave points of a scatter that may meet in their order."""
    apart = {d.name for d in op.dims if d.extent.constant == 1 or Expr.var(d.name) in op.out.index}
    dims = [d.name for d in op.dims if d.name in private and d.name not in apart]
    walked = [loop for loop in loops if loop.axis not in apart]
    return [loop.axis for loop in walked] == dims[: len(walked)] and all(
        loop.tile == 1 for loop in walked[:-1]
    )


def placed(kernel: Kernel, card: CardSpec) -> Iterator[str]:
    """LX ranges fit, and do not overlap while both are live (tiles of one step apart).

    A tile that is loaded before its own step, the last of its lifetime, holds what no step writes
    from then on.
    """
    rows = [(n, r) for n, r in kernel.residency.items() if r.space is Space.LX]
    for name, row in rows:
        if row.offset < 0 or row.offset + row.bytes > card.lx_usable:
            yield f"{name} lies at {row.offset} + {row.bytes} of {card.lx_usable} bytes"
    kinds: dict[str, list[tuple[str, Residency]]] = {"": [], "the tile ": [], "the early tile ": []}
    for name, row in sorted(rows, key=lambda item: item[1].first):
        kind = _lx_kind(kernel, name, row)
        for each, live in kinds.items():
            kinds[each] = [(n, r) for n, r in live if r.last >= row.first]
            if each == kind == "the tile ":
                continue
            for other, taken in kinds[each]:
                if _overlap(row, taken) and not _of_one_step(row, taken, {kind, each}):
                    both = " and ".join(k + n for k, n in sorted([(kind, name), (each, other)]))
                    yield f"{both} overlap in LX"
        kinds[kind].append((name, row))
        if kind == "the early tile ":
            yield from _early(kernel, name, row)


def loaded_early(kernel: Kernel, card: CardSpec) -> Iterator[str]:
    """Steps with other loops are right as before, and in LX."""
    yield from looped(kernel, card)
    yield from placed(kernel, card)


def _lx_kind(kernel: Kernel, name: str, row: Residency) -> str:
    if name in kernel.tensors:
        return ""
    return "the early tile " if row.first < row.last else "the tile "


def _of_one_step(a: Residency, b: Residency, kinds: set[str]) -> bool:
    """Whether these are tiles of one step, which take turns as its ops do."""
    return a.last == b.last and kinds == {"the tile ", "the early tile "}


def _early(kernel: Kernel, name: str, row: Residency) -> Iterator[str]:
    if not 0 <= row.first <= row.last < len(kernel.steps):
        yield f"the tile {name} lives in steps that do not exist"
        return
    if row.first < kernel.prologue:
        yield f"the tile {name} is loaded in the prologue, which may be left out"
    for step in kernel.steps[row.first : row.last + 1]:
        for written in {kernel.by_name[op].out.tensor for op in step.ops}:
            if name.endswith(f".{written}"):
                yield f"the tile {name} is loaded before step {step.name} writes {written}"


def _overlap(a: Residency, b: Residency) -> bool:
    together = a.first <= b.last and b.first <= a.last
    return together and a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes


# --- parts of the checks ----------------------------------------------------------------------


def _reads(op: Op) -> Iterator[tuple[str, tuple[Expr, ...]]]:
    for node in walk(op.body):
        if isinstance(node, Load):
            yield node.tensor, node.index
    for lookup in op.lookups:
        yield lookup.tensor, lookup.index


def _unknown_names(op: Op, kernel: Kernel) -> Iterator[str]:
    dims = {d.name for d in (*op.dims, *op.rdims)}
    known = dims | {k.name for k in op.lookups} | set(kernel.symbols)
    used = {n for _, index in _reads(op) for e in index for n in e.names}
    used |= {n for e in op.out.index for n in e.names}
    used |= {n for node in walk(op.body) if isinstance(node, Index) for n in node.value.names}
    if used - known:
        yield f"{op.name} uses the unknown names {', '.join(sorted(used - known))}"
    reduced = {d.name for d in op.rdims} if op.kind is not Kind.SCAN else set()
    if reduced & {n for e in op.out.index for n in e.names}:
        yield f"{op.name} stores at a reduced dim"


def _contract(op: Op, kernel: Kernel) -> Iterator[str]:
    args = op.body.args if isinstance(op.body, Call) and op.body.op == "mul" else ()
    if len(args) != 2 or None in map(operand, args) or any(x.guarded for x in loads(op)):
        yield f"{op.name} is a contraction of something else than two loads"
    else:
        a, b = (operand_dtype(value, kernel.tensors) for value in args)
        if pt_dtypes(a, b) is None:
            yield f"{op.name} contracts {' and '.join(sorted({a.value, b.value}))}"
    if not op.rdims:
        yield f"{op.name} is a contraction without a reduced dim"


def _same_tensor(op: Op) -> Iterator[str]:
    for tensor, index in _reads(op):
        if tensor == op.out.tensor and (index != op.out.index or op.kind is not Kind.MAP):
            yield f"{op.name} reads {tensor}, which it writes, at another index"


def _order_kept(kernel: Kernel, order: list[str]) -> Iterator[str]:
    place = {name: n for n, name in enumerate(order)}
    last_write: dict[str, str] = {}
    readers: dict[str, list[str]] = defaultdict(list)
    for op in kernel.ops:
        for tensor, _ in _reads(op):
            before = last_write.get(tensor)
            if before is not None and place[before] > place[op.name]:
                yield f"{op.name} comes before {before}, which writes {tensor}"
            readers[tensor].append(op.name)
        for before in (*readers.pop(op.out.tensor, ()), last_write.get(op.out.tensor)):
            if before is not None and place[before] > place[op.name]:
                yield f"{op.name} writes {op.out.tensor} before {before} is done with it"
        last_write[op.out.tensor] = op.name


def _bindings(step: Step, ops: list[Op]) -> Iterator[str]:
    axes = {a.name: a.extent for a in step.axes}
    for op in ops:
        bound = step.binding.get(op.name, {})
        if sorted(bound.values()) != sorted(axes):
            yield f"{op.name} does not walk every axis of step {step.name} once"
        extents = {d.name: d.extent for d in op.dims}
        for dim, axis in bound.items():
            if axis not in axes or extents.get(dim) != axes.get(axis):
                yield f"{op.name}: dim {dim} cannot walk axis {axis} of step {step.name}"


def _shared_tensors(kernel: Kernel, step: Step, ops: list[Op], earlier: Set[str]) -> Iterator[str]:
    """What a step writes and reads lies on one core (the rule of 0001).

    Args:
        earlier: the tensors that steps before write.
    """
    writers: dict[str, list[int]] = defaultdict(list)
    for at, op in enumerate(ops):
        writers[op.out.tensor].append(at)
    walked: dict[str, list[tuple[frozenset[str], ...]]] = defaultdict(list)
    shared = {t for at, op in enumerate(ops) for t, _ in _reads(op) if min(writers[t] or [at]) < at}
    for at, op in enumerate(ops):
        bound = step.binding.get(op.name, {})
        for tensor, index in [*_reads(op), (op.out.tensor, op.out.index)]:
            if tensor in shared:
                walked[tensor].append(tuple(_axes_of(e, bound) for e in index))
        for tensor, _ in _reads(op):
            if writers[tensor] and writers[tensor][0] > at:
                yield f"step {step.name} reads {tensor} in {op.name} and writes it afterwards"
    for tensor in sorted(shared):
        if kernel.tensors[tensor].role is Role.MUTATED or tensor in earlier:
            yield f"step {step.name} reads {tensor} from LX, which holds only a part of it"
        if any(ops[w].kind is Kind.SCATTER for w in writers[tensor]):
            yield f"step {step.name} reads {tensor}, which it scatters into"
        if any(_far(op, tensor) for op in ops):
            yield f"step {step.name} reads {tensor} with a guard or a lookup, and writes it"
        for position, ways in enumerate(zip(*walked[tensor], strict=True)):
            if len(set(ways)) > 1 or any("?" in way for way in ways):
                yield f"step {step.name}: dim {position} of {tensor} is walked in several ways"


def _axes_of(expr: Expr, bound: Mapping[str, str]) -> frozenset[str]:
    """The axis an index is exactly, none, or `?` with those it merely contains."""
    found = frozenset(bound[n] for n in expr.names if n in bound)
    exact = len(expr.names) == 1 and all(expr == Expr.var(n) for n in expr.names)
    return found if exact or not found else found | {"?"}


def _far(op: Op, tensor: str) -> bool:
    looked = {k.name for k in op.lookups}
    return any(
        isinstance(n, Load)
        and n.tensor == tensor
        and (n.guarded or any(e.names & looked for e in n.index))
        for n in walk(op.body)
    )
