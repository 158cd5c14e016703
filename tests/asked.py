"""A timer for tests of plans that are chosen by one."""

from __future__ import annotations

from openspyre.errors import Unsupported
from openspyre.ir.program import Program


class Asked:
    """A timer that says of every plan what it is told to, in turn.

    It is asked twice: of the plan, and of the plan without operands that are loaded early.
    """

    def __init__(self, *answers: float | None) -> None:
        self.answers, self.programs = answers, list[Program]()
        self.last = 0.0

    def __call__(self, program: Program) -> float:
        early = any(section.joins for section in program.sections)
        if self.programs and not early and any(s.joins for s in self.programs[-1].sections):
            return self.last
        self.programs.append(program)
        answer = self.answers[len(self.programs) - 1]
        if answer is None:
            raise Unsupported("it cannot be timed")
        self.last = answer
        return answer
