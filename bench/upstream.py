"""PyTorch's own tests on the card, counted by bucket, as the lane `upstream` last found them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measurement import Measurement, options, report

RESULT = Path(__file__).resolve().parents[1] / "results" / "upstream.json"
WRONG = ("failed", "crashed", "hung", "flaky", "xpass", "xfail-mismatch", "import-error")


def measurements(found: Mapping[str, Any]) -> list[Measurement]:
    """The share of what ran that did as it should, and the tests in each bucket and file."""
    buckets, files = found["buckets"], found["files"]
    wrong = sum(buckets.get(name, 0) for name in WRONG)
    right = 100 * (1 - wrong / max(found["executed"], 1))
    said = f"{wrong} of {found['executed']}, commit {found['commit'][:12]}"
    rows = [Measurement("upstream", "as it should", right, "%", None, f"all but {said}")]
    for name, count in buckets.items():
        parts = [f"{file} {n[name]}" for file, n in sorted(files.items()) if name in n]
        rows.append(Measurement("upstream", name, count, "tests", None, ", ".join(parts)))
    return rows


def main() -> None:
    chosen = options("PyTorch's own tests by bucket.").parse_args()
    if not RESULT.exists():
        raise SystemExit("bench upstream: there is no results/upstream.json: it is written by\n"
                         "  ./dev test --long upstream")  # fmt: skip
    report(measurements(json.loads(RESULT.read_text())), chosen)


if __name__ == "__main__":
    main()
