"""The LX buffers a step needs: what each holds, how it lies, and when it is live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from types import MappingProxyType
from typing import Union

from openspyre.compiler.addressing import address, lane_dim, pitches
from openspyre.compiler.axes import StepAxes, step_axes, step_ops
from openspyre.compiler.contraction import Contraction, contraction, lx_bytes
from openspyre.compiler.joined import Box, Elements, box_of, elements_of, pitches_in
from openspyre.compiler.packing import packed
from openspyre.compiler.resident import LxTensor, kept_weights, kept_whole, lx_tensor
from openspyre.compiler.rewrite import names_walked
from openspyre.compiler.unit_order import units_begin
from openspyre.errors import BrokenInvariant
from openspyre.ir.index import Expr
from openspyre.ir.kernel import (
    Access,
    Division,
    DType,
    Kernel,
    Kind,
    Load,
    Lookup,
    Op,
    Role,
    Step,
    loads,
)
from openspyre.spec import SPYRE_CARD_V1, CardSpec

Read = Union[Load, Lookup]
_NONE: Mapping[str, LxTensor] = MappingProxyType({})


class Content(Enum):
    """What a tile holds."""

    OPERAND = "operand"  # a part of a tensor in device memory, loaded
    TENSOR = "tensor"  # a part of a tensor that the step writes and reads
    RESULT = "result"  # what an op computed, on its way to device memory
    PARTIAL = "partial"  # a wide accumulator of a result that is narrow or lies otherwise
    RELAYOUT = "relayout"  # an operand of PT copied in LX: its stick dim turned, or computed


@dataclass(frozen=True, slots=True)
class TileDim:
    """One dim of a tile: it walks an axis of the step.

    Attributes:
        pitch: bytes from one point to the next.
        tiled: the tile holds one trip's part of the axis, else the core's whole part.
    """

    axis: int
    capacity: int
    pitch: int
    tiled: bool


@dataclass(frozen=True, slots=True)
class Tile:
    """One LX buffer of a step.

    Attributes:
        dims: outermost first, the stick dim last; empty for TENSOR (see `StepTiles.tensors`).
        depth: the number of tile loops (the step's, then the op's) around its writer.
        first, last: positions of the ops of the step from which to which it is live.
    """

    name: str
    content: Content
    tensor: str
    dtype: DType
    dims: tuple[TileDim, ...]
    bytes: int
    slots: int
    depth: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class StepTiles:
    """The tiles of a step, and which serves what.

    Attributes:
        operands: for (op, role on PT or "", what it reads) the number of the tile.
        results, partials: for an op the number of the tile.
        tensors: every tensor that lies in LX during the step.
        views: for (op, what it reads) the dims of the tile as this op walks them, where that is
            not how the op that loads it does.
    """

    axes: StepAxes
    tiles: tuple[Tile, ...]
    operands: Mapping[tuple[str, str, Read], int]
    results: Mapping[str, int]
    partials: Mapping[str, int]
    tensors: Mapping[str, LxTensor]
    peak: int
    views: Mapping[tuple[str, Read], tuple[TileDim, ...]]


class Buffering(Enum):
    """Which tiles are double buffered, from fastest to smallest."""

    ALL = "all"  # of every loop, and what ops hand on to each other in one trip
    COPIES = "copies"  # operands and results of every loop
    INNER = "inner"  # those of an op's own loops
    NONE = "none"


def tile_name(step: Step, number: int, tensor: str) -> str:
    """The name of a step's tile of some number."""
    return f"{step.name}.{number}.{tensor}"


def lx_peak(
    kernel: Kernel,
    step: Step,
    division: Division,
    card: CardSpec,
    buffering: Buffering | None = None,
) -> int:
    """Bytes of LX that a step needs on the fullest core.

    By default what `step_tiles` would take, the least if nothing fits; with `buffering`, what it
    takes with these tiles in two slots.
    """
    if buffering is not None:
        return _Builder(kernel, step, division, _NONE, buffering, card).plan().peak
    return step_tiles(kernel, step, division, card).peak


