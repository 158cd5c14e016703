"""The compiler is this list. Read it first.

A stage is a pass, which returns a new Kernel, and the check of what it promises. Checks always
run; one that fails is a mistake of ours.

With a timer, the stages from `form_steps` on run for several ways to plan (`ways.py`), and the plan
that it finds the soonest is taken (`timed.py`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from openspyre.compiler.canonical import canonicalize
from openspyre.compiler.capacity import fit_tiles
from openspyre.compiler.division import divide
from openspyre.compiler.early import load_early
from openspyre.compiler.emit import emit
from openspyre.compiler.hinted import (
    divide_as_told,
    fit_tiles_as_told,
    load_early_as_told,
    place_as_told,
)
from openspyre.compiler.layout import choose_layouts
from openspyre.compiler.residency import place
from openspyre.compiler.tiling import form_steps
from openspyre.compiler.timed import Stages, Timer, Tried, soonest
from openspyre.compiler.ways import Way, ways
from openspyre.compiler.weights import keep_weights
from openspyre.errors import BrokenInvariant
from openspyre.ir import verify
from openspyre.ir.kernel import Kernel
from openspyre.ir.program import Program
from openspyre.ir.text import print_kernel
from openspyre.spec import CardSpec

Pass = Callable[[Kernel, CardSpec], Kernel]
Check = Callable[[Kernel, CardSpec], Iterator[str]]
Observer = Callable[[str, Kernel], None]
Stage = tuple[str, Pass, Check]

STAGES: tuple[Stage, ...] = (
    ("canonicalize", canonicalize, verify.canonical),
    ("choose_layouts", choose_layouts, verify.laid_out),
    ("form_steps", form_steps, verify.stepped),
    ("divide", divide, verify.divided),
    ("keep_weights", keep_weights, verify.kept),
    ("fit_tiles", fit_tiles, verify.looped),
    ("place", place, verify.placed),
    ("load_early", load_early, verify.loaded_early),
)
# Of kernels with hints: what the user has fixed is not chosen.
_TOLD: Mapping[str, Pass] = {
    "divide": divide_as_told, "fit_tiles": fit_tiles_as_told, "place": place_as_told,
    "load_early": load_early_as_told,
}  # fmt: skip
TOLD_STAGES = tuple((name, _TOLD.get(name, run), check) for name, run, check in STAGES)


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned kernel, and how it came about.

    Attributes:
        ring: whether divisions and tiles were chosen as if moves on the ring took time.
        way: the way that was taken; empty without a timer.
        tried: all ways that were tried, in order.
        program: if it was made already.
    """

    kernel: Kernel
    ring: bool = False
    way: str = ""
    tried: tuple[Tried, ...] = ()
    program: Program | None = None


def plan_kernel(
    kernel: Kernel,
    card: CardSpec,
    on_stage: Observer | None = None,
    stages: tuple[Stage, ...] | None = None,
    timer: Timer | None = None,
) -> Kernel:
    """The kernel with its plan tables filled.

    Args:
        on_stage: called with the name of every stage and the kernel after it.
        stages: by default those that the kernel's hints ask for.
        timer: chooses between ways to plan; without it estimates do.

    Raises:
        BrokenInvariant: a stage broke its promise; carries the kernel's text.
        Unsupported: the kernel cannot run on the card.
        InvalidHint: it cannot follow a hint.
    """
    return planned(kernel, card, on_stage, stages, timer).kernel


def compile_kernel(
    kernel: Kernel, card: CardSpec, on_stage: Observer | None = None, timer: Timer | None = None
) -> Program:
    """The Program of a kernel. Raises what `plan_kernel` does."""
    found = planned(kernel, card, on_stage, None, timer)
    return found.program or emit(found.kernel, card)


def planned(
    kernel: Kernel,
    card: CardSpec,
    on_stage: Observer | None = None,
    stages: tuple[Stage, ...] | None = None,
    timer: Timer | None = None,
) -> Planned:
    """What `plan_kernel` gives, and how it came about.

    Where sizes are symbols the timer is not asked: nobody knows yet which will come.
    """
    with _no_search_for_cycles():
        return _planned(kernel, card, on_stage, stages, timer)


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """Stages leave no cycles of objects: to look for some took a tenth of the time of planning.

    Other threads of the process go without meanwhile. Nothing changes where it was off already.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _planned(
    kernel: Kernel,
    card: CardSpec,
    on_stage: Observer | None,
    stages: tuple[Stage, ...] | None,
    timer: Timer | None,
) -> Planned:
    if stages is None:
        stages = TOLD_STAGES if kernel.hints else STAGES
    _check("the kernel handed in", kernel, card, verify.well_formed)
    if timer is None or kernel.symbols:
        return Planned(_run(kernel, card, stages, on_stage)[-1][1])
    forming = [name for name, _, _ in stages].index("form_steps")
    laid = _run(kernel, card, stages[:forming], on_stage)[-1][1]

    def finish(way: Way) -> Stages:
        return _run(laid, card, _on(way, stages[forming:]))

    plan, tried = soonest(ways(laid, card), finish, card, timer)
    for name, after in plan.stages:
        if on_stage is not None:
            on_stage(name, after)
    return Planned(plan.kernel, plan.way.ring, plan.way.name, tried, plan.program)


def _on(way: Way, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Stages bound to a way."""
    bound: dict[Pass, Pass] = {
        run: partial(run, works=way.works, ring=way.ring)
        for run in (divide, divide_as_told, fit_tiles, fit_tiles_as_told)
    }
    bound |= {run: partial(run, works=way.works) for run in (load_early, load_early_as_told)}
    if way.beside:
        bound[divide] = partial(divide, works=way.works, ring=way.ring, beside=True)
    bound[form_steps] = lambda kernel, card: way.formed
    return tuple((name, bound.get(run, run), check) for name, run, check in stages)


def _run(
    kernel: Kernel, card: CardSpec, stages: tuple[Stage, ...], on_stage: Observer | None = None
) -> Stages:
    found = []
    for name, run, check in stages:
        kernel = run(kernel, card)
        _check(f"stage {name}", kernel, card, check)
        found.append((name, kernel))
        if on_stage is not None:
            on_stage(name, kernel)
    return tuple(found)


def _check(what: str, kernel: Kernel, card: CardSpec, check: Check) -> None:
    problems = list(check(kernel, card))
    if problems:
        listed = "\n".join(f"- {p}" for p in problems[:10])
        raise BrokenInvariant(f"{what} is not valid:\n{listed}", text=print_kernel(kernel))
