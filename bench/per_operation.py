"""Planning as published compilers for this card do it: one operation at a time.

Every operation is a step of its own. Its split is chosen alone: cores go to the output dims by
decreasing size, to each the largest divisor that the remaining cores allow (stick dims in whole
sticks); a matmul takes the split that its cost equation gives the least time, and can be cut in
tiles as measured programs are (docs/decisions/0008.md). Local tensors stay in LX, greedily, where
producer and consumer happen to split alike; others go through device memory. Nothing moves on
the ring, and an operation loads nothing before the one before is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod

from split_matmul import STICK, Tiling, tile_of
from split_matmul import Split as MatmulSplit

from openspyre.compiler.bounds import highest
from openspyre.compiler.capacity import fit_tiles
from openspyre.compiler.contraction import contraction
from openspyre.compiler.pipeline import STAGES, Stage
from openspyre.compiler.residency import place
from openspyre.compiler.rewrite import reads
from openspyre.compiler.step_work import whole_works
from openspyre.compiler.tiling import Runs
from openspyre.compiler.work import Works
from openspyre.ir.kernel import Division, Kernel, Kind, Loop, Op, Part, Step
from openspyre.spec import CardSpec

Split = tuple[int, ...]


def per_operation(
    *,
    lx: bool = True,
    ring: bool = False,
    forced: Mapping[int, Split] | None = None,
    tiling: Tiling | None = None,
) -> tuple[Stage, ...]:
    """The stages of such a compiler.

    Args:
        lx: whether local tensors may stay in LX between operations.
        ring: whether an operation may fetch what other cores hold, which none of these does.
        forced: the splits of some steps, by number.
        tiling: how matmuls are cut, by default as we do.
    """
    told = forced or {}
    passes = {
        "fit_tiles": lambda kernel, card: _tiled(fit_tiles(kernel, card), tiling),
        "form_steps": _alone,
        "divide": lambda kernel, card: _divided(kernel, card, told),
        "place": lambda kernel, card: place(
            kernel, card, never=() if lx else kernel.tensors, ring=ring
        ),
        "load_early": lambda kernel, card: kernel,
    }
    return tuple((name, passes.get(name, run), check) for name, run, check in STAGES)


def _alone(kernel: Kernel, card: CardSpec) -> Kernel:
    """A step for every operation; a reduction that is made in two halves is one."""
    runs = Runs(kernel, card)
    found = list(_operations(kernel))
    return replace(kernel, steps=tuple(runs.step(a, b, f"s{n}") for n, (a, b) in enumerate(found)))


def _operations(kernel: Kernel) -> Iterator[tuple[int, int]]:
    """First and last op of every operation."""
    ops, first = kernel.ops, 0
    for number, op in enumerate(ops):
        following = ops[number + 1] if number + 1 < len(ops) else None
        if following is None or not _is_half(kernel, op, following):
            yield first, number
            first = number + 1


def _is_half(kernel: Kernel, op: Op, following: Op) -> bool:
    """Whether the next op does nothing but go on reducing what this one reduced."""
    readers = [o.name for o in kernel.ops if op.out.tensor in {t for t, _ in reads(o)}]
    both = op.kind is following.kind is Kind.REDUCE and op.reduce == following.reduce
    return both and readers == [following.name]


# --- splits -----------------------------------------------------------------------------------


def _divided(kernel: Kernel, card: CardSpec, forced: Mapping[int, Split]) -> Kernel:
    works = whole_works(kernel, Works(kernel, card))
    ops = {op.name: op for op in kernel.ops}
    divisions = {}
    for number, step in enumerate(kernel.steps):
        granules = [card.stick_bytes // 2 if n > 1 else 1 for n in works[number].granules]
        split = forced.get(number) or _split(kernel, step, ops[step.ops[-1]], granules, card)
        divisions[step.name] = Division(
            tuple(
                Part(axis.name, parts, prod(split[at + 1 :]), granules[at])
                for at, (axis, parts) in enumerate(zip(step.axes, split, strict=True))
                if parts > 1
            )
        )
    return replace(kernel, divisions=divisions)


def _split(kernel: Kernel, step: Step, op: Op, granules: Sequence[int], card: CardSpec) -> Split:
    sizes = [max(1, highest(axis.extent, kernel.limits)) for axis in step.axes]
    units = [-(-size // granule) for size, granule in zip(sizes, granules, strict=True)]
    if op.kind is Kind.CONTRACT:
        return _matmul_split(kernel, step, op, sizes, units, card)
    left, split = card.cores, [1] * len(sizes)
    for at in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        split[at] = max(d for d in range(1, left + 1) if units[at] % d == 0)
        left //= split[at]
    return tuple(split)


def _matmul_split(
    kernel: Kernel, step: Step, op: Op, sizes: Sequence[int], units: Sequence[int], card: CardSpec
) -> Split:
    """The split with the least time by the published terms (card.md 1.1 to 1.3).

    max(MACs of a core over its rate at the rows that it has, both operands and the result over
    device memory, an operand slower by how many cores share it).
    """
    divisors = [[d for d in range(1, card.cores + 1) if unit % d == 0] for unit in units]
    splits = [s for s in product(*divisors) if prod(s) <= card.cores]
    return min(splits, key=lambda s: (*_matmul_time(kernel, step, op, sizes, s, card), s))


def _matmul_time(
    kernel: Kernel, step: Step, op: Op, sizes: Sequence[int], split: Split, card: CardSpec
) -> tuple[float, float]:
    """The time, and that of device memory, which decides between equal ones."""
    parts, binding = contraction(kernel, op), step.binding[op.name]
    axes = [axis.name for axis in step.axes]
    every = {d.name: max(1, highest(d.extent, kernel.limits)) for d in (*op.dims, *op.rdims)}
    shared = {d: split[axes.index(a)] for d, a in binding.items()}
    own = {d: -(-size // shared.get(d, 1)) for d, size in every.items()}

    def points(dims: Sequence[str], of: Mapping[str, int]) -> int:
        return prod(of[d] for d in dims)

    rows = points(parts.m, own)
    fill = min(1.0, (rows / 64) ** 0.35)
    compute = points(list(every), own) / (card.mac_per_core_cycle * card.clock_ghz * fill)
    memory = 0.0
    for dims in ((*parts.batch, *parts.m, *parts.k), (*parts.batch, *parts.k, *parts.n)):
        fan = prod(n for d, n in shared.items() if d not in dims)
        slower = max(1.0, (fan / card.multicast_free) ** card.multicast_exponent)
        memory += 2 * points(dims, every) * slower / card.dram_oneway
    memory += 2 * points((*parts.batch, *parts.m, *parts.n), every) / card.dram_oneway
    return float(max(compute, memory)), float(memory)


# --- tiles ------------------------------------------------------------------------------------


def _tiled(kernel: Kernel, tiling: Tiling | None) -> Kernel:
    """Matmuls cut as a tiling says."""
    if tiling is None:
        return kernel
    ops = {op.name: op for op in kernel.ops}
    steps = tuple(
        _cut(kernel, step, ops[step.ops[0]], tiling)
        if [ops[name].kind for name in step.ops] == [Kind.CONTRACT]
        else step
        for step in kernel.steps
    )
    return replace(kernel, steps=steps)


def _cut(kernel: Kernel, step: Step, op: Op, tiling: Tiling) -> Step:
    """A matmul's step with the loops of a tiling: columns, batches, rows, then K a stick at a time.

    The innermost dims of columns and of K are within sticks where there are several.
    """
    parts, binding = contraction(kernel, op), step.binding[op.name]
    size = {d.name: highest(d.extent, kernel.limits) for d in (*op.dims, *op.rdims)}
    shared = {p.axis: p.parts for p in kernel.divisions[step.name].parts}

    def total(dims: Sequence[str], of: Mapping[str, int]) -> int:
        return prod(of.get(d, 1) for d in dims)

    in_parts = {d: shared.get(axis, 1) for d, axis in binding.items()}
    batches, rows = (*parts.batch, *parts.m[:-1]), parts.m[-1:]
    roles = (batches, rows, parts.n, parts.k)
    split = MatmulSplit(*(total(d, size) for d in roles), *(total(d, in_parts) for d in roles))
    tile = tile_of(split, tiling)
    wanted = (
        (parts.n, tile.columns * STICK // total(parts.n[1:], size)),
        (batches, tile.b),
        (rows, tile.m),
    )
    loops = tuple(Loop(binding[dims[0]], max(1, points)) for dims, points in wanted if dims)
    k = Loop(parts.k[0], max(1, STICK // total(parts.k[1:], size)))
    return replace(step, loops=loops, inner={**step.inner, op.name: (k,)})