def step_tiles(
    kernel: Kernel,
    step: Step,
    division: Division,
    card: CardSpec,
    kept: Mapping[str, LxTensor] = _NONE,
    *,
    taken: int = 0,
) -> StepTiles:
    """The tiles of a step when the tensors of `kept` lie in LX across steps.

    Loads stand as far out as their index allows and are double buffered, as far as LX is large
    enough for that and for PT and SFU to write beside each other's reads; the plan with the least
    LX is the last resort, whether it fits or not.

    Args:
        taken: bytes of LX that are not free for tiles.
    """
    return StepPlans(kernel, step, division, card, kept).fitting(taken)


class StepPlans:
    """The plans of a step, built when first asked for: the room only decides which one fits."""

    def __init__(
        self,
        kernel: Kernel,
        step: Step,
        division: Division,
        card: CardSpec,
        kept: Mapping[str, LxTensor] = _NONE,
    ) -> None:
        self.kernel, self.step, self.division = kernel, step, division
        self.card, self.kept = card, kept
        self._begins = units_begin(step_ops(kernel, step))
        self._built: dict[tuple[Buffering, int], tuple[StepTiles, int]] = {}

    def fitting(self, taken: int) -> StepTiles:
        """What `step_tiles` describes."""
        room = self.card.lx_usable - taken
        # What is loaded whole goes by all of LX, then by the room that is left, then nothing is.
        for whole in (self.card.lx_usable, room, 0) if taken else (self.card.lx_usable, 0):
            tight: StepTiles | None = None
            for buffering in Buffering:
                plan, apart = self._plan(buffering, whole)
                if max(plan.peak, apart) <= room:
                    return plan
                if plan.peak <= room and tight is None:
                    tight = plan
            if tight is not None:
                return tight
        return self._least(plan, room)

    def _plan(self, buffering: Buffering, whole: int) -> tuple[StepTiles, int]:
        """The plan where what is loaded whole goes by so many bytes (0: nothing is); its peak
        where PT and SFU write beside each other's reads."""
        if (buffering, whole) not in self._built:
            card = replace(self.card, lx_usable=whole) if whole else None
            args = self.kernel, self.step, self.division, self.kept, buffering, card
            plan = _Builder(*args).plan()
            apart = _peak(free_to_write(plan.tiles, self._begins))
            self._built[buffering, whole] = plan, apart
        return self._built[buffering, whole]

    def _least(self, plan: StepTiles, room: int) -> StepTiles:
        """A plan that is too large with loads moved inwards until it fits."""
        looked = {n for (_, _, read), n in plan.operands.items() if isinstance(read, Lookup)}
        at = enumerate(plan.tiles)
        outer = [n for n, t in at if t.depth < plan.axes.outer and n not in looked]
        for number in sorted(outer, key=lambda n: -plan.tiles[n].bytes):
            plan = _pulled_in(plan, number, self.kernel, self.step)
            if plan.peak <= room:
                break
        return plan


def free_to_write(tiles: Sequence[Tile], begins: Sequence[int]) -> list[Tile]:
    """Tiles that share no bytes with what PT or SFU writes while the other still uses them.

    Args:
        begins: see `unit_order.units_begin`.
    """
    return [
        t if t.content is Content.OPERAND else replace(t, first=min(t.first, begins[t.first]))
        for t in tiles
    ]


def _pulled_in(plan: StepTiles, number: int, kernel: Kernel, step: Step) -> StepTiles:
    """The plan with one load moved into the step's innermost loop, next to its readers."""
    readers = [step.ops.index(op) for (op, _, _), n in plan.operands.items() if n == number]
    tiles = list(plan.tiles)
    tiles[number] = replace(
        tiles[number], depth=plan.axes.outer, slots=1, first=min(readers), last=max(readers)
    )
    return replace(plan, tiles=tuple(tiles), peak=_peak(tiles))


def _peak(tiles: Sequence[Tile]) -> int:
    items = [(t.bytes * t.slots, t.first, t.last) for t in tiles]
    return packed(items, SPYRE_CARD_V1.lx_granule)[1]


def used_lookups(op: Op, access: Load | Access) -> list[Lookup]:
    """The lookups of an op on which the index of an access depends."""
    return [x for x in op.lookups if any(x.name in position.names for position in access.index)]


