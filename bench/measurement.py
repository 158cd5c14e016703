"""What every bench reports: rows of {bench, case, value, unit, target, ok, detail}.

Machines are noisy: two sides are measured alternately in one process, and the median of their
ratios pair by pair is quoted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number. `target` is the largest value that is good enough, None where there is none."""

    bench: str
    case: str
    value: float
    unit: str
    target: float | None = None
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.target is None or self.value <= self.target


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def paired(
    a: Callable[[], object], b: Callable[[], object], rounds: int
) -> tuple[float, float, float]:
    """Medians of a's and b's seconds and of the ratio a/b, over alternating rounds."""
    pairs = [(seconds(a), seconds(b)) for _ in range(rounds)]
    return (
        statistics.median(x for x, _ in pairs),
        statistics.median(y for _, y in pairs),
        statistics.median(x / y for x, y in pairs),
    )


def report(rows: Sequence[Measurement]) -> None:
    """Prints the rows as a table, or as JSON with --json."""
    parser = argparse.ArgumentParser(description="Prints measurements of this machine.")
    parser.add_argument("--json", action="store_true", help="print a list of JSON objects")
    if parser.parse_args().json:
        print(json.dumps([{**asdict(row), "ok": row.ok} for row in rows], indent=1))
        return
    table = Table("bench", "case", "value", "unit", "target", "detail")
    for row in rows:
        target = "" if row.target is None else f"{row.target:g} {'ok' if row.ok else 'MISSED'}"
        table.add_row(row.bench, row.case, f"{row.value:.4g}", row.unit, target, row.detail)
    Console().print(table)
