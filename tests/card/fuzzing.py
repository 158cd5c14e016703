"""Builds the fuzzer of `csrc/fuzz` and its seeds: real programs for a small card."""

from __future__ import annotations

import random
import runpy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from openspyre.compiler.emit import emit
from openspyre.compiler.residency import place
from openspyre.errors import BrokenInvariant
from openspyre.ir.binary import HEADER_WORDS, encode
from openspyre.ir.program import Program
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.card.hand_programs import (
    copies,
    exchange,
    kept_and_ahead,
    kept_copies,
    loads_ahead,
    matmul,
    pointwise,
)
from tests.planned_kernels import ALL, replanned

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "csrc" / "fuzz" / "programs.cpp"
CORPUS = ROOT / "tests" / "data" / "fuzz.zip"
SMALL = replace(SPYRE_CARD_V1, cores=8, lx_bytes=1 << 16, lx_usable=3 << 14)
COMPILER = "clang++-14"  # of the fuzzer
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def build_card(
    output: Path,
    folder: Path,
    flags: Sequence[str] = (),
    program: Path | None = None,
    link_flags: Sequence[str] = (),
    compiler: str = "g++",
) -> None:
    """A variant of the card's library, or of a program with it: `csrc/card/build.py`."""
    build = runpy.run_path(str(ROOT / "csrc" / "card" / "build.py"))["build"]
    with patch.dict("os.environ", CXX=compiler):
        build(output, folder, 2, flags, program, link_flags)


def build_fuzzer(folder: Path, compiler: str = COMPILER) -> Path:
    """The fuzzer, with sanitizers."""
    write_numbers(folder)
    flags = (*SANITIZED, "-fsanitize=fuzzer-no-link", "-Wno-error", f"-I{folder}")
    program = folder / "fuzz"
    build_card(program, folder, flags, SOURCE, ("-fsanitize=fuzzer",), compiler)
    return program


def build_replay(folder: Path, built: Path) -> Path:
    """The program that runs inputs from files, with the objects of a built library."""
    write_numbers(folder)
    program = folder / "replay"
    build_card(program, built, ("-DSPYRE_REPLAY", f"-I{folder}"), SOURCE)
    return program


def write_numbers(folder: Path) -> None:
    """The small card's numbers as rows of a C++ table."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = (f'{{"{name}", {float(value)!r}}},\n' for name, value in SMALL.numbers().items())
    path, text = folder / "spec.inc", "".join(rows)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def seeds() -> Iterator[tuple[str, bytes]]:
    """Inputs of the fuzzer by name."""
    choice = random.Random(0)
    for number, program in enumerate(programs()):
        sizes = bytes(choice.choice((0, 1, 5, 16, 33, 64)) for _ in range(8))
        modes = bytes([1, number % 4 + 4, 0, 0])
        yield f"{number:03}", modes + sizes + bytes(4) + encode(program)[8 * HEADER_WORDS :]


def programs() -> Iterator[Program]:
    """Small programs of every kind."""
    yield copies(64, 64, 4)
    yield pointwise(32, 64, 2, ["exp", "mul", "floor"])
    yield matmul(16, 64, 64, (1, 2), (16, 32, 64))
    yield exchange(16, 64, 4)
    yield exchange(9, 33, 8)
    yield kept_copies(16, 64, 4)
    yield kept_and_ahead(16, 64, 2, 4)
    yield loads_ahead(16, 64, 2, 4)
    yield loads_ahead(9, 33, 8, 3)
    for text in ALL.values():
        kernel = parse_kernel("kernel k\n" + text)
        for plan in (kernel, replanned(kernel, 1)):
            try:
                yield emit(plan if plan.residency else place(plan, SMALL), SMALL)
            except BrokenInvariant:  # does not fit into the small card
                continue


def write_seeds(folder: Path) -> int:
    """Writes the seeds as files; how many."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for name, data in seeds():
        (folder / name).write_bytes(data)
        count += 1
    return count
