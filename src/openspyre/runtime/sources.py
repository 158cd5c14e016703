"""Card time of a program without values, and how its sources share it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from openspyre.card.activity import instruction_names, lines
from openspyre.card.native import LoadedProgram, SoftwareCard
from openspyre.ir.binary import encode
from openspyre.ir.program import Program, rounds
from openspyre.spec import CardSpec

_MEMORY = 1 << 26  # bytes: programs lie in it, nothing else


@dataclass(frozen=True, slots=True)
class SectionShares:
    """A section with those that join it, and which part of their time belongs to whom."""

    program: Program  # with these sections alone
    shares: Mapping[str, float]


def shared_sections(
    program: Program, card: CardSpec, owner: Callable[[str], str]
) -> tuple[SectionShares, ...]:
    """The sections of a program without size symbols; `owner` says whose a source is.

    A section (with those that join it) of several owners is shared in proportion to the time of the
    unit that each keeps busy longest.
    """
    found = []
    with SoftwareCard(memory=_MEMORY, threads=1, spec=card) as machine:
        for together in rounds(program.sections):
            alone = replace(program, sections=together, prologue=0)
            names = {owner(source) for _, source in instruction_names(alone).values()}
            shares = _shares(machine, alone, owner) if len(names) > 1 else dict.fromkeys(names, 1.0)
            found.append(SectionShares(alone, shares))
    return tuple(found)


def cycles_by_owner(sections: Sequence[SectionShares], card: CardSpec) -> dict[str, float]:
    """Cycles of sections that run one after the other; their sum is the program's time.

    The barrier between two sections belongs to the second.
    """
    found: defaultdict[str, float] = defaultdict(float)
    barrier = card.cores // 2 * card.ring_hop_cycles
    with SoftwareCard(memory=_MEMORY, threads=1, spec=card) as machine:
        for number, section in enumerate(sections):
            with _loaded(machine, section.program) as (loaded, block):
                cycles = machine.time(loaded, block).cycles + (barrier if number else 0)
            for name, share in section.shares.items():
                found[name] += cycles * share
    return dict(found)


def _shares(
    machine: SoftwareCard, program: Program, owner: Callable[[str], str]
) -> dict[str, float]:
    with _loaded(machine, program) as (loaded, block):
        report, events = machine.trace(loaded, block)
    found: defaultdict[str, float] = defaultdict(float)
    for line in lines(program, events, report.cycles):
        found[owner(line.source)] += line.cycles
    total = sum(found.values())
    return {name: cycles / total for name, cycles in found.items()}


@contextmanager
def _loaded(machine: SoftwareCard, program: Program) -> Iterator[tuple[LoadedProgram, bytes]]:
    """The program on a card, and a symbol block whose addresses mean nothing: time needs none."""
    data = encode(program)
    machine.write(machine.memory_base, data)
    loaded = machine.load(machine.memory_base, len(data))
    addresses, sizes, scalars = program.arguments
    try:
        yield loaded, machine.fill(loaded, [0] * addresses, [0] * sizes, [0.0] * scalars)
    finally:
        machine.unload(loaded)
