"""Decode, fill and time of the software card for hand-written programs."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from openspyre.card.native import Report, SoftwareCard
from openspyre.ir.program import Program
from openspyre.spec import SPYRE_CARD_V1, CardSpec

ROOT = Path(__file__).resolve().parents[2]


@cache
def card(spec: CardSpec = SPYRE_CARD_V1) -> SoftwareCard:
    """A small card of the sources as they are; it lives as long as the process."""
    script = runpy.run_path(str(ROOT / "csrc" / "card" / "build.py"))
    script["build"](script["DEVELOPMENT_OUTPUT"], ROOT / "build" / "card", 2)
    return SoftwareCard(memory=1 << 30, threads=1, spec=spec)


def accept(data: bytes) -> None:
    """Raises InvalidProgram where the card refuses the bytes."""
    one = card()
    one.unload(one.load(one.store(data), len(data)))


def filled(
    program: Program,
    addresses: Sequence[int] = (),
    sizes: Sequence[int] = (),
    scalars: Sequence[float] = (),
    pool: int = 0,
) -> list[int]:
    """The symbol block of a launch, as integers."""
    one = card()
    loaded = one.load_program(program)
    try:
        block = one.fill(loaded, addresses, sizes, scalars, pool)
    finally:
        one.unload(loaded)
    words = memoryview(block).cast("q").tolist()
    return words[: len(program.slots)]


def timed(
    program: Program,
    sizes: Sequence[int] = (),
    *,
    addresses: Sequence[int] | None = None,
    spec: CardSpec = SPYRE_CARD_V1,
) -> Report:
    """What a launch of the program costs; arguments lie at stick borders unless said otherwise."""
    one = card(spec)
    loaded = one.load_program(program)
    places = [0] * program.arguments[0] if addresses is None else addresses
    try:
        return one.time(loaded, one.fill(loaded, places, sizes, [0.0] * program.arguments[2]))
    finally:
        one.unload(loaded)
