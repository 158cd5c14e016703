"""Where everything lives: local tensors in LX or in the pool, and the tiles of every step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType

from openspyre.compiler.addressing import layout_order, pool_pitches, rounded_up
from openspyre.compiler.axes import StepAxes, step_axes, step_ops
from openspyre.compiler.bounds import highest
from openspyre.compiler.packing import Span, best_fit, packed
from openspyre.compiler.resident import LxTensor, kept_weights, lx_tensor
from openspyre.compiler.ring_moves import Move, by_ring_is_sooner
from openspyre.compiler.segments import step_keys, step_tensors
from openspyre.compiler.tiles import (
    Content,
    StepPlans,
    StepTiles,
    Tile,
    free_to_write,
    step_tiles,
    tile_name,
)
from openspyre.compiler.unit_order import units_begin
from openspyre.errors import BrokenInvariant
from openspyre.ir.index import Expr
from openspyre.ir.kernel import (
    Division,
    Kernel,
    Op,
    Part,
    Residency,
    Role,
    Space,
    Tensor,
    loads,
)
from openspyre.spec import CardSpec

ALWAYS = 1 << 30  # ops: more than a step has
Slack = tuple[int, bool] | None
"""What tiles of a step keep free: see `offsets_of`."""
_OPS = range(16, -1, -1)
# The first for which the tiles fit.
SLACKS: tuple[Slack, ...] = (None, *((n, True) for n in _OPS), *((n, False) for n in _OPS))


@dataclass(frozen=True, slots=True)
class Use:
    """One access of a local tensor; `index` is None where it cannot be served from LX."""

    step: int
    op: Op
    writes: bool
    index: tuple[Expr, ...] | None


def place(
    kernel: Kernel,
    card: CardSpec,
    *,
    first: Collection[str] = (),
    never: Collection[str] = (),
    ring: bool = True,
) -> Kernel:
    """Fills `residency`: offsets of tiles and of local tensors that cross steps.

    Keys are names of tensors and of tiles (`tiles.Tile.name`).

    Args:
        first: tensors that get their place in LX before others, though it cost time.
        never: tensors that do not stay in LX.
        ring: whether a step may fetch what other cores hold.

    Raises:
        BrokenInvariant: a step whose tiles do not fit in LX.
    """
    steps = all_axes(kernel)
    uses = {
        name: found
        for name, found in local_uses(kernel).items()
        if crosses(found) and name not in kernel.residency
    }
    packer = _Packer(kernel, card)
    for name in sorted(uses.keys() - never, key=lambda n: (n not in first, -_gain(uses[n]), n)):
        lies = kept_form(kernel, steps, name, uses[name])
        if lies is None and ring:
            lies = gathered_form(kernel, steps, name, uses[name], None if name in first else card)
        if lies:
            far = far_steps(kernel, steps, name, uses[name])
            packer.offer(lies, uses[name][0].step, uses[name][-1].step, far)
    table: dict[str, Residency] = dict(packer.rows())
    table |= _pool(kernel, {n: found for n, found in uses.items() if n not in table}, card)
    return replace(kernel, residency=MappingProxyType(table))


def all_axes(kernel: Kernel) -> dict[int, StepAxes]:
    """The axes of every step, by its number."""
    return _axes(kernel, range(len(kernel.steps)))


def axes_of(kernel: Kernel, uses: Iterable[Use]) -> dict[int, StepAxes]:
    """The axes of the steps of some uses, by number."""
    return _axes(kernel, {use.step for use in uses})


def _axes(kernel: Kernel, numbers: Iterable[int]) -> dict[int, StepAxes]:
    steps = {n: kernel.steps[n] for n in numbers}
    return {n: step_axes(kernel, s, division_of(kernel, s.name)) for n, s in steps.items()}


def below_weights(kernel: Kernel, card: CardSpec) -> int:
    """Bytes of LX below the weights that stay there."""
    offsets = (kernel.residency[name].offset for name in kept_weights(kernel))
    return min(offsets, default=card.lx_usable)


def far_tensors(kernel: Kernel) -> dict[str, frozenset[int]]:
    """For every tensor in LX across steps, the steps that fetch it from other cores."""
    steps = all_axes(kernel)
    return {
        name: far_steps(kernel, steps, name, uses)
        for name, uses in local_uses(kernel).items()
        if name in kernel.residency and kernel.residency[name].space is Space.LX
    }


@dataclass(frozen=True, slots=True)
class Holders:
    """The cores [0, cores) that hold a tensor; how each of its dims is spread over them."""

    parts: tuple[Part | None, ...]
    cores: int


def holders_of(kernel: Kernel) -> dict[str, Holders]:
    """Who holds the tensors that lie in LX across steps: the cores that made them."""
    found: dict[str, Holders] = {}
    for step in kernel.steps:
        division = division_of(kernel, step.name)
        axes = step_axes(kernel, step, division)
        for op in step_ops(kernel, step):
            name = op.out.tensor
            row = kernel.residency.get(name)
            if row and row.space is Space.LX and name not in found:
                walked = (axes.exact(op, index) for index in op.out.index)
                parts = tuple(axes.axes[n].split if n >= 0 else None for n in walked)
                found[name] = Holders(parts, division.cores)
    return found


def early_operands(kernel: Kernel, number: int) -> dict[str, int]:
    """The tensors that a step finds in LX because an earlier step loads them, and which one."""
    rows, own = kernel.residency.items(), f"{kernel.steps[number].name}."
    return {
        name.removeprefix(own).partition(".")[2]: row.first
        for name, row in rows
        if name not in kernel.tensors and name.startswith(own) and row.first < row.last
    }


def division_of(kernel: Kernel, step: str) -> Division:
    """The division of a step; one core if it has none."""
    return kernel.divisions.get(step, Division())


def kept_tensors(kernel: Kernel) -> dict[str, LxTensor]:
    """The tensors that lie in LX across steps, as `place` decided."""
    found: dict[str, LxTensor] = {}
    for step in kernel.steps:
        axes = step_axes(kernel, step, division_of(kernel, step.name))
        for op in step_ops(kernel, step):
            name = op.out.tensor
            row = kernel.residency.get(name)
            if row and row.space is Space.LX and name not in found:
                found[name] = lx_tensor(kernel, axes, op, buffer=name, tiled=False)
    return found


def local_uses(kernel: Kernel) -> dict[str, list[Use]]:
    """Accesses of local tensors in the order of steps."""
    found: dict[str, list[Use]] = {}
    for number, step in enumerate(kernel.steps):
        for op in step_ops(kernel, step):
            for tensor, use in _accesses(number, op):
                if kernel.tensors[tensor].role is Role.LOCAL:
                    found.setdefault(tensor, []).append(use)
    return found


def _accesses(step: int, op: Op) -> Iterator[tuple[str, Use]]:
    looked = frozenset(x.name for x in op.lookups)
    for lookup in op.lookups:
        yield lookup.tensor, Use(step, op, False, lookup.index)
    for load in loads(op):
        free = load.guarded or any(looked & e.names for e in load.index)
        yield load.tensor, Use(step, op, False, None if free else load.index)
    free = op.accumulate or any(looked & e.names for e in op.out.index)  # only a store adds
    yield op.out.tensor, Use(step, op, True, None if free else op.out.index)


def crosses(uses: list[Use]) -> bool:
    return any(not use.writes for use in uses) and uses[0].step < uses[-1].step


def _gain(uses: list[Use]) -> float:
    """Accesses saved per step that LX is held."""
    return len(uses) / (uses[-1].step - uses[0].step + 1)


def why_not_kept(kernel: Kernel, name: str, card: CardSpec) -> str:
    """Why a local tensor that crosses steps cannot stay in LX between them."""
    uses = local_uses(kernel)[name]
    steps = all_axes(kernel)
    lies = kept_form(kernel, steps, name, uses)
    if lies is None:
        lies = gathered_form(kernel, steps, name, uses, None)
        numbers = ", ".join(f"s{n}" for n in dict.fromkeys(use.step for use in uses))
        apart = f"steps {numbers} do not need it in the same parts"
        if lies is None:
            return f"{apart}, and cannot fetch what they need from other cores"
        if gathered_form(kernel, steps, name, uses, card) is None:
            return f"{apart}, and the ring is slower than device memory"
    return f"its {lies.bytes} bytes find no room beside the tiles of those steps"


# --- LX across steps ------------------------------------------------------------------------


def kept_form(
    kernel: Kernel, steps: Mapping[int, StepAxes], name: str, uses: Sequence[Use]
) -> LxTensor | None:
    """How the tensor lies when it stays in LX, or None if a reader finds its part elsewhere."""
    if not uses[0].writes:
        return None
    splits = [_split(steps[use.step], use, kernel.tensors[name]) for use in uses]
    cores = [division_of(kernel, kernel.steps[use.step].name).cores for use in uses]
    for writer, have, writing in zip(uses, splits, cores, strict=True):
        for need, reading in zip(splits, cores, strict=True):
            if have is None or need is None:
                return None
            if writer.writes and not _covers(have, writing, need, reading):
                return None
    return lx_tensor(kernel, steps[uses[0].step], uses[0].op, buffer=name, tiled=False)


def gathered_form(
    kernel: Kernel,
    steps: Mapping[int, StepAxes],
    name: str,
    uses: Sequence[Use],
    card: CardSpec | None,
) -> LxTensor | None:
    """How the tensor lies in LX when later steps fetch parts of it from other cores, if they can.

    Args:
        card: if given, they must be done sooner so than by way of device memory.
    """
    first = uses[0].step
    if any(use.index is None or (use.writes and use.step != first) for use in uses):
        return None
    lies = kept_form(kernel, steps, name, [use for use in uses if use.step == first])
    far = far_steps(kernel, steps, name, uses) if lies else frozenset()
    if not far or card is None:
        return lies if far else None
    moves = (fetching(kernel, steps, name, use) for use in uses if use.step in far)
    return lies if all(by_ring_is_sooner(move, card) for move in moves) else None


def far_steps(
    kernel: Kernel, steps: Mapping[int, StepAxes], name: str, uses: Sequence[Use]
) -> frozenset[int]:
    """The steps that read parts of a tensor in LX from other cores."""
    first = uses[0].step
    made = [use for use in uses if use.step == first]
    return frozenset(
        number
        for number in {use.step for use in uses} - {first}
        if kept_form(kernel, steps, name, [*made, *(u for u in uses if u.step == number)]) is None
    )


def longest_run(
    kernel: Kernel, steps: Mapping[int, StepAxes], name: str, uses: Sequence[Use]
) -> int:
    """Bytes of a tensor that lie side by side in the LX of a core that has made it."""
    tensor, axes, made = kernel.tensors[name], steps[uses[0].step], uses[0]
    span = tensor.dtype.bytes
    for dim in reversed(layout_order(kernel, tensor)):
        whole = highest(tensor.shape[dim], kernel.limits)
        axis = axes.exact(made.op, made.index[dim]) if made.index else -1
        part = axes.axes[axis].part if axis >= 0 else whole
        span *= part
        if part < whole:
            break
    return span


def fetching(kernel: Kernel, steps: Mapping[int, StepAxes], name: str, use: Use) -> Move:
    """What all cores of a reader fetch."""
    tensor, axes = kernel.tensors[name], steps[use.step]
    numbers = axes.numbers(use.op)
    loops = {x.axis: x.tile for x in axes.loops[use.op.name]}
    walked = {numbers[d] for e in use.index or () for d in e.names if d in numbers}
    parts = {n: axes.axes[n].split for n in walked}
    apart = prod(p.parts for p in parts.values() if p)
    cores = division_of(kernel, kernel.steps[use.step].name).cores
    points = prod(axes.axes[n].part for n in walked)
    stick = layout_order(kernel, tensor)[-1:]
    run = 1
    for dim in stick:
        along = [numbers[d] for d in (use.index or ())[dim].names if d in numbers]
        run = min((min(axes.axes[n].part, loops.get(n, 1 << 30)) for n in along), default=1)
        run = min(run, highest(tensor.shape[dim], kernel.limits))
    return Move(points * tensor.dtype.bytes, run * tensor.dtype.bytes, apart, cores)


def _split(axes: StepAxes, use: Use, tensor: Tensor) -> dict[int, Part] | None:
    """How an access splits the dims of a tensor over cores; None if LX cannot serve it."""
    if use.index is None:
        return None
    found: dict[int, Part] = {}
    numbers = axes.numbers(use.op)
    divided = {name for name, number in numbers.items() if _divided(axes, number)}
    for dim, index in enumerate(use.index):
        axis = axes.exact(use.op, index)
        split = _divided(axes, axis)
        if split and axes.axes[axis].extent == tensor.shape[dim]:
            found[dim] = split
            walking = divided & index.names
            # t[i, n - 1 - i]: one dim of the op cannot start at the core's part and at 0 as well
            if any(walking & e.names for at, e in enumerate(use.index) if at != dim):
                return None
        elif use.writes and divided & index.names:
            return None
    return found


def _divided(axes: StepAxes, axis: int) -> Part | None:
    split = axes.axes[axis].split if axis >= 0 else None
    return split if split and split.parts > 1 else None


def _covers(have: dict[int, Part], writing: int, need: dict[int, Part], reading: int) -> bool:
    """Every core that reads finds in its own LX the slice it needs."""
    if reading > writing or have.keys() != need.keys():
        return False
    if any((have[d].parts, have[d].granule) != (need[d].parts, need[d].granule) for d in have):
        return False
    return all(
        core // have[d].stride % have[d].parts == core // need[d].stride % need[d].parts
        for core in range(reading)
        for d in have
    )


class _Packer:
    """Takes tensors into LX for their lifetimes while the tiles of every step still fit.

    Steps that are equal up to names get equal tiles: `known` has those that were planned.
    """

    def __init__(self, kernel: Kernel, card: CardSpec) -> None:
        self.kernel, self.card = kernel, card
        self.kept: dict[str, LxTensor] = {}
        self.spans: dict[str, Span] = {}
        self.live: dict[int, list[str]] = defaultdict(list)  # what is kept during every step
        self.tiles: dict[int, tuple[Tile, ...]] = {}
        self.far: dict[str, frozenset[int]] = {}
        self.weights = kept_tensors(kernel)  # their rows are there already
        self.weights_far = far_tensors(kernel) if self.weights else {}
        self.floor = below_weights(kernel, card)
        numbers: dict[object, int] = {}
        self.keys = [
            numbers.setdefault(
                (key, step.loops, tuple(step.inner.get(op) for op in step.ops)), len(numbers)
            )
            for step, key in step_keys(kernel)
        ]
        self.known: dict[object, tuple[tuple[str, ...], StepPlans]] = {}
        self.named: dict[object, tuple[StepTiles, tuple[Tile, ...]]] = {}
        self.fitting: dict[object, bool] = {}

    def slower(self, number: int, found: Sequence[Tile], offered: str) -> bool:
        """Whether operands of a step have fewer slots than without what is on offer, or come in
        parts from device memory that came whole."""
        before = self.placed(number)
        if before is None:
            return True
        had = {(t.tensor, n): t for n, t in _operands(before) if t.tensor != offered}
        for n, tile in _operands(found):
            old = had.get((tile.tensor, n))
            fetched = number in self.far.get(tile.tensor, ())
            if old is not None and (
                tile.slots < old.slots or (tile.depth > old.depth and not fetched)
            ):
                return True
        return False

    def offer(self, lies: LxTensor, first: int, last: int, far: frozenset[int]) -> None:
        """Keeps a tensor if it fits; `far` are steps that fetch it from other cores."""
        size = rounded_up(lies.bytes, self.card.lx_granule)
        near = {n: self.spans[n] for step in range(first, last + 1) for n in self.live[step]}
        offset = best_fit(size, first, last, near.values(), self.card.lx_granule)
        if offset + size > self.floor:
            return
        offered = _Offered(lies, Span(offset, size, first, last), far)
        placed: dict[int, tuple[Tile, ...]] = {}
        for step in range(first, last + 1):
            found = self.placed(step, offered)
            if found is None or (far and self.slower(step, found, lies.buffer)):
                return
            placed[step] = found
        self.kept[lies.buffer], self.spans[lies.buffer] = lies, offered.span
        self.far[lies.buffer] = far
        for step in placed:
            self.live[step].append(lies.buffer)
        self.tiles |= placed

    def placed(self, number: int, offered: _Offered | None = None) -> tuple[Tile, ...] | None:
        """The tiles of a step beside what is kept, or None if they do not fit."""
        spans = [self.spans[name] for name in self.live[number]]
        near = {n: self.kept[n] for n in self.live[number] if number not in self.far[n]}
        if offered is not None:
            spans.append(offered.span)
            if number not in offered.far:
                near[offered.lies.buffer] = offered.lies
        tiles = self.planned(number, near, sum(span.bytes for span in spans))
        taken = tuple(sorted((span.offset, span.bytes) for span in spans))
        key = (taken, tuple((t.bytes, t.slots, t.first, t.last, t.content) for t in tiles))
        if key not in self.fitting:
            self.fitting[key] = self.offsets(number, tiles, spans, (0, False)) is not None
        return tiles if self.fitting[key] else None

    def planned(self, number: int, near: Mapping[str, LxTensor], taken: int) -> tuple[Tile, ...]:
        """The tiles of a step, by those of one that is equal up to names if there is one."""
        step = self.kernel.steps[number]
        weights = {n: x for n, x in self.weights.items() if number not in self.weights_far[n]}
        near = {**near, **weights}
        taken += self.card.lx_usable - self.floor
        names = step_tensors(self.kernel, step)
        lies = tuple((x.pitches, x.origins) if (x := near.get(n)) else None for n in names)
        key = (self.keys[number], lies)
        if key not in self.known:
            division = division_of(self.kernel, step.name)
            self.known[key] = names, StepPlans(self.kernel, step, division, self.card, near)
        known, plans = self.known[key]
        plan = plans.fitting(taken)
        if self.named.get((number, key), (None, ()))[0] is not plan:
            own = dict(zip(known, names, strict=True))
            renamed = ((n, own[tile.tensor], tile) for n, tile in enumerate(plan.tiles))
            self.named[number, key] = (
                plan,
                tuple(
                    replace(tile, tensor=tensor, name=tile_name(step, n, tensor))
                    for n, tensor, tile in renamed
                ),
            )
        return self.named[number, key][1]

    def offsets(
        self,
        number: int,
        tiles: Sequence[Tile],
        spans: Sequence[Span],
        slack: Slack,
    ) -> list[int] | None:
        """Offsets of the tiles of a step beside some spans; see `offsets_of`."""
        taken = [Span(span.offset, span.bytes, 0, ALWAYS) for span in spans]
        ops = step_ops(self.kernel, self.kernel.steps[number])
        return offsets_of(tiles, ops, taken, slack, self.floor, self.card)

    def rows(self) -> Iterator[tuple[str, Residency]]:
        """The table: kept tensors, then tiles."""
        yield from self.kernel.residency.items()
        for name, span in self.spans.items():
            yield name, Residency(Space.LX, span.offset, span.bytes, span.first, span.last)
        for number, step in enumerate(self.kernel.steps):
            tiles = self.tiles.get(number) or self.placed(number)
            spans = [self.spans[name] for name in self.live[number]]
            for slack in SLACKS:
                offsets = self.offsets(number, tiles, spans, slack) if tiles is not None else None
                if offsets is not None:
                    break
            if tiles is None or offsets is None:
                division = division_of(self.kernel, step.name)
                peak = step_tiles(self.kernel, step, division, self.card).peak
                raise BrokenInvariant(
                    f"step {step.name} needs {peak} bytes of LX, a core has {self.card.lx_usable}"
                )
            for tile, offset in zip(tiles, offsets, strict=True):
                size = tile.bytes * tile.slots
                yield tile.name, Residency(Space.LX, offset, size, number, number)


def _operands(tiles: Sequence[Tile]) -> Iterator[tuple[int, Tile]]:
    """Those that are loaded, with a number that tells tiles of one tensor apart."""
    seen: dict[str, int] = defaultdict(int)
    for tile in tiles:
        if tile.content is Content.OPERAND:
            yield seen[tile.tensor], tile
            seen[tile.tensor] += 1


@dataclass(frozen=True, slots=True)
class _Offered:
    """A tensor on offer; `far`: the steps that fetch it from other cores."""

    lies: LxTensor
    span: Span
    far: frozenset[int]


def offsets_of(
    tiles: Sequence[Tile],
    ops: Sequence[Op],
    taken: Sequence[Span],
    slack: Slack,
    room: int,
    card: CardSpec,
) -> list[int] | None:
    """Offsets of tiles of a step below `room`, or None if they do not fit.

    Args:
        taken: bytes that are not free from an op of the step to another.
        slack: ops for which bytes stay untouched before an operand is live, for its load to run
            ahead, and after a result is, for its store to fall behind; and whether what PT or SFU
            writes shares no bytes with what the other still works on. Without, no two tiles share
            bytes.
    """
    if slack and slack[1]:
        tiles = free_to_write(tiles, units_begin(ops))
    items = [(t.bytes * t.slots, *_kept_free(t, slack and slack[0])) for t in tiles]
    offsets, end = packed(items, card.lx_granule, taken)
    return offsets if end <= room else None


def planned_tiles(
    kernel: Kernel,
    number: int,
    kept: Mapping[str, LxTensor],
    far: Mapping[str, frozenset[int]],
    card: CardSpec,
) -> StepTiles:
    """The tiles of a step as `place` planned them.

    Args:
        kept, far: what `kept_tensors` and `far_tensors` give.
    """
    rows, step = kernel.residency, kernel.steps[number]
    live = [n for n in kept if rows[n].first <= number <= rows[n].last]
    floor = below_weights(kernel, card)
    taken = sum(rows[n].bytes for n in live if rows[n].offset < floor) + card.lx_usable - floor
    near = {n: kept[n] for n in live if number not in far[n]}
    division = division_of(kernel, step.name)
    return step_tiles(kernel, step, division, card, near, taken=taken)


def _kept_free(tile: Tile, slack: int | None) -> tuple[int, int]:
    """The ops from which to which no other tile takes the bytes of this one."""
    if slack is None:
        return 0, ALWAYS
    early = slack if tile.content is Content.OPERAND else 0
    late = slack if tile.content is Content.RESULT else 0
    return max(tile.first - early, 0), tile.last + late


# --- the pool -------------------------------------------------------------------------------


def _pool(kernel: Kernel, uses: Mapping[str, list[Use]], card: CardSpec) -> dict[str, Residency]:
    """Device memory for the local tensors that cross steps and are not in LX."""
    items: list[tuple[int, int, int]] = []
    for name, found in uses.items():
        size = pool_pitches(kernel, kernel.tensors[name])[1]
        items.append((size, found[0].step, found[-1].step))
    offsets, _ = packed(items, card.stick_bytes)
    return {
        name: Residency(Space.DEVICE, offset, *item)
        for name, offset, item in zip(uses, offsets, items, strict=True)
    }
