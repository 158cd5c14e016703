"""What a program means, without values: the criterion that tells mutants apart from the original.

Every byte of memory has a *name*: a hash of how it came about (an input's byte, or an operation on
bytes of such names at such coordinates). Two programs whose outputs have equal names compute equal
values in body order. That body order is the meaning of every legal order follows when each two
accesses to one byte, one of which writes, are ordered by units, tokens or sections; a program in
which some are not has a `race`.

Names are kept for whole results (`byte_sets.py`), so a proof costs by instruction, not by byte.
Equal names prove equal values; other names may still hold equal values.

Written from the text of `ir/program.py` alone: it shares nothing with the card or its checker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from openspyre.ir.kernel import Kernel
from openspyre.ir.program import Program
from tests.card.byte_sets import NONE, name_of
from tests.card.naming import POOL, BytesByCore, Machine, State, Uses
from tests.card.operands import buffers_in
from tests.card.order import NotEqual


def meaning(program: Program, kernel: Kernel, sizes: Mapping[str, int]) -> bytes:
    """A digest of the names of all bytes that a launch may leave behind.

    Raises:
        NotEqual: a race, or an access out of bounds.
    """
    machine = Machine(program, kernel, sizes)
    machine.run(range(len(program.sections)))
    return machine.digest()


def hazard(program: Program, kernel: Kernel, sizes: Mapping[str, int]) -> str:
    """What a program does that no right one does, "" if nothing."""
    machine = Machine(program, kernel, sizes)
    try:
        machine.run(range(len(program.sections)))
    except NotEqual as wrong:
        return str(wrong)
    fresh = [machine.memories[POOL], *machine.lx.values()]
    return "reads what nothing has written" if any(m.read_first for m in fresh) else ""


class Original:
    """A program, to compare others with that differ from it in a few places.

    A section of another program that is the same, and finds the same bytes, need not run again.
    """

    def __init__(self, program: Program, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        self.program, self.kernel, self.sizes = program, kernel, sizes
        machine = Machine(program, kernel, sizes)
        self.states = [machine.state()]
        uses = []
        for number in range(len(program.sections)):
            machine.uses = Uses()
            uses.append(machine.uses)
            machine.run([number])
            self.states.append(machine.state())
        self.live = _live(uses)
        self.digests = [self.digest(machine, n, state) for n, state in enumerate(self.states)]

    def means(self, mutant: Program, *, thorough: bool = True) -> bool:
        """Whether a proof was found that a mutant computes the same in every legal order.

        Args:
            thorough: whether to look behind the last section that differs.
        """
        try:
            return self.proved(mutant, thorough)
        except NotEqual:
            return False

    def proved(self, mutant: Program, thorough: bool) -> bool:
        machine = Machine(mutant, self.kernel, self.sizes)
        count = len(self.program.sections)
        changed = [n for n in range(count) if not self.same_section(mutant, n)]
        if not changed:
            return True
        first, last = changed[0], changed[-1]
        machine.restore(self.states[first])
        machine.run(range(first, last + 1))
        if self.digest(machine, last + 1) == self.digests[last + 1]:
            return True
        if not thorough:
            return False
        machine.run(range(last + 1, count))
        return self.digest(machine, count) == self.digests[count]

    def same_section(self, mutant: Program, number: int) -> bool:
        section = self.program.sections[number]
        return mutant.sections[number] == section and all(
            mutant.buffers[b] == self.program.buffers[b] for b in buffers_in(section.body)
        )

    def digest(self, machine: Machine, number: int, state: State | None = None) -> bytes:
        """Of what sections from a number on may find, or the user."""
        if state is not None:
            machine.restore(state)
        if number == len(self.program.sections):
            return machine.digest()
        memories = [memory.content(memory.whole, 0) for memory in machine.memories.values()]
        live = [
            memory.content(self.live[number].get(core, NONE), 0)
            for core, memory in machine.lx.items()
        ]
        return name_of(*memories, *live)


def _live(uses: Sequence[Uses]) -> list[BytesByCore]:
    """The bytes of LX that sections from a number on read before they write them."""
    live: list[BytesByCore] = [{}]
    for section in reversed(uses):
        later = live[-1]
        cores = later.keys() | section.read.keys()
        live.append({
            core: later.get(core, NONE).without(section.written.get(core, NONE))
            .joined(section.read.get(core, NONE))
            for core in cores
        })  # fmt: skip
    return live[::-1]
