"""Runs the checker over mutants of real programs: which it refuses, and which it need not."""

from __future__ import annotations

import multiprocessing
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

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
from tests.card.meaning import Original, hazard
from tests.card.mutants import Mutant, mutants
from tests.planned_kernels import ALL, replanned
from tests.regions import load_region

# Kinds that drop or weaken a load, a store, an operation, a token or a wait. The others move what
# they mutate.
WHOLE = ("drop", "weaken", "token", "wait")
REGIONS = (
    "vit_captured",
    "whisper_captured",
    "gpt2_captured",
    "t5_captured",
    "smollm2_4l_decode_dynamiccache_captured",
    "minilm_dyn_captured",
    "minilm_captured",
)
_MOVED = 1000  # mutants that move things, of one program; more are taken at random


@dataclass(frozen=True, slots=True)
class Case:
    """A program to mutate, the kernel that it is for, and the sizes that it is checked at."""

    name: str
    program: Program
    kernel: Kernel
    sizes: tuple[Mapping[str, int], ...] = ({},)

    def refused(self, mutant: Program) -> bool:
        """Whether the decoder or the checker refuses a mutant, as it would when it is compiled."""
        return any(self.refused_at(mutant, sizes) for sizes in self.sizes)

    def refused_at(self, mutant: Program, sizes: Mapping[str, int]) -> bool:
        try:
            return problem(mutant, checked_spans(self.kernel, sizes), list(sizes.values())) != ""
        except (InvalidProgram, CardError):
            return True


@dataclass(frozen=True, slots=True)
class Miss:
    """A mutant that was accepted and not proved equal.

    Attributes:
        hazard: what no right program does and this one does; "" if it is a right program, which
            means something else: only values tell it apart.
    """

    case: str
    kind: str
    what: str
    hazard: str

    def __str__(self) -> str:
        why = self.hazard or "no hazard: every byte that it reads is written and waited for"
        return f"{self.case}: {self.kind} {self.what} ({why})"


@dataclass
class Score:
    """Counts by kind. A mutant that means the same is `excluded`, whether it was refused or not.

    (Of the kinds that move something, refused ones are not asked.)
    """

    exist: Counter[str] = field(default_factory=Counter)
    mutants: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    excluded: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)  # of those excluded
    missed: list[Miss] = field(default_factory=list)

    def __add__(self, other: Score) -> Score:
        return Score(
            self.exist + other.exist,
            self.mutants + other.mutants,
            self.refused + other.refused,
            self.excluded + other.excluded,
            self.accepted + other.accepted,
            self.missed + other.missed,
        )

    def rate(self, kinds: Iterable[str]) -> float:
        """Of the mutants of some kinds that do not mean the same, how many are refused."""
        refused = sum(self.refused[kind] for kind in kinds)
        missed = sum(miss.kind in kinds for miss in self.missed)
        return refused / max(refused + missed, 1)

    def as_dict(self) -> dict[str, dict[str, int]]:
        missed = Counter(miss.kind for miss in self.missed)
        return {
            kind: {
                "exist": self.exist[kind],
                "mutants": count,
                "refused": self.refused[kind],
                "same, accepted": self.accepted[kind],
                "same, refused": self.excluded[kind] - self.accepted[kind],
                "missed": missed[kind],
            }
            for kind, count in sorted(self.mutants.items())
        }


@dataclass(frozen=True, slots=True)
class Job:
    """Every `of`th mutant of a case from `part` on, of those that `whole` and `moved` choose.

    Attributes:
        whole: the share of mutants to take, of kinds that drop or weaken.
        moved: the same of the others.
    """

    case: str
    whole: float = 1.0
    moved: float = 1.0
    part: int = 0
    of: int = 1


def scored(job: Job) -> Score:
    """Mutates a program."""
    case = case_named(job.case)
    originals = _originals(job.case)
    choice = random.Random(job.case)
    found = Score()
    taken = 0
    for mutant in mutants(case.program):
        found.exist[mutant.kind] += job.part == 0
        share = job.whole if mutant.kind in WHOLE else job.moved
        if choice.random() < share:
            if taken % job.of == job.part:
                _judge(case, mutant, originals, found)
            taken += 1
    return found


def _judge(case: Case, mutant: Mutant, originals: Sequence[Original], found: Score) -> None:
    kind, program = mutant.kind, mutant.program
    found.mutants[kind] += 1
    refused = case.refused(program)
    asked = not refused or kind in WHOLE
    if asked and all(one.means(program, thorough=not refused) for one in originals):
        found.excluded[kind] += 1
        found.accepted[kind] += not refused
    elif refused:
        found.refused[kind] += 1
    else:
        why = next(filter(None, (hazard(program, case.kernel, s) for s in case.sizes)), "")
        found.missed.append(Miss(case.name, kind, mutant.what, why))


def scores(jobs: list[Job], tell: Callable[[str], None]) -> Iterator[tuple[Job, Score]]:
    """The scores of jobs, in no order, on all cores."""
    context = multiprocessing.get_context("spawn")
    count = len(jobs)
    with context.Pool(min(context.cpu_count(), count)) as pool:
        for number, (job, score) in enumerate(pool.imap_unordered(_numbered, jobs), 1):
            tell(f"{number}/{count} {job.case} {job.part + 1}/{job.of}: {len(score.missed)} missed")
            yield job, score


def _numbered(job: Job) -> tuple[Job, Score]:
    return job, scored(job)


# --- the programs -------------------------------------------------------------------------------


def planned_names(replans: int) -> list[str]:
    """The kernels of `planned_kernels`, as they are planned there and otherwise."""
    return [f"{name}, plan {number}" for name in ALL for number in range(replans + 1)]


def region_jobs(name: str) -> list[Job]:
    """All mutants that drop or weaken something, and as many of the others as there is time for."""
    counts = Counter(mutant.kind in WHOLE for mutant in mutants(case_named(name).program))
    moved = min(1.0, round(_MOVED / counts[False], 3))
    of = max(round((counts[True] + moved * counts[False]) / 250), 1)
    return [Job(name, 1.0, moved, part, of) for part in range(of)]


@lru_cache(maxsize=2)
def case_named(name: str) -> Case:
    """A planned kernel, or a real region compiled for a card of few cores."""
    if name in REGIONS:
        kernel = load_region(name)
        program = compile_kernel(kernel, replace(SPYRE_CARD_V1, cores=2))
        return Case(name, program, kernel, checked_sizes(kernel.limits))
    text, _, number = name.rpartition(", plan ")
    kernel = parse_kernel("kernel k\n" + ALL[text])
    plan = replanned(kernel, int(number) - 1) if int(number) else kernel
    placed = plan if plan.residency else place(plan, SPYRE_CARD_V1)
    return Case(name, emit(placed, SPYRE_CARD_V1), placed)


@lru_cache(maxsize=2)
def _originals(name: str) -> list[Original]:
    """One for every size."""
    case = case_named(name)
    return [Original(case.program, case.kernel, sizes) for sizes in case.sizes]
