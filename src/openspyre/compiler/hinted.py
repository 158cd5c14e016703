"""Stages that do what the user has fixed (`openspyre.hint`), and decide the rest as usual.

A name is an axis of steps as the plan's text prints it (`i0`: of all steps that have it; `s1.i0`:
of one), a dim of an op that is no axis (`contract0.r0`), or a local tensor that crosses steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from openspyre.compiler.bounds import highest
from openspyre.compiler.capacity import fit_tiles
from openspyre.compiler.choices import soonest_division
from openspyre.compiler.cost import Split, Work, local_sizes, splits
from openspyre.compiler.division import divide
from openspyre.compiler.early import load_early
from openspyre.compiler.residency import place, why_not_kept
from openspyre.compiler.step_work import StepWorks, split_of
from openspyre.compiler.tiles import Buffering, lx_peak
from openspyre.compiler.work import Works
from openspyre.errors import InvalidHint
from openspyre.ir.kernel import Dim, Division, Fixed, Hint, Kernel, Kind, Loop, Space, Step
from openspyre.ir.verify import in_order
from openspyre.spec import CardSpec


def divide_as_told(
    kernel: Kernel, card: CardSpec, *, works: Works | None = None, ring: bool = False
) -> Kernel:
    """`divide`, with the parts of some axes fixed.

    Raises:
        InvalidHint: no step has the axis, or it cannot be shared by so many cores.
    """
    kernel = divide(kernel, card, works=works, ring=ring)
    fixed = _by_step(kernel, Fixed.DIVISION)
    step_works = StepWorks(kernel, card, works, ring=ring)
    divisions = dict(kernel.divisions)
    for number, step in enumerate(kernel.steps):
        if told := fixed.get(step.name):
            work = step_works.of(number).work
            divisions[step.name] = _division(kernel, step, work, told, card)
    return replace(kernel, divisions=divisions)


def fit_tiles_as_told(
    kernel: Kernel, card: CardSpec, *, works: Works | None = None, ring: bool = False
) -> Kernel:
    """`fit_tiles`, with the tiles of some axes, or of ops' own dims, fixed.

    Raises:
        InvalidHint: nothing has the axis or dim, or the tile does not fit LX.
    """
    kernel = fit_tiles(kernel, card, works=works, ring=ring)
    fixed = _by_step(kernel, Fixed.TILE)
    step_works = StepWorks(kernel, card, works, ring=ring)
    steps = []
    for number, step in enumerate(kernel.steps):
        if told := fixed.get(step.name):
            step = _tiled(kernel, step, step_works.of(number).work, told, card)
        steps.append(step)
    return replace(kernel, steps=tuple(steps))


def place_as_told(kernel: Kernel, card: CardSpec) -> Kernel:
    """`place`, with some local tensors kept in LX across steps, or in device memory.

    Raises:
        InvalidHint: no such tensor crosses steps, or it cannot stay in LX.
    """
    told = {h.name: h for h in kernel.hints if h.what is Fixed.RESIDENCY}
    kept = [name for name, hint in told.items() if hint.value is Space.LX]
    placed = place(kernel, card, first=kept, never=told.keys() - set(kept))
    for name, hint in told.items():
        row = placed.residency.get(name)
        if row is None:
            crossing = sorted(t for t in placed.residency if t in kernel.tensors)
            raise InvalidHint(
                f"the hint {hint} names no tensor that crosses steps of {kernel.name}",
                why="only local tensors that a later step reads lie somewhere of their own",
                hint=_one_of(crossing, "tensors"),
            )
        if row.space is not hint.value:
            raise InvalidHint(
                f"the hint {hint} cannot be followed in {kernel.name}",
                why=why_not_kept(kernel, name, card),
                hint="fix the division of its steps alike, or smaller tiles of them",
            )
    return placed


def load_early_as_told(kernel: Kernel, card: CardSpec, *, works: Works | None = None) -> Kernel:
    """`load_early`, with the loops of steps that have a fixed tile."""
    return load_early(kernel, card, fixed=_by_step(kernel, Fixed.TILE).keys(), works=works)


# --- names ------------------------------------------------------------------------------------


def _by_step(kernel: Kernel, what: Fixed) -> dict[str, dict[str, Hint]]:
    """For every step the hints that concern it: by axis, or by OP.DIM for dims that are none."""
    found: dict[str, dict[str, Hint]] = {}
    for hint in kernel.hints:
        if hint.what is not what:
            continue
        matched = False
        for step in kernel.steps:
            for name in _named(kernel, step, what):
                if hint.name in (name, f"{step.name}.{name}"):
                    found.setdefault(step.name, {})[name] = hint
                    matched = True
        if not matched:
            known = [f"{s.name}.{n}" for s in kernel.steps for n in _named(kernel, s, what)]
            raise InvalidHint(
                f"the hint {hint} names no dim of {kernel.name}",
                why=f"what can have a {what.value} is what the plan's text shows",
                hint=_one_of(known, "dims") + "; kernel=NAME keeps a hint from other kernels",
            )
    return found


def _named(kernel: Kernel, step: Step, what: Fixed) -> Iterator[str]:
    yield from (axis.name for axis in step.axes)
    if what is Fixed.TILE:
        yield from (f"{op}.{dim.name}" for op, dim in _own_dims(kernel, step))


def _own_dims(kernel: Kernel, step: Step) -> Iterator[tuple[str, Dim]]:
    """The dims of a step's ops that are no axes of it and can be tiled."""
    for op in kernel.ops:
        if op.name in step.ops:
            dims = (*op.dims, *(op.rdims if op.kind is not Kind.SCAN else ()))
            yield from ((op.name, d) for d in dims if d.name not in step.binding[op.name])


