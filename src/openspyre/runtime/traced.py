"""The events of a saved run's launches, from the card's time engine. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from math import inf

from openspyre.card.native import Events, LoadedProgram, Report, SoftwareCard
from openspyre.ir.binary import decode
from openspyre.ir.program import Program
from openspyre.runtime.saved import InvalidRun, SavedKernel, Use
from openspyre.spec import SPYRE_CARD_V1, CardSpec

_PROGRAMS = 1 << 28  # bytes that a program may take


def card_of(numbers: Mapping[str, float]) -> CardSpec:
    """The card of a run.

    Raises:
        InvalidRun: this version describes cards by other numbers.
    """
    known = SPYRE_CARD_V1.numbers()
    if set(numbers) != set(known):
        differing = ", ".join(sorted(set(numbers) ^ set(known)))
        raise InvalidRun(
            "the run's card has other numbers than this version knows",
            why=differing,
            hint="use the version of openspyre that wrote it",
        )
    wrong = [name for name, value in numbers.items() if not 0 < value < inf]
    if wrong:
        raise InvalidRun("the run's card is none", why=f"{', '.join(wrong)}: not positive")
    whole = {f.name for f in fields(CardSpec) if f.type == "int"}
    return CardSpec(**{n: int(v) if n in whole else v for n, v in numbers.items()})  # type: ignore[arg-type]


class Tracer:
    """A card that times programs and computes nothing; use it as a context."""

    def __init__(self, spec: CardSpec) -> None:
        self._card = SoftwareCard(memory=_PROGRAMS, threads=1, spec=spec)

    def __enter__(self) -> Tracer:
        return self

    def __exit__(self, *raised: object) -> None:
        self._card.close()

    def trace(self, kernel: SavedKernel, use: Use) -> tuple[Program, Report, Events]:
        """The program of a use, what a launch costs, and every instruction of it.

        Raises:
            InvalidProgram: the program is of another version.
        """
        data = kernel.variants[use.variant].program
        program = decode(data)
        with self._loaded(data) as loaded:
            addresses = [self._card.memory_base] * program.arguments[0]
            scalars = [0.0] * program.arguments[2]
            block = self._filled(loaded, addresses, use.sizes, scalars)
            report, events = self._card.trace(loaded, block)
        return program, report, events

    def kept_report(self, kernel: SavedKernel, use: Use) -> Report:
        """What a launch costs that finds its weights in LX."""
        data = kernel.variants[use.variant].program
        counts = decode(data).arguments
        with self._loaded(data) as loaded:
            addresses, scalars = [self._card.memory_base] * counts[0], [0.0] * counts[2]
            block = self._filled(loaded, addresses, use.sizes, scalars)
            return self._card.time(loaded, block, kept=True)

    def _filled(
        self, loaded: LoadedProgram, addresses: Sequence[int], sizes: Sequence[int],
        scalars: Sequence[float],
    ) -> bytes:  # fmt: skip
        return self._card.fill(loaded, addresses, sizes, scalars, self._card.memory_base)

    @contextmanager
    def _loaded(self, data: bytes) -> Iterator[LoadedProgram]:
        self._card.write(self._card.memory_base, data)
        loaded = self._card.load(self._card.memory_base, len(data))
        try:
            yield loaded
        finally:
            self._card.unload(loaded)
