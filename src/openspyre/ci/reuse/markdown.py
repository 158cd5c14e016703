"""What became of PyTorch's own tests, as a page: what passes, what does not, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openspyre.ci.reuse.ledger import BAD, Bucket, Ledger
from openspyre.ci.reuse.outputs import by_file, reasons

_IDLE = (Bucket.PASSED, Bucket.NOT_SELECTED, *BAD)
_REASON = 110  # characters of a reason in a table
_DTYPES = (Bucket.EXCLUDED_OP, Bucket.EXCLUDED_DTYPE)


def result_of(ledger: Ledger, source: str, torch: str, device: str) -> dict[str, Any]:
    """What is kept of a run: counts, everything that went wrong, and why tests did not run."""
    idle = [e for e in ledger.entries if e.bucket not in _IDLE]
    return {
        "source": source,
        "torch": torch,
        "device": device,
        "total": len(ledger.entries),
        "executed": ledger.executed(),
        "buckets": {name: n for name, n in ledger.counts().items() if n},
        "files": {file: dict(sorted(counts.items())) for file, counts in by_file(ledger).items()},
        "bad": [
            {"id": e.id, "bucket": e.bucket.value, "verdict": e.verdict.value, "reason": e.reason}
            for e in ledger.entries
            if e.bucket in BAD or e.bucket is Bucket.IMPORT_ERROR
        ],
        "reasons": [
            {"bucket": bucket, "because_of": rule, "reason": reason, "tests": n}
            for bucket, rule, reason, n in reasons(idle)
            if bucket not in {b.value for b in _DTYPES}
        ],
    }


def page_of(found: Mapping[str, Any]) -> str:
    """The page for a result."""
    buckets = list(found["buckets"])
    rows = [
        [f"`{file}`", *[str(counts.get(b, "")) for b in buckets]]
        for file, counts in sorted(found["files"].items())
    ]
    rows.append(["all", *[str(n) for n in found["buckets"].values()]])
    bad = [[b["bucket"], f"`{_id(b['id'])}`", _short(b["reason"])] for b in found["bad"]]
    idle = [
        [r["bucket"], r["because_of"], _short(r["reason"]), str(r["tests"])]
        for r in found["reasons"]
    ]
    return "\n".join([
        f"# PyTorch's own tests on {found['device']}",
        "",
        "Written by `./dev test --long upstream` from `results/upstream.json`; not by hand.",
        "",
        f"The test files of {found['source']} on torch {found['torch']} (its own are in no wheel),"
        f" commit {found['commit'][:12]}.",
        f"Of {found['total']} tests {found['executed']} were run"
        f" ({_part(found)}), {len(found['bad'])} did not do as they should.",
        "A test is `excluded-op` or `excluded-dtype` where `results/capability.json` has no right"
        " result for its op and dtype;",
        "`not-selected` ones are in other parts of the lane. Every test is in exactly one bucket"
        " (`docs/decisions/0039.md`).",
        "",
        *_table(["file", *buckets], rows),
        "",
        "## What fails",
        "",
        *(_table(["bucket", "test", "why"], bad) if bad else ["Nothing."]),
        "",
        "## What is expected, skipped or left out",
        "",
        *(_table(["bucket", "because of", "why", "tests"], idle) if idle else ["Nothing."]),
        "",
    ])  # fmt: skip


def _part(found: Mapping[str, Any]) -> str:
    shards = ", ".join(f"{file} {part}" for file, part in sorted(found["parts"].items()))
    return f"a part of: {shards}" if shards else "all that can"


def _id(text: str) -> str:
    return text.replace("|", "\\|")


def _short(text: str) -> str:
    text = " ".join(text.split())
    short = text if len(text) <= _REASON else text[: _REASON - 3] + "..."
    return short.replace("|", "\\|").replace("<", "&lt;")


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *["| " + " | ".join(row) + " |" for row in rows],
    ]
