"""What a long lane leaves behind: `results/AREA.json`, with the commit that it measured."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


def write_result(area: str, found: Mapping[str, object], *, begun: str = "") -> Path:
    """Writes what a lane found, and where it ran.

    Args:
        begun: the commit when the lane began; a "+" tells that it is another one now.
    """
    path = ROOT / "results" / f"{area}.json"
    path.parent.mkdir(exist_ok=True)
    now = commit()
    measured = now if begun in ("", now) else begun.rstrip("+") + "+"
    where = {"area": area, "commit": measured, "cpus": len(os.sched_getaffinity(0))}
    path.write_text(json.dumps({**where, **found}, indent=1) + "\n")
    return path


def commit() -> str:
    """The commit of this checkout; "+" behind it where files differ from it."""
    head = _git("rev-parse", "HEAD")
    return head + (
        "+" if _git("status", "--porcelain", "--untracked-files=no", ".", ":!results") else ""
    )


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
