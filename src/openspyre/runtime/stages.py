"""OPENSPYRE_TRACE=stages: what every stage of the compiler changes in a kernel, on stderr.

A kernel is shown when it is new or when a stage does something else with it than when it was last
shown; the cache of programs remembers that. With the cache off every kernel is shown.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise

from openspyre.compiler.pipeline import plan_kernel
from openspyre.ir.kernel import Kernel
from openspyre.ir.text import print_kernel
from openspyre.runtime.cache import Kind, ProgramCache
from openspyre.runtime.clock import card_timer
from openspyre.spec import CardSpec

_IMPORTED = "imported"


def show_stages(kernel: Kernel, card: CardSpec, kept: ProgramCache | None) -> None:
    """Prints the stages of a kernel with limits, unless they are those that were last printed.

    Raises what `plan_kernel` does, after printing the stages before it.
    """
    stages = [(_IMPORTED, print_kernel(kernel))]
    try:
        plan_kernel(
            kernel,
            card,
            lambda name, k: stages.append((name, print_kernel(k))),
            timer=card_timer(card),
        )
    finally:
        text = "\n".join(stage_lines(stages)) + "\n"
        if kept is None or _is_new(stages[0][1], text, kept):
            sys.stderr.write(text)
            sys.stderr.flush()


def stage_lines(stages: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The first text, then what each stage changed in it; a stage that changed nothing has none."""
    yield from stages[0][1].splitlines()
    for (_, before), (name, after) in pairwise(stages):
        if before != after:
            yield f"stage {name}"
            yield from changed_lines(before, after)


def changed_lines(before: str, after: str) -> list[str]:
    """The lines of a text that went ("- ") and those that came ("+ "), in the text's order."""
    old, new = before.splitlines(), after.splitlines()
    return [line.rstrip() for line in difflib.ndiff(old, new) if line[0] in "+-"]


def _is_new(kernel: str, text: str, kept: ProgramCache) -> bool:
    """Whether the text differs from the one last kept for a kernel; keeps it."""
    key = hashlib.sha256(json.dumps(("stages", kernel)).encode()).hexdigest()
    digest = hashlib.sha256(text.encode()).digest()
    if kept.find(key, Kind.STAGES) == digest:
        return False
    kept.keep(key, digest, Kind.STAGES)
    return True
