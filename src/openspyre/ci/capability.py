"""capability.json: what became of every op of PyTorch's test list, by variant and dtype."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from openspyre.errors import SpyreError
from openspyre.runtime.whole_file import write_whole

_FIELDS = ("op", "variant", "state", "reason", "commit")


class State(Enum):
    """The worst that happened among the samples of a pair, worst last."""

    UNTRIED = "untried"  # the CPU can run none of the samples
    CARD = "card"
    FALLBACK = "fallback"  # right, through a counted call of the CPU
    RAISED = "raised"
    WRONG = "wrong"

    def worse(self, other: State) -> bool:
        order = list(State)
        return order.index(self) > order.index(other)


@dataclass(frozen=True, slots=True)
class Row:
    """One pair: an op's variant (function, inplace, out, gradient, compiled) in a dtype.

    Attributes:
        op: the full name of the OpInfo.
        reason: why the state is not CARD.
    """

    op: str
    variant: str
    dtype: str
    state: State
    reason: str
    commit: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.op, self.variant, self.dtype


def read_rows(path: Path) -> list[Row]:
    """The rows of a file; none where there is no file.

    Raises:
        SpyreError: it is not one of ours.
    """
    if not path.exists():
        return []
    try:
        lines = json.loads(path.read_text())["rows"]
        return [
            Row(op, variant, dtype, State(state), reason, commit)
            for line in lines
            for op, variant, state, reason, commit in [[line[field] for field in _FIELDS]]
            for dtype in line["dtypes"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SpyreError(
            f"{path} is no table of what works", why=repr(error), hint="remove it, and run again"
        ) from error


def merged(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """All rows in order; a new one replaces an old one of the same pair."""
    rows = {row.key: row for row in (*old, *new)}
    return [rows[key] for key in sorted(rows)]


def write_rows(path: Path, rows: Sequence[Row], torch_version: str) -> None:
    """Writes one line for all dtypes of an op's variant that share everything else."""
    groups: dict[Row, list[str]] = {}
    for row in rows:
        groups.setdefault(replace(row, dtype=""), []).append(row.dtype)
    lines = [
        json.dumps({
            "op": r.op, "variant": r.variant, "dtypes": dtypes, "state": r.state.value,
            "reason": r.reason, "commit": r.commit,
        })
        for r, dtypes in groups.items()
    ]  # fmt: skip
    head = f'{{"version": 1, "torch": {json.dumps(torch_version)}, "rows": [\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (head + ",\n".join(lines) + "\n]}\n").encode())


def share(rows: Iterable[Row], *states: State) -> tuple[int, int]:
    """How many of the pairs are in these states, and how many were tried at all."""
    counts = Counter(row.state for row in rows)
    del counts[State.UNTRIED]
    return sum(counts[state] for state in states), sum(counts.values())
