"""A launch out of a capture, judged again: what the scripts of `spyre diagnose` call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from openspyre.card.native import NO_DEBUG
from openspyre.errors import SpyreError
from openspyre.ir.text import parse_kernel
from openspyre.numerics import parse_numerics
from openspyre.runtime.diagnosis import Fault, Judge, Meaning
from openspyre.runtime.parts import Bench
from openspyre.runtime.replay import blocks_after, machine_with, memory_for
from openspyre.runtime.saved import Launch, SavedKernel, read_run
from openspyre.runtime.sizes import limits_of
from openspyre.runtime.traced import card_of
from openspyre.spec import CardSpec
from openspyre.tools.diagnosis_report import summary
from openspyre.tools.progress import silent


def repeated(capture: Path) -> int:
    """Judges the launch in a capture as it was, and with a program that is compiled now.

    Returns 0 if the program compiled now is right, else 1. Prints what is wrong, with the op.

    Raises:
        SpyreError: the capture holds no launch with its memory.
    """
    run = read_run(capture)
    pairs = [(k, one) for k in run.kernels for one in k.launches if not one.why_not]
    if not pairs:
        raise SpyreError(f"{capture} holds no launch with its memory")
    kernel, launch = pairs[0]
    card = card_of(run.card)
    judge = Judge(card, _no_meaning, silent)
    codes = {}
    for title, case in (
        ("as it was captured", (kernel, launch)),
        ("compiled now", _anew(kernel, launch, card)),
    ):
        finding = judge.checked(*case)
        codes[title] = 0 if finding.fault is Fault.NONE else 1
        print(f"{title}: {finding.fault.value}")
        if finding.fault is not Fault.NONE:
            print("\n".join(summary(judge.located(*case, finding))))
    return codes["compiled now"]


def _no_meaning(_: object) -> Meaning | None:
    return None


def _anew(kernel: SavedKernel, launch: Launch, card: CardSpec) -> tuple[SavedKernel, Launch]:
    """The launch with a program of this version, and what that leaves."""
    region = parse_kernel(kernel.text)
    limited = replace(region, limits=limits_of(region, launch.sizes))
    program = Bench(card, parse_numerics(launch.numerics), timed=True).compiled(limited)
    with machine_with(memory_for(launch, program), card, NO_DEBUG, program) as (machine, loaded):
        after = blocks_after(machine, loaded, launch)
    blocks = tuple(replace(b, after=a) for b, a in zip(launch.blocks, after, strict=True))
    variants = list(kernel.variants)
    variants[launch.variant] = replace(variants[launch.variant], program=program)
    return replace(kernel, variants=tuple(variants)), replace(launch, blocks=blocks)
