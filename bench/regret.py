"""Whether the cost model ranks plans as the card's clock does.

Every kernel of `./dev bench kernels` (models apart) is timed as it is planned, and with other plans
that the cost model holds for nearly as good: of one step another division, or other tile loops. The
regret is the time of the plan over the least. --only TEXT takes the cases whose name has it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

from kernels import cases, kernels_of
from measurement import Measurement, options, report

import openspyre
from openspyre.card.native import SoftwareCard
from openspyre.compiler.alternatives import Choice, step_choices
from openspyre.compiler.emit import emit
from openspyre.compiler.pipeline import plan_kernel
from openspyre.compiler.residency import place
from openspyre.errors import BrokenInvariant
from openspyre.ir.kernel import Kernel
from openspyre.spec import SPYRE_CARD_V1

TARGET = 1.05
MOST = 4  # other divisions, and other tilings, of every step


def cycles(planned: Kernel, card: SoftwareCard) -> int:
    """The clock's time of a planned kernel."""
    program = emit(planned, SPYRE_CARD_V1)
    addresses, _, scalars = program.arguments  # no sizes: the shapes of a case are constant
    loaded = card.load_program(program)
    found = card.time(loaded, card.fill(loaded, [0] * addresses, (), [0.0] * scalars))
    card.unload(loaded)
    return found.cycles


def others(planned: Kernel) -> Iterator[tuple[Choice, Kernel]]:
    """Plans that differ in one step."""
    for choices in step_choices(planned, SPYRE_CARD_V1, MOST):
        name = choices.step.name
        for other in (*choices.divisions, *choices.tilings):
            steps = tuple(other.step if s.name == name else s for s in planned.steps)
            divisions = {**planned.divisions, name: other.division}
            try:
                yield (
                    other,
                    place(
                        replace(planned, steps=steps, divisions=divisions, residency={}),
                        SPYRE_CARD_V1,
                    ),
                )
            except BrokenInvariant:  # tiles of other steps were chosen for what no longer stays
                continue


def regret(planned: Kernel, card: SoftwareCard) -> tuple[int, int, str]:
    """Cycles of a plan, of the best, and what that does otherwise."""
    taken = least = cycles(planned, card)
    best = "the plan itself"
    for other, kernel in others(planned):
        if (found := cycles(kernel, card)) < least:
            least, best = found, f"{other.step.name}: {other.text} with {_loops(other)}"
    return taken, least, best


def _loops(choice: Choice) -> str:
    every = [*choice.step.loops, *(x for own in choice.step.inner.values() for x in own)]
    return " ".join(f"{loop.axis}/{loop.tile}" for loop in every) or "whole parts"


def measured(only: str) -> Iterator[Measurement]:
    """A row for every case, told on stderr as they come."""
    with SoftwareCard(memory=1 << 30, threads=1) as card:
        for case in cases():
            if only not in case.name:
                continue
            print(f"{case.name} ...", file=sys.stderr, flush=True)
            taken = least = 0
            notes = []
            for kernel in kernels_of(case):
                had, best, note = regret(plan_kernel(kernel, SPYRE_CARD_V1), card)
                taken, least = taken + had, least + best
                notes.append(note)
            yield Measurement(
                "regret", case.name, taken / least, "x best", TARGET, "; ".join(notes)
            )


def summed(rows: Iterable[Measurement]) -> Iterator[Measurement]:
    """Mean and maximum, after the rows."""
    values = []
    for row in rows:
        values.append(row.value)
        yield row
    yield Measurement("regret", "mean", sum(values) / len(values), "x best", TARGET)
    yield Measurement("regret", "largest", max(values), "x best", TARGET)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    chosen = parser.parse_args()
    openspyre.require()
    report([*summed(measured(chosen.only))], chosen)


if __name__ == "__main__":
    main()
