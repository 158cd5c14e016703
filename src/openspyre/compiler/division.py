"""Stage 4: every step split over the cores.

All splits over the step's axes are scored by `cost.py`. Uneven parts are fine; an axis that walks
sticks is split in whole sticks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from openspyre.compiler.agreed import Agreed, agree
from openspyre.compiler.beside import divided_beside
from openspyre.compiler.choices import Choices
from openspyre.compiler.step_work import whole_works
from openspyre.compiler.work import Works, works_of
from openspyre.ir.kernel import Kernel
from openspyre.spec import CardSpec


def divide(
    kernel: Kernel, card: CardSpec, *, works: Works | None = None, ring: bool = False,
    beside: bool = False,
) -> Kernel:  # fmt: skip
    """Chooses the division of every step.

    Args:
        works: see `work.works_of`.
        ring: whether moves on the ring are taken to cost time.
        beside: whether steps are divided again by what stays in LX beside them.
    """
    works = works_of(kernel, card, works)
    choices = Choices(kernel, works)
    agreed = _agreed(kernel, choices, ring=ring).kernel
    return divided_beside(agreed, works, choices, ring=ring) if beside else agreed


@dataclass(frozen=True, slots=True)
class Divided:
    """What divisions lead to.

    Attributes:
        cycles: the estimate of all steps.
        fetches: whether a step fetches something from other cores.
    """

    cycles: float
    fetches: bool


def divided(kernel: Kernel, works: Works) -> Divided:
    """What the divisions lead to that `divide` gives the steps.

    Args:
        works: of the same ops, in steps or not.
    """
    agreed = _agreed(kernel, Choices(kernel, works), ring=False)
    return Divided(agreed.cycles(), agreed.fetches)


def _agreed(kernel: Kernel, choices: Choices, *, ring: bool) -> Agreed:
    works = {
        step.name: work
        for step, work in zip(kernel.steps, whole_works(kernel, choices.works), strict=True)
    }
    chosen = {step.name: choices.of(step, works[step.name])[0] for step in kernel.steps}
    return agree(replace(kernel, divisions=chosen), works, choices, ring=ring)
