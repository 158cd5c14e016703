"""The compiler is this list. Read it first.

A stage is a pass, which returns a new Kernel, and the check of what it promises. Checks always
run; one that fails is a mistake of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

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


def plan_kernel(
    kernel: Kernel,
    card: CardSpec,
    on_stage: Observer | None = None,
    stages: tuple[Stage, ...] | None = None,
) -> Kernel:
    """The kernel with its plan tables filled.

    Args:
        on_stage: called with the name of every stage and the kernel after it.
        stages: by default those that the kernel's hints ask for.

    Raises:
        BrokenInvariant: a stage broke its promise; carries the kernel's text.
        Unsupported: the kernel cannot run on the card.
        InvalidHint: it cannot follow a hint.
    """
    if stages is None:
        stages = TOLD_STAGES if kernel.hints else STAGES
    _check("the kernel handed in", kernel, card, verify.well_formed)
    for name, run, check in stages:
        kernel = run(kernel, card)
        _check(f"stage {name}", kernel, card, check)
        if on_stage is not None:
            on_stage(name, kernel)
    return kernel


def compile_kernel(kernel: Kernel, card: CardSpec, on_stage: Observer | None = None) -> Program:
    """The Program of a kernel. Raises what `plan_kernel` does."""
    return emit(plan_kernel(kernel, card, on_stage), card)


def _check(what: str, kernel: Kernel, card: CardSpec, check: Check) -> None:
    problems = list(check(kernel, card))
    if problems:
        listed = "\n".join(f"- {p}" for p in problems[:10])
        raise BrokenInvariant(f"{what} is not valid:\n{listed}", text=print_kernel(kernel))
