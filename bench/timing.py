"""Simulated card cycles per host second when only the clock runs, without values."""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from measurement import Measurement, report
from split_matmul import Split, split_matmul

from openspyre.card.native import Report, SoftwareCard
from openspyre.compiler.pipeline import compile_kernel
from openspyre.ir.program import Program
from openspyre.spec import SPYRE_CARD_V1

ROUNDS = 5
SYMBOLS = (4, 128, 64, 32)


def minilm() -> Program:
    """All of MiniLM-L6 (4 x 128 tokens), as captured for the tests."""
    sys.path.insert(0, str(Path(__file__).parents[1]))  # recorded kernels lie with the tests
    from tests.regions import load_region

    kernel = load_region("minilm_captured")
    sizes = SYMBOLS[: len(kernel.symbols)]
    limits = dict(zip(kernel.symbols, ((n, n) for n in sizes), strict=True))
    return compile_kernel(replace(kernel, limits=limits), SPYRE_CARD_V1)


def timed(card: SoftwareCard, program: Program) -> tuple[float, Report]:
    """Host seconds (median) of timing a program, and what the clock says.

    The calling thread does all of it, so its own time counts: others on the host do not.
    """
    loaded = card.load_program(program)
    addresses, sizes, scalars = program.arguments
    block = card.fill(loaded, [0] * addresses, SYMBOLS[:sizes], [0.0] * scalars)
    found = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        result = card.time(loaded, block)
        found.append(time.thread_time() - start)
    card.unload(loaded)
    return statistics.median(found), result


def main() -> None:
    with SoftwareCard(memory=1 << 30, threads=1) as card:
        rows = []
        big, small = Split(1, 512, 12800, 4096, 1, 4, 8, 1), Split(1, 512, 4096, 1024, 1, 4, 8, 1)
        for case, program, target in (
            ("minilm", minilm(), 3.5e6),
            ("matmul 512x4096x12800", split_matmul(big), 1e7),
        ):
            seconds, result = timed(card, program)
            detail = f"{result.instructions} instructions in {seconds * 1e3:.1f} ms"
            rate = result.cycles / seconds
            rows.append(Measurement("timing", case, rate, "cycles/s", target, detail, least=True))
        per_instruction = [
            seconds / result.instructions
            for seconds, result in (timed(card, split_matmul(s)) for s in (big, small))
        ]
        ratio = per_instruction[0] / per_instruction[1]
        detail = "host time per instruction, a matmul of 12 times the instructions : a small one"
        rows.append(Measurement("timing", "linear in instructions", ratio, "ratio", 1.5, detail))
    report(rows)


if __name__ == "__main__":
    main()
