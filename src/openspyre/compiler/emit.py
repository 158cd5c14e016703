"""Writes a planned Kernel down as a Program. Decides nothing: the plan tables say it all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from openspyre.compiler.addressing import address
from openspyre.compiler.contraction import contraction
from openspyre.compiler.lanes import lanes_of
from openspyre.compiler.residency import far_tensors, holders_of, kept_tensors, planned_tiles
from openspyre.compiler.slots import SlotTable
from openspyre.compiler.stores import distinct_lookups
from openspyre.compiler.tiles import Content, Read, StepTiles, Tile, TileDim, used_lookups
from openspyre.compiler.vectors import VectorProgram, moved
from openspyre.errors import BrokenInvariant
from openspyre.ir.index import Expr
from openspyre.ir.kernel import (
    Access,
    Kernel,
    Kind,
    Load,
    Lookup,
    Op,
    Role,
    Space,
    Tensor,
    loads,
)
from openspyre.ir.program import (
    Axis,
    Bound,
    Buffer,
    Copy,
    Holding,
    Indirect,
    Node,
    Origin,
    Place,
    Program,
    Pt,
    Ring,
    Section,
    Slot,
    Term,
    TileLoop,
    Vec,
    VecIndex,
    VecOut,
)
from openspyre.spec import CardSpec


def emit(kernel: Kernel, card: CardSpec) -> Program:
    """The Program of a planned kernel."""
    emitter = _Emitter(kernel, card)
    steps = [_StepEmitter(emitter, number) for number in range(len(kernel.steps))]
    joining: dict[int, list[_StepEmitter]] = defaultdict(list)
    for step in steps:
        for during in step.early_from:
            joining[during].append(step)
    sections: list[Section] = []
    for number, step in enumerate(steps):
        sections.append(step.section())
        sections += (later.early(number) for later in joining[number])
    pool = [r for r in kernel.residency.values() if r.space is Space.DEVICE]
    return Program(
        kernel.name,
        tuple(emitter.slots.definitions),
        tuple(emitter.buffers),
        tuple(sections),
        max((r.offset + r.bytes for r in pool), default=0),
        emitter.slots.counts,
        tuple(op.source or op.name for op in kernel.ops),
        kernel.prologue,
    )


class _Emitter:
    """What the steps of one Program share."""

    def __init__(self, kernel: Kernel, card: CardSpec) -> None:
        self.kernel, self.card = kernel, card
        self.slots = SlotTable(kernel)
        self.buffers: list[Buffer] = []
        self.buffer_numbers: dict[str, int] = {}
        self.kept = kept_tensors(kernel)
        self.far = far_tensors(kernel)
        self.holders = holders_of(kernel)
        self.prologue = frozenset(step.name for step in kernel.steps[: kernel.prologue])
        self.origins = {op.name: number for number, op in enumerate(kernel.ops)}
        for name, lies in self.kept.items():
            self.add_buffer(name, lies.bytes, 1)

    def add_buffer(self, name: str, size: int, slots: int) -> None:
        self.buffer_numbers[name] = len(self.buffers)
        self.buffers.append(Buffer(name, self.kernel.residency[name].offset, size, slots))

    def plan(self, number: int) -> StepTiles:
        """The tiles of a step, as `place` planned them."""
        plan = planned_tiles(self.kernel, number, self.kept, self.far, self.card)
        for tile in plan.tiles:
            self.add_buffer(tile.name, tile.bytes, tile.slots)
        return plan


class _StepEmitter:
    def __init__(self, program: _Emitter, number: int) -> None:
        self.program, self.kernel, self.slots = program, program.kernel, program.slots
        self.step, self.plan = self.kernel.steps[number], program.plan(number)
        self.axes = self.plan.axes
        self.ops = [self.kernel.by_name[name] for name in self.step.ops]
        # The first reader of a shared tile loads it.
        self.first_reads: dict[int, tuple[Op, str, Read]] = {}
        for (op, role, read), tile in self.plan.operands.items():
            self.first_reads.setdefault(tile, (self.kernel.by_name[op], role, read))
        rows = self.kernel.residency
        firsts = {n: rows[t.name].first for n, t in enumerate(self.plan.tiles)}
        # Tiles that are loaded during an earlier step, and in which.
        self.early_in = {n: first for n, first in firsts.items() if first < number}
        self.early_from = frozenset(self.early_in.values())

    def section(self) -> Section:
        return Section(self.step.name, self.split_axes(), tuple(self.level(0)))

    def early(self, during: int) -> Section:
        """The loads that join an earlier step."""
        numbers = (n for n in self.first_reads if self.early_in.get(n) == during)
        loads = [self.load(op, read, tile) for op, read, tile in map(self.first_load, numbers)]
        return Section(f"{self.step.name} early", self.split_axes(), tuple(loads), joins=True)

    def first_load(self, number: int) -> tuple[Op, Read, Tile]:
        op, _, read = self.first_reads[number]
        return op, read, self.plan.tiles[number]

    def split_axes(self) -> tuple[Axis, ...]:
        axes = []
        for axis in self.axes.axes:
            split = axis.split
            parts = (split.parts, split.stride, split.granule) if split else (1, 1, 1)
            axes.append(Axis(axis.name, self.slots.value(axis.extent), *parts))
        return tuple(axes)

    # --- the tree of loops ------------------------------------------------------------------

    def level(self, depth: int) -> list[Node]:
        """What stands inside of `depth` loops of the step."""
        if depth < self.axes.outer:
            nodes = [n for op in self.ops for n in self.reads(op, depth)]
            loop = self.axes.loops[self.ops[0].name][depth]
            return [*nodes, TileLoop(loop.axis, loop.tile, tuple(self.level(depth + 1)))]
        return [node for op in self.ops for node in self.op_level(op, depth)]

    def op_level(self, op: Op, depth: int) -> list[Node]:
        loops = self.axes.loops[op.name]
        nodes = self.reads(op, depth)
        if depth == len(loops):
            nodes.append(self.compute(op))
        else:
            loop = loops[depth]
            nodes.append(TileLoop(loop.axis, loop.tile, tuple(self.op_level(op, depth + 1))))
        if depth == self.axes.finished_depth(op):
            nodes += self.finish(op)
        return nodes

    def reads(self, op: Op, depth: int) -> list[Node]:
        """The loads (and relayouts) of an op's operands at a depth."""
        nodes: list[Node] = []
        for number, (reader, role, read) in self.first_reads.items():
            tile = self.plan.tiles[number]
            if reader is op and tile.depth == depth and number not in self.early_in:
                if tile.content is Content.RELAYOUT and isinstance(read, Load):
                    nodes.append(self.relayout(op, role, read, tile))
                else:
                    nodes.append(self.load(op, read, tile))
        return nodes

    # --- places -----------------------------------------------------------------------------

    def tile_place(self, number: int, dims: tuple[TileDim, ...] | None = None) -> Place:
        tile = self.plan.tiles[number]
        walked = tile.dims if dims is None else dims
        terms = (Term(d.axis, d.pitch, Origin.TILE if d.tiled else Origin.CORE) for d in walked)
        buffer = self.program.buffer_numbers[tile.name]
        return Place(Space.LX, tile.dtype, 0, tuple(terms), buffer)

    def lx_place(self, op: Op, access: Access | Load | Lookup) -> Place:
        lies = self.plan.tensors[access.tensor]
        terms, offset = lies.terms(self.axes, op, access.index)
        return Place(
            Space.LX,
            self.kernel.tensors[access.tensor].dtype,
            self.slots.value(offset),
            tuple(Term(axis, self.slots.value(by), origin) for axis, by, origin in terms),
            self.program.buffer_numbers[lies.buffer],
        )

    def device_place(
        self, op: Op, access: Access | Load | Lookup, lookups: Sequence[Lookup], *, clamp: bool
    ) -> tuple[Place, tuple[Indirect, ...]]:
        tensor = self.kernel.tensors[access.tensor]
        size = tensor.dtype.bytes
        at = address(self.kernel, tensor, access.index, op.dims + op.rdims, lookups)
        place = Place(
            Space.DEVICE,
            tensor.dtype,
            self.base(tensor, at.offset * size),
            self.absolute(op, dict(at.terms), size),
            argument=self.slots.argument_numbers.get(tensor.name, -1),
        )
        by_name = {x.name: x for x in lookups}
        distinct = distinct_lookups(op, self.kernel) if access is op.out else {}
        return place, tuple(
            self.indirect(op, by_name[name], by * size, clamp=clamp, distinct=name in distinct)
            for name, by in at.lookups
        )

    def base(self, tensor: Tensor, offset: Expr) -> int | Slot:
        if tensor.role is not Role.LOCAL:
            return self.slots.address(tensor.name, offset)
        row = self.kernel.residency.get(tensor.name)
        if row is None or row.space is not Space.DEVICE:
            raise BrokenInvariant(f"{tensor.name} has no place in device memory")
        return self.slots.pool(tensor.name, row.offset, offset)

    def indirect(
        self, op: Op, lookup: Lookup, by: Expr, *, clamp: bool, distinct: bool
    ) -> Indirect:
        place = self.source(op, "", lookup)
        coefficient, size = self.slots.value(by), self.slots.value(lookup.size)
        return Indirect(place, coefficient, size, lookup.wrap, clamp, distinct)

    def absolute(self, op: Op, terms: Mapping[str, Expr], unit: int = 1) -> tuple[Term, ...]:
        """Terms over absolute coordinates. Dims of one op walk different axes."""
        return tuple(
            Term(self.axes.of[op.name, dim], self.slots.value(by * unit), Origin.ABSOLUTE)
            for dim, by in terms.items()
        )

    def source(self, op: Op, role: str, read: Read) -> Place:
        """Where an operand lies in LX when the op runs."""
        number = self.plan.operands.get((op.name, role, read))
        if number is None:
            return self.lx_place(op, read)
        return self.tile_place(number, self.plan.views.get((op.name, read)))

    def target(self, op: Op) -> Place:
        """Where the op's result lies in LX when it is finished."""
        if op.name in self.plan.results:
            return self.tile_place(self.plan.results[op.name])
        return self.lx_place(op, op.out)

    # --- instructions -----------------------------------------------------------------------

    def load(self, op: Op, read: Read, tile: Tile) -> Copy | Ring:
        if read.tensor in self.program.kept:
            return self.fetch(op, read, tile)
        guarded = isinstance(read, Load) and read.guarded
        lookups = used_lookups(op, read) if isinstance(read, Load) else []
        place, indirect = self.device_place(op, read, lookups, clamp=guarded)
        number = self.plan.tiles.index(tile)
        return Copy(
            tuple(d.axis for d in tile.dims),
            place,
            self.tile_place(number),
            indirect,
            self.bounds(op, read) if guarded else (),
            origin=self.program.origins[op.name],
        )

    def fetch(self, op: Op, read: Read, tile: Tile) -> Ring:
        """A load from the LX of the cores that hold a tensor."""
        lies, holders = self.program.kept[read.tensor], self.program.holders[read.tensor]
        shape = self.kernel.tensors[read.tensor].shape
        dims = [d.name for d in op.dims + op.rdims]
        base, terms, held = Expr.of(0), dict[str, Expr](), []
        for index, part, pitch, extent in zip(
            read.index, holders.parts, lies.pitches, shape, strict=True
        ):
            walked = {d: by for d in dims if (by := index.coefficient(d)).constant != 0}
            rest = index.without(frozenset(dims))
            if part is None:
                base = base + rest * pitch
                terms |= {d: terms.get(d, Expr.of(0)) + by * pitch for d, by in walked.items()}
                continue
            offset, size = self.slots.value(rest), self.slots.value(extent)
            split = part.parts, part.stride, part.granule
            held.append(Holding(self.absolute(op, walked), offset, size, *split, pitch))
        buffer = self.program.buffer_numbers[lies.buffer]
        at, walk = self.slots.value(base), self.absolute(op, terms)
        return Ring(
            tuple(d.axis for d in tile.dims),
            Place(Space.LX, tile.dtype, at, walk, buffer),
            self.tile_place(self.plan.tiles.index(tile)),
            tuple(held),
            holders.cores,
            self.program.origins[op.name],
        )

    def bounds(self, op: Op, read: Read) -> tuple[Bound, ...]:
        """The dims of a guarded load's tensor that its index can leave, those of lookups apart."""
        dims = [d.name for d in op.dims + op.rdims]
        looked = frozenset(x.name for x in op.lookups)
        found = []
        for index, extent in zip(read.index, self.kernel.tensors[read.tensor].shape, strict=True):
            if index.names & looked:
                continue
            terms = {d: by for d in dims if (by := index.coefficient(d)).constant != 0}
            offset = self.slots.value(index.without(frozenset(dims)))
            found.append(Bound(self.absolute(op, terms), offset, self.slots.value(extent)))
        return tuple(found)

    def relayout(self, op: Op, role: str, read: Load, tile: Tile) -> Vec:
        """An operand of PT, computed of what lies in LX."""
        target = self.tile_place(self.plan.tiles.index(tile))
        value = contraction(self.kernel, op).value(read)
        program = VectorProgram(
            lambda x: self.operand(op, x, f"{role} loaded" if x == read else ""),
            lambda x: self.index(op, x),
        )
        out = (VecOut(program.stored(value, target.dtype), target),)
        axes, origin = tuple(d.axis for d in tile.dims), self.program.origins[op.name]
        return Vec(axes, tuple(program.inputs), (), tuple(program.ops), out, origin)

    def move(self, op: Op, axes: tuple[int, ...], source: Place, target: Place) -> Vec:
        """From LX to LX, converting."""
        ops = moved(source, target)
        out = (VecOut(len(ops) - 1, target),)
        return Vec(axes, (source,), (), ops, out, self.program.origins[op.name])

    def compute(self, op: Op) -> Node:
        if self.step.name in self.program.prologue:
            return self.keep(op)
        if op.name in self.plan.partials:
            out = self.tile_place(self.plan.partials[op.name])
        else:
            out = self.target(op)
        return self.matmul(op, out) if op.kind is Kind.CONTRACT else self.vector(op, out)

    def keep(self, op: Op) -> Copy:
        """A load of a weight to where it stays."""
        (read,) = loads(op)
        source, _ = self.device_place(op, read, (), clamp=False)
        dims = [d for d in op.dims if any(d.name in e.names for e in read.index)]
        axes = tuple(self.axes.of[op.name, d.name] for d in dims)
        target = self.lx_place(op, op.out)
        return Copy(axes, source, target, origin=self.program.origins[op.name])

    def finish(self, op: Op) -> list[Node]:
        """What follows once an op's result is complete: rounding, then the store."""
        nodes: list[Node] = []
        if op.name in self.plan.partials:
            number = self.plan.partials[op.name]
            axes = tuple(d.axis for d in self.plan.tiles[number].dims)
            nodes.append(self.move(op, axes, self.tile_place(number), self.target(op)))
        tensor = self.kernel.tensors[op.out.tensor]
        row = self.kernel.residency.get(tensor.name)
        if tensor.role is not Role.LOCAL or (row is not None and row.space is Space.DEVICE):
            nodes.append(self.store(op))
        return nodes

    def store(self, op: Op) -> Copy:
        dims = op.dims + (op.rdims if op.kind is Kind.SCAN else ())
        place, indirect = self.device_place(op, op.out, used_lookups(op, op.out), clamp=False)
        return Copy(
            tuple(self.axes.of[op.name, d.name] for d in dims),
            self.without_unit(self.target(op)),
            place,
            indirect,
            add=op.accumulate,
            origin=self.program.origins[op.name],
        )

    def matmul(self, op: Op, out: Place) -> Pt:
        parts = contraction(self.kernel, op)
        numbers = self.axes.numbers(op)
        batch, m, n, k = (
            tuple(numbers[d] for d in dims) for dims in (parts.batch, parts.m, parts.n, parts.k)
        )
        a, b = self.source(op, "a", parts.a), self.source(op, "b", parts.b)
        if not n:
            n, b, out = (self.axes.unit,), self.with_unit(b), self.with_unit(out)
        return Pt(batch, m, n, k, a, b, out, self.program.origins[op.name])

    def with_unit(self, place: Place) -> Place:
        """The place with a stick dim of one element."""
        if any(term.axis == self.axes.unit for term in place.terms):
            return place
        unit = Term(self.axes.unit, place.dtype.bytes, Origin.CORE)
        return Place(place.space, place.dtype, place.base, (*place.terms, unit), place.buffer)

    def without_unit(self, place: Place) -> Place:
        terms = tuple(term for term in place.terms if term.axis != self.axes.unit)
        return Place(place.space, place.dtype, place.base, terms, place.buffer)

    def vector(self, op: Op, out: Place) -> Vec:
        program = VectorProgram(lambda x: self.operand(op, x), lambda x: self.index(op, x))
        value = program.stored(op.body, out.dtype)
        return Vec(
            self.walk(op),
            tuple(program.inputs),
            tuple(program.indices),
            tuple(program.ops),
            (VecOut(value, out, op.reduce, op.kind is Kind.SCAN),),
            self.program.origins[op.name],
        )

    def walk(self, op: Op) -> tuple[int, ...]:
        """The axes of a vector instruction: the lanes last."""
        lane = lanes_of(self.kernel, op, self.program.card).dim
        dims = sorted((d.name for d in op.dims + op.rdims), key=lambda d: d == lane)
        return tuple(self.axes.of[op.name, d] for d in dims)

    def operand(self, op: Op, load: Load, role: str = "") -> Place | Slot:
        if self.kernel.tensors[load.tensor].role is Role.SCALAR:
            return self.slots.scalar(load.tensor)
        return self.source(op, role, load)

    def index(self, op: Op, value: Expr) -> VecIndex:
        dims = [d.name for d in op.dims + op.rdims]
        terms = {d: by for d in dims if (by := value.coefficient(d)).constant != 0}
        offset = self.slots.value(value.without(frozenset(dims)))
        return VecIndex(self.absolute(op, terms), offset)
