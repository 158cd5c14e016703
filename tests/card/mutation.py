"""Runs the checker over mutants of real programs: which it refuses, and which it need not."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from openspyre.card.native import Span
from openspyre.compiler.emit import emit
from openspyre.compiler.pipeline import compile_kernel
from openspyre.compiler.residency import place
from openspyre.errors import CardError, InvalidProgram
from openspyre.ir.kernel import Kernel
from openspyre.ir.program import Program
from openspyre.ir.text import parse_kernel
from openspyre.runtime.check import checked_sizes, checked_spans
from openspyre.spec import SPYRE_CARD_V1
from tests.card.checking import problem
from tests.card.meaning import meaning, same_meaning
from tests.card.mutants import Mutant, mutants
from tests.planned_kernels import ALL, replanned
from tests.regions import load_region

# Kinds that drop or weaken something by itself; the others move what they mutate.
WHOLE = ("drop", "weaken", "token", "wait")
REGIONS = ("vit_captured", "whisper_captured", "gpt2_captured")


@dataclass(frozen=True, slots=True)
class Case:
    """A program to mutate, and the kernel and sizes that it is for."""

    name: str
    program: Program
    kernel: Kernel
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def spans(self) -> list[Span]:
        return checked_spans(self.kernel, self.sizes)

    def refused(self, mutant: Program) -> bool:
        """Whether the decoder or the checker refuses a mutant."""
        try:
            return problem(mutant, self.spans, list(self.sizes.values())) != ""
        except (InvalidProgram, CardError):
            return True


@dataclass
class Score:
    """Counts by kind. A mutant that means the same is `excluded`, whether it was refused or not."""

    mutants: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    excluded: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)

    def __add__(self, other: Score) -> Score:
        return Score(
            self.mutants + other.mutants,
            self.refused + other.refused,
            self.excluded + other.excluded,
            self.missed + other.missed,
        )

    @property
    def rate(self) -> float:
        refused = self.refused.total()
        return refused / max(refused + len(self.missed), 1)

    def as_dict(self) -> dict[str, object]:
        kinds = {
            kind: {
                "mutants": count,
                "refused": self.refused[kind],
                "excluded": self.excluded[kind],
            }
            for kind, count in sorted(self.mutants.items())
        }
        return {"caught": round(self.rate, 5), "kinds": kinds, "missed": self.missed}


def score(case: Case, share: float = 1.0, seed: int = 0, *, prove_all: bool = False) -> Score:
    """Mutates a program.

    Args:
        share: of the mutants, at random; those that move things are taken a fourth as often.
        prove_all: whether to exclude refused mutants too (else only those that were accepted).
    """
    choice = random.Random(f"{case.name} {seed}")
    wanted = meaning(case.program, case.kernel, case.sizes)
    found = Score()
    for mutant in mutants(case.program):
        part = share if mutant.kind in WHOLE or share == 1 else share / 4
        if choice.random() < part:
            _judge(case, mutant, wanted, found, prove_all)
    return found


def _judge(case: Case, mutant: Mutant, wanted: bytes, found: Score, prove_all: bool) -> None:
    found.mutants[mutant.kind] += 1
    refused = case.refused(mutant.program)
    if (not refused or prove_all) and same_meaning(mutant.program, wanted, case.kernel, case.sizes):
        found.excluded[mutant.kind] += 1
    elif refused:
        found.refused[mutant.kind] += 1
    else:
        found.missed.append(f"{case.name}: {mutant.kind} {mutant.what}")


def planned_cases(replans: int) -> Iterator[Case]:
    """The kernels of `planned_kernels`, as they are planned there and otherwise."""
    for name, text in ALL.items():
        kernel = parse_kernel("kernel k\n" + text)
        plans = [kernel, *(replanned(kernel, seed) for seed in range(replans))]
        for number, plan in enumerate(plans):
            placed = plan if plan.residency else place(plan, SPYRE_CARD_V1)
            yield Case(f"{name}, plan {number}", emit(placed, SPYRE_CARD_V1), placed)


def compiled_cases(cores: int = 2) -> Iterator[Case]:
    """Real regions, compiled for a card of few cores."""
    card = replace(SPYRE_CARD_V1, cores=cores)
    for name in REGIONS:
        kernel = load_region(name)
        sizes = checked_sizes(kernel.limits)[0]
        yield Case(name, compile_kernel(kernel, card), kernel, sizes)