def read_dims(kernel: Kernel, op: Op, read: Read) -> tuple[str, ...]:
    """The dims of an op on which an operand in device memory depends."""
    tensor = kernel.tensors[read.tensor]
    dims = op.dims + op.rdims
    lookups = used_lookups(op, read) if isinstance(read, Load) else []
    place = address(kernel, tensor, read.index, dims, lookups)
    used = {name for name, _ in place.terms}
    for lookup in lookups:
        used |= {n for position in lookup.index for n in position.names}
    if isinstance(read, Load) and read.guarded:
        used |= {n for position in read.index for n in position.names}
    return tuple(d.name for d in dims if d.name in used)


class _Builder:
    """Collects the tiles of one step, op by op.

    Args:
        card: says which operands that ops' own loops walk are loaded whole; None: none is.
    """

    def __init__(
        self,
        kernel: Kernel,
        step: Step,
        division: Division,
        kept: Mapping[str, LxTensor],
        buffering: Buffering,
        card: CardSpec | None,
    ) -> None:
        self.kernel, self.step, self.buffering, self.card = kernel, step, buffering, card
        self.axes = step_axes(kernel, step, division)
        self.ops = step_ops(kernel, step)
        self.written = frozenset(op.out.tensor for op in self.ops)
        self.inside = _written_and_read(self.ops) - kept.keys()
        self.tiles: list[Tile] = []
        self.operands: dict[tuple[str, str, Read], int] = {}
        self.results: dict[str, int] = {}
        self.partials: dict[str, int] = {}
        self.tensors: dict[str, LxTensor] = dict(kept)
        self.tensor_tiles: dict[str, int] = {}
        self.loaded: dict[object, int] = {}
        self.rows: dict[object, tuple[int, Elements]] = {}
        self.boxes: dict[tuple[str, int], list[tuple[int, Box]]] = {}
        self.views: dict[tuple[str, Read], tuple[TileDim, ...]] = {}
        self.lanes: dict[str, str | None] = {}
        self.weights = frozenset(kept_weights(kernel))

    def plan(self) -> StepTiles:
        for position, op in enumerate(self.ops):
            self.add_reads(position, op)
            self.add_result(position, op)
        return StepTiles(
            self.axes,
            tuple(self.tiles),
            self.operands,
            self.results,
            self.partials,
            self.tensors,
            _peak(self.tiles),
            self.views,
        )

    # --- what an op reads -------------------------------------------------------------------

    def add_reads(self, position: int, op: Op) -> None:
        if self.step.name in (s.name for s in self.kernel.steps[: self.kernel.prologue]):
            return  # weights go straight to where they stay
        for lookup in op.lookups:
            self.add_read(position, op, lookup)
        if op.kind is Kind.CONTRACT:
            parts = contraction(self.kernel, op)
            self.add_matrix(position, op, "a", parts.a, parts)
            self.add_matrix(position, op, "b", parts.b, parts)
            return
        for load in loads(op):
            self.add_read(position, op, load)

    def add_read(self, position: int, op: Op, read: Read) -> None:
        if self.kernel.tensors[read.tensor].role is Role.SCALAR or self.in_lx(position, read):
            return
        lane = self.lane(op)
        order = sorted(read_dims(self.kernel, op, read), key=lambda d: d == lane)
        self.add_operand(position, op, "", read, [self.axes.of[op.name, d] for d in order], 0)

    def lane(self, op: Op) -> str | None:
        """The dim whose points fill the lanes of SFU."""
        if op.name not in self.lanes:
            self.lanes[op.name] = lane_dim(self.kernel, op)
        return self.lanes[op.name]

    def add_matrix(self, position: int, op: Op, role: str, load: Load, parts: Contraction) -> None:
        """An operand of PT: its stick dim is the last of k (a) or of n (b)."""
        used = names_walked(op, load)
        outer = (*parts.batch, *(parts.m if role == "a" else parts.k))
        row = parts.k if role == "a" else parts.n
        order = [d for d in outer if d in used or d in parts.k] + list(row)
        walked = [self.axes.of[op.name, d] for d in order]
        if role == "b" and not row:
            walked, row = [*walked, self.axes.unit], ("one",)
        taken = parts.dtypes(self.kernel)[role == "b"]
        computed = parts.computed(self.kernel, load)
        for other in parts.beside(load):
            self.add_read(position, op, other)
        if not self.in_lx(position, load):
            loaded = f"{role} loaded" if computed else role
            self.add_operand(position, op, loaded, load, walked, len(row))
            if not computed:
                return
            depth = self.tiles[self.operands[op.name, loaded, load]].depth
        elif computed or not self.fits_pt(role, load, parts):
            depth = self.axes.depth(op, walked)
            if load.tensor in self.written:
                depth = max(depth, self.axes.outer)
        else:
            return
        depth = max([depth, *(self.tile_depth(op, x) for x in parts.beside(load))])
        self.operands[op.name, role, load] = self.add(
            Content.RELAYOUT, load.tensor, walked, op, depth, position, row=len(row), dtype=taken,
            ahead=computed,
        )  # fmt: skip

    def tile_depth(self, op: Op, load: Load) -> int:
        number = self.operands.get((op.name, "", load))
        return 0 if number is None else self.tiles[number].depth

    def in_lx(self, position: int, read: Read) -> bool:
        if read.tensor in self.tensor_tiles:
            number = self.tensor_tiles[read.tensor]
            tile = self.tiles[number]
            self.tiles[number] = replace(tile, last=max(tile.last, position))
        elif read.tensor in self.inside:
            raise BrokenInvariant(
                f"step {self.step.name} reads {read.tensor} before it writes it",
            )
        return read.tensor in self.tensors

    def fits_pt(self, role: str, load: Load, parts: Contraction) -> bool:
        """An operand in LX has the stick dim that PT takes."""
        stick = parts.k[-1:] if role == "a" else parts.n[-1:]
        unit = self.kernel.tensors[load.tensor].dtype.bytes
        tensor = self.tensors[load.tensor]
        return all(tensor.coefficient(load.index, d).constant == unit for d in stick)

    def add_operand(
        self, position: int, op: Op, role: str, read: Read, walked: list[int], row: int
    ) -> None:
        depth = self.depth(op, read, walked)
        if any(x.tensor in self.written for x in self.used_lookups(op, read)):
            depth = max(depth, self.axes.outer)
        key = self.share_key(op, role, read, walked, depth)
        number, row_elements = self.loaded.get(key), None
        if number is None:
            row_elements = self.row_elements(op, role, read, walked, depth)
            number = self.joined(op, read, row_elements, walked, depth)
        if number is None:
            number = self.contained(op, role, read, walked, depth)
        if number is None:
            if row_elements is not None:
                self.rows.setdefault(row_elements.key, (len(self.tiles), row_elements))
            number = self.loaded[key] = self.add(
                Content.OPERAND, read.tensor, walked, op, depth, position, row=row
            )
        self.operands[op.name, role, read] = number
        tile = self.tiles[number]
        self.tiles[number] = replace(tile, last=max(tile.last, position))

    def depth(self, op: Op, read: Read, walked: list[int]) -> int:
        """The number of loops around the load of an operand."""
        if read.tensor in self.weights and self.card is not None:
            return 0  # on the ring, where parts of rows are short runs
        depth, loops = self.axes.depth(op, walked), self.axes.loops[op.name]
        if depth <= self.axes.outer or self.card is None or not self.plain(read, op):
            return depth
        changed = [d for d in range(1, self.axes.outer + 1) if loops[d - 1].axis in walked]
        before = max(changed, default=0)
        tiles = {x.axis: x.tile for x in loops[:before]}
        parts = ((n, self.axes.axes[n].part) for n in walked)
        size = self.kernel.tensors[read.tensor].dtype.bytes
        if op.kind is Kind.CONTRACT and isinstance(read, Load):
            size = lx_bytes(self.kernel, op, read)
        size *= prod(min(part, tiles.get(n, part)) for n, part in parts)
        again = any(x.tile < self.axes.axes[x.axis].part for x in loops[before : self.axes.outer])
        return before if again and kept_whole(size, self.card) else depth

    def row_elements(
        self, op: Op, role: str, read: Read, walked: list[int], depth: int
    ) -> Elements | None:
        if role or depth > self.axes.outer or not self.plain(read, op):
            return None
        return elements_of(self.kernel, self.axes, op, read.tensor, read.index, walked)

    def joined(
        self, op: Op, read: Read, elements: Elements | None, walked: list[int], depth: int
    ) -> int | None:
        """The tile of a read that walks the same elements with other dims."""
        if elements is None or elements.key not in self.rows:
            return None
        number, loader = self.rows[elements.key]
        dims = self.tiles[number].dims
        steps = pitches_in(loader, [d.pitch for d in dims], elements)
        if steps is None or self.tiles[number].depth != depth:
            return None
        tiled = {d.axis: d for d in dims if d.axis < self.axes.shared}
        self.views[op.name, read] = tuple(
            replace(tiled[n], pitch=p)
            if n in tiled
            else TileDim(n, self.axes.axes[n].part, p, tiled=False)
            for n, p in zip(walked, steps, strict=True)
        )
        return number

    def contained(self, op: Op, role: str, read: Read, walked: list[int], depth: int) -> int | None:
        """The tile of a read that walks these elements and more along its own dims."""
        if depth > self.axes.outer or not self.plain(read, op):
            return None
        box = box_of(self.kernel, self.axes, op, read.tensor, read.index, walked)
        if box is None:
            return None
        boxes = self.boxes.setdefault((role, depth), [])
        number = next((n for n, other in boxes if box.within(other)), None)
        if number is None:
            boxes.append((len(self.tiles), box))
            return None
        pairs = zip(walked, self.tiles[number].dims, strict=True)
        self.views[op.name, read] = tuple(
            replace(d, axis=axis, capacity=min(d.capacity, self.axes.axes[axis].part))
            for axis, d in pairs
        )
        return number

    def plain(self, read: Read, op: Op) -> bool:
        return not (isinstance(read, Load) and read.guarded) and not self.used_lookups(op, read)

    def used_lookups(self, op: Op, read: Read) -> list[Lookup]:
        return used_lookups(op, read) if isinstance(read, Load) else []

    def share_key(self, op: Op, role: str, read: Read, walked: list[int], depth: int) -> object:
        """Equal for reads that can share a tile; loads in an op's own loops share nothing."""
        if depth > self.axes.outer or not self.plain(read, op):
            return (op.name, role, read)
        axes = {d: Expr.var(f"axis{n}") for d, n in self.axes.numbers(op).items()}
        return (role, read.tensor, tuple(e.substitute(axes) for e in read.index), tuple(walked))

    # --- what an op writes ------------------------------------------------------------------

    def add_result(self, position: int, op: Op) -> None:
        depth = self.axes.finished_depth(op)
        parts = contraction(self.kernel, op) if op.kind is Kind.CONTRACT else None
        order = self.result_order(op, parts)
        row = max(len(parts.n), 1) if parts else 0
        if op.out.tensor in self.inside and op.out.tensor not in self.tensor_tiles:
            self.add_tensor(position, op)
        wide = self.wide(op, parts)
        if wide is not None:
            self.partials[op.name] = self.add(
                Content.PARTIAL, op.out.tensor, order, op, depth, position, row=row, dtype=wide
            )
        if op.out.tensor not in self.tensors:
            direct = wide is None and depth < len(self.axes.loops[op.name])
            self.results[op.name] = self.add(
                Content.RESULT, op.out.tensor, order, op, depth, position, row=row, single=direct
            )

    def result_order(self, op: Op, parts: Contraction | None) -> list[int]:
        numbers = self.axes.numbers(op)
        if parts:
            walked = [numbers[d] for d in (*parts.batch, *parts.m, *parts.n)]
            return walked if parts.n else [*walked, self.axes.unit]
        lane = self.lane(op)
        return [numbers[d] for d in sorted((d.name for d in op.dims), key=lambda d: d == lane)] + [
            numbers[d.name] for d in op.rdims if op.kind is Kind.SCAN
        ]

    def wide(self, op: Op, parts: Contraction | None) -> DType | None:
        """The dtype of the accumulator an op needs beside its result, if it needs one."""
        dtype = self.kernel.tensors[op.out.tensor].dtype
        looped = self.axes.finished_depth(op) < len(self.axes.loops[op.name])
        if op.kind is Kind.REDUCE:
            wide = op.body.dtype.compute
            return None if dtype is wide else wide
        if parts is None:
            return None
        narrow = looped and dtype is not DType.F32
        operands = parts.dtypes(self.kernel)[0]
        foreign = dtype.is_fp8 or dtype not in (DType.F32, operands)
        return DType.F32 if narrow or foreign or not self.stick_is_last(op, parts) else None

    def stick_is_last(self, op: Op, parts: Contraction) -> bool:
        if op.out.tensor not in self.tensors or not parts.n:
            return True
        by = self.tensors[op.out.tensor].coefficient(op.out.index, parts.n[-1])
        return by.constant == self.kernel.tensors[op.out.tensor].dtype.bytes

    def add_tensor(self, position: int, op: Op) -> None:
        name = self.name(op.out.tensor)
        lies = lx_tensor(self.kernel, self.axes, op, buffer=name, tiled=True)
        self.tensors[op.out.tensor] = lies
        self.tensor_tiles[op.out.tensor] = len(self.tiles)
        dtype = self.kernel.tensors[op.out.tensor].dtype
        depth = self.axes.outer
        both = self.hands_on(depth) and all(
            self.written_at(x) == depth for x in self.ops if x.out.tensor == op.out.tensor
        )
        first, last = (0, len(self.ops) - 1) if both else (position, position)
        self.tiles.append(
            Tile(
                name,
                Content.TENSOR,
                op.out.tensor,
                dtype,
                (),
                lies.bytes,
                2 if both else 1,
                depth,
                first,
                last,
            )
        )

    def hands_on(self, depth: int) -> bool:
        """Whether ops of one trip may run beside those of the trip before: two copies of all."""
        return self.buffering is Buffering.ALL and depth == self.axes.outer > 0

    def written_at(self, op: Op) -> int:
        """The number of loops around the instruction that writes an op's finished result."""
        parts = contraction(self.kernel, op) if op.kind is Kind.CONTRACT else None
        if self.wide(op, parts) is not None:
            return self.axes.finished_depth(op)
        return len(self.axes.loops[op.name])

    # --- one tile ---------------------------------------------------------------------------

    def name(self, tensor: str) -> str:
        return tile_name(self.step, len(self.tiles), tensor)

    def add(
        self,
        content: Content,
        tensor: str,
        walked: Sequence[int],
        op: Op,
        depth: int,
        position: int,
        *,
        row: int = 0,
        dtype: DType | None = None,
        single: bool = False,
        ahead: bool = False,
    ) -> int:
        """A tile for an op; `ahead`: made by SFU while PT works on the one before."""
        dtype = dtype or self.kernel.tensors[tensor].dtype
        loops = {x.axis: x.tile for x in self.axes.loops[op.name][:depth]}
        parts = [self.axes.axes[n].part for n in walked]
        capacities = [min(p, loops.get(n, p)) for n, p in zip(walked, parts, strict=True)]
        steps, total = pitches(capacities, dtype.bytes, row)
        dims = tuple(
            TileDim(n, c, p, n in loops) for n, c, p in zip(walked, capacities, steps, strict=True)
        )
        outer = self.axes.outer
        inner_only = self.buffering is Buffering.INNER
        slots = 2 if depth > (outer if inner_only else 0) else 1
        if single or self.buffering is Buffering.NONE:
            slots = 1
        if content in (Content.PARTIAL, Content.RELAYOUT) and not ahead:
            alone = len(self.axes.loops[op.name]) == outer
            slots = 2 if self.hands_on(depth) and alone else 1
        whole = depth < outer or (slots == 2 and depth == outer)
        first, last = (0, len(self.ops) - 1) if whole else (position, position)
        self.tiles.append(
            Tile(self.name(tensor), content, tensor, dtype, dims, total, slots, depth, first, last)
        )
        return len(self.tiles) - 1


def _written_and_read(ops: Sequence[Op]) -> frozenset[str]:
    """Tensors that an op writes and a later one reads."""
    written: set[str] = set()
    found: set[str] = set()
    for op in ops:
        read = {x.tensor for x in loads(op)} | {x.tensor for x in op.lookups}
        found |= read & written
        written.add(op.out.tensor)
    return frozenset(found)
