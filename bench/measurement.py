"""What every bench reports: rows of {bench, case, value, unit, target, ok, detail}.

Machines are noisy: two sides are measured in turns in one process, and the median of their ratios
pair by pair is quoted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number. `target` is the largest value that is good enough, None where there is none.

    With `least` the target is the smallest value that is good enough.
    """

    bench: str
    case: str
    value: float
    unit: str
    target: float | None = None
    detail: str = ""
    least: bool = False

    @property
    def ok(self) -> bool:
        if self.target is None:
            return True
        return self.value >= self.target if self.least else self.value <= self.target


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# Idle threads of a pool spin before they sleep, and hold a CPU that the other side's threads need:
# libgomp's for milliseconds after every call of CPU Inductor, longer than many a call. Calls by
# turns would time that. So a side begins when all threads sleep, and wakes its own first.
REST = 0.03  # seconds
WARM = 0.02  # seconds of measured calls, at least one


def paired(
    a: Callable[[], object], b: Callable[[], object], rounds: int
) -> tuple[float, float, float]:
    """Medians of a's and b's seconds and of the ratio a/b, over alternating rounds."""
    pairs = [(burst(a), burst(b)) for _ in range(rounds)]
    return (
        statistics.median(x for x, _ in pairs),
        statistics.median(y for _, y in pairs),
        statistics.median(x / y for x, y in pairs),
    )


def burst(call: Callable[[], object]) -> float:
    """Median wall time of a few calls in a row, after a rest and a call that does not count."""
    time.sleep(REST)
    call()
    times = [seconds(call)]
    while sum(times) < WARM:
        times.append(seconds(call))
    return statistics.median(times)


def options(description: str = "Prints measurements of this machine.") -> argparse.ArgumentParser:
    """The options that every bench has; a bench may add its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print a list of JSON objects")
    return parser


def report(rows: Sequence[Measurement], chosen: argparse.Namespace | None = None) -> None:
    """Prints the rows as a table, or as JSON with --json (parsed here unless `chosen` is given)."""
    if (chosen or options().parse_args()).json:
        print(json.dumps([{**asdict(row), "ok": row.ok} for row in rows], indent=1))
        return
    table = Table("bench", "case", "value", "unit", "target", "detail")
    for row in rows:
        target = "" if row.target is None else f"{row.target:g} {'ok' if row.ok else 'MISSED'}"
        case, detail = escape(row.case), escape(row.detail)
        table.add_row(row.bench, case, f"{row.value:.4g}", row.unit, target, detail)
    Console().print(table)
