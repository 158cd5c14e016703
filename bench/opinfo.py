"""PyTorch's own list of ops (OpInfo) on the card: right there, through the CPU, wrong or raised.

Writes what became of every op, variant and dtype to results/capability.json; rows of pairs that
were not asked for stay.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from measurement import Measurement, options, report
from rich.console import Console
from rich.progress import Progress

from openspyre.ci.capability import Row, State, merged, read_rows, share, write_rows
from openspyre.ci.op_samples import DTYPES, OP_DB, VARIANTS, entries, pairs_of
from openspyre.ci.op_survey import Pair, Plan, surveyed

ROOT = Path(__file__).resolve().parents[1]
WRITE_EVERY = 20  # ops


def parsed() -> argparse.Namespace:
    parser = options("What works of PyTorch's own list of ops.")
    parser.add_argument("--ops", default="", metavar="REGEX", help="only ops whose name matches")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="with commas between")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="with commas between")
    parser.add_argument("--samples", type=int, default=4, help="of each pair, at most")
    parser.add_argument(
        "--shard", default="1/1", metavar="I/N", help="every N-th op, from the I-th"
    )
    parser.add_argument("--seconds", type=float, default=120, help="that a pair may take")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--resume", action="store_true", help="only what this commit lacks")
    parser.add_argument("--list", action="store_true", help="print the pairs that are not right")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "capability.json")
    return parser.parse_args()


def commit() -> str:
    """The commit of this checkout; "+" behind it where files differ from it."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(ROOT), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "csrc")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")


def jobs_of(chosen: argparse.Namespace, known: Iterable[Row]) -> list[tuple[str, list[Pair]]]:
    """The ops to try, and the pairs of each."""
    part, parts = map(int, chosen.shard.split("/"))
    variants, dtypes = chosen.variants.split(","), chosen.dtypes.split(",")
    done = {row.key for row in known}
    names = [(n, i) for n, i in entries(OP_DB).items() if re.search(chosen.ops, n)]
    jobs = []
    for name, info in names[part - 1 :: parts]:
        pairs = [p for p in pairs_of(info, dtypes) if p[0] in variants and (name, *p) not in done]
        if pairs:
            jobs.append((name, pairs))
    return jobs


def run(chosen: argparse.Namespace) -> list[Row]:
    """Tries what was chosen, keeps the file up to date, and gives the rows of this run."""
    now = commit()
    old = read_rows(chosen.output)
    known = [row for row in old if row.commit == now] if chosen.resume else []
    jobs = jobs_of(chosen, known)
    plan = Plan(OP_DB, chosen.samples, chosen.seconds, now, max(chosen.workers, 1))
    found: list[Row] = []
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("ops", total=len(jobs))
        for number, rows in enumerate(surveyed(plan, jobs), start=1):
            found += rows
            progress.update(task, advance=1, description=rows[0].op[:40])
            if number % WRITE_EVERY == 0:
                write_rows(chosen.output, merged(old, found), torch.__version__)
    write_rows(chosen.output, merged(old, found), torch.__version__)
    return found


def measurements(rows: Sequence[Row]) -> list[Measurement]:
    """The shares that have targets, and the counts by variant and dtype."""
    wrong, pairs = share(rows, State.WRONG)
    raised, _ = share(rows, State.RAISED)
    floats = [row for row in rows if row.dtype in ("float16", "float32")]
    card, of = share(floats, State.CARD)
    found = [
        Measurement("opinfo", "wrong", wrong, "pairs", 0, f"of {pairs} (op, variant, dtype)"),
        Measurement("opinfo", "raised", 100 * raised / max(pairs, 1), "%", 2, f"{raised} pairs"),
        Measurement(
            "opinfo", "float16 and float32 on the card", 100 * card / max(of, 1), "%", 75,
            f"{card} of {of} pairs", least=True,
        ),
    ]  # fmt: skip
    for kind, names in (("variant", VARIANTS), ("dtype", DTYPES)):
        for name in names:
            part = [row for row in rows if getattr(row, kind) == name]
            if part:
                card, of = share(part, State.CARD)
                counts = Counter(row.state.value for row in part)
                detail = ", ".join(f"{counts[s.value]} {s.value}" for s in State if counts[s.value])
                value = 100 * card / max(of, 1)
                found.append(Measurement("opinfo", f"{name} on the card", value, "%", None, detail))
    return found


def main() -> None:
    chosen = parsed()
    rows = run(chosen)
    if chosen.list:
        for row in merged([], rows):
            if row.state not in (State.CARD, State.UNTRIED):
                print(f"{row.state.value:8} {row.op} {row.variant} {row.dtype}: {row.reason}")
    report(measurements(rows), chosen)


if __name__ == "__main__":
    main()