def _one_of(names: list[str], what: str) -> str:
    return f"one of {', '.join(names[:20])}" if names else f"this kernel has no such {what}"


# --- divisions --------------------------------------------------------------------------------


def _division(
    kernel: Kernel, step: Step, work: Work, told: Mapping[str, Hint], card: CardSpec
) -> Division:
    parts: dict[int, int] = {}
    for at, axis in enumerate(step.axes):
        if hint := told.get(axis.name):
            _divisible(kernel, step, work, at, hint)
            parts[at] = hint.count
    if prod(parts.values()) > card.cores:
        axes = " x ".join(f"{step.axes[at].name} {n}" for at, n in parts.items())
        raise InvalidHint(
            f"the division {axes} of step {step.name} of {kernel.name} cannot be",
            why=f"it takes {prod(parts.values())} cores, the card has {card.cores}",
            hint="fewer parts of one of the axes",
        )
    found = dict.fromkeys(_with(split, parts) for split in splits(work, card))
    fitting = [split for split in found if prod(split) <= card.cores]
    return soonest_division(kernel, step, work, card, fitting)


def _with(split: Split, parts: Mapping[int, int]) -> Split:
    return tuple(parts.get(at, n) for at, n in enumerate(split))


def _divisible(kernel: Kernel, step: Step, work: Work, at: int, hint: Hint) -> None:
    axis, extent, granule = step.axes[at].name, work.extents[at], work.granules[at]
    most = max(1, -(-extent // granule))
    if hint.count > most:
        whole = f", shared in whole granules of {granule}" if granule > 1 else ""
        raise InvalidHint(
            f"the hint {hint} is more than {kernel.name} has",
            why=f"{axis} of step {step.name} has {extent} points{whole}",
            hint=f"at most {most} parts",
        )


# --- tiles ------------------------------------------------------------------------------------


def _tiled(
    kernel: Kernel, step: Step, work: Work, told: Mapping[str, Hint], card: CardSpec
) -> Step:
    division = kernel.divisions[step.name]
    found = step
    wholes = _wholes(kernel, step, work)
    for name, hint in told.items():
        if hint.count > wholes[name]:
            raise InvalidHint(
                f"the hint {hint} is more than a core of {kernel.name} has",
                why=f"{wholes[name]} points of {name} in step {step.name} are one core's",
                hint=f"at most {wholes[name]}",
            )
        found = _with_tile(found, name, hint.count, wholes[name])
    _keeps_order(kernel, found, told)
    need = _need(kernel, found, division, card)
    if need > card.lx_usable:
        names = ", ".join(str(hint) for hint in told.values())
        raise InvalidHint(
            f"the hint {names} does not fit LX in {kernel.name}",
            why=f"step {step.name} then takes {need} bytes, a core has {card.lx_usable}",
            hint=_what_fits(kernel, found, division, told, wholes, card),
        )
    return found


def _keeps_order(kernel: Kernel, step: Step, told: Mapping[str, Hint]) -> None:
    by_name = kernel.by_name
    for name, loops in step.inner.items():
        private = {d.name for d in by_name[name].dims} - step.binding[name].keys()
        if by_name[name].kind is Kind.SCATTER and not in_order(by_name[name], loops, private):
            names = ", ".join(str(hint) for hint in told.values())
            raise InvalidHint(
                f"the hint {names} would change what {kernel.name} stores",
                why=f"points of {name} may store to one element, of which the last one wins",
                hint="tiles of one point of every dim that stands before the last tiled one",
            )


def _wholes(kernel: Kernel, step: Step, work: Work) -> dict[str, int]:
    """The points of every axis and own dim that a core has."""
    local = local_sizes(work, split_of(step, kernel.divisions[step.name]))
    found = {axis.name: points for axis, points in zip(step.axes, local, strict=True)}
    for op, dim in _own_dims(kernel, step):
        found[f"{op}.{dim.name}"] = max(1, highest(dim.extent, kernel.limits))
    return found


def _with_tile(step: Step, name: str, tile: int, whole: int) -> Step:
    """The step with one loop changed, added (innermost) or, for a whole tile, left out."""
    op, _, dim = name.rpartition(".")
    loops = step.inner.get(op, ()) if op else step.loops
    if any(loop.axis == dim for loop in loops):
        loops = tuple(Loop(dim, tile) if loop.axis == dim else loop for loop in loops)
    else:
        loops = (*loops, Loop(dim, tile))
    loops = tuple(loop for loop in loops if loop.axis != dim or tile < whole)
    if not op:
        return replace(step, loops=loops)
    inner = {**step.inner, op: loops}
    return replace(step, inner={name: loops for name, loops in inner.items() if loops})


def _need(kernel: Kernel, step: Step, division: Division, card: CardSpec) -> int:
    """Bytes of LX that a step takes at least."""
    return min(lx_peak(kernel, step, division, card, buffering) for buffering in Buffering)


def _what_fits(
    kernel: Kernel, step: Step, division: Division, told: Mapping[str, Hint],
    wholes: Mapping[str, int], card: CardSpec,
) -> str:  # fmt: skip
    """The largest tile of one of the names, by halves, with which the step fits."""
    for name, hint in told.items():
        tile = hint.count // 2
        while tile:
            smaller = _with_tile(step, name, tile, wholes[name])
            if _need(kernel, smaller, division, card) <= card.lx_usable:
                return f"a tile of {tile} of {name}"
            tile //= 2
    return "tiles of other dims too"
