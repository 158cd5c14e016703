"""A slice in the style of PyTorch's suites on the card, run as its own files are: all is right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.timeout(900)  # processes of its own, which import PyTorch's list of ops
def test_the_slice_is_green(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "openspyre.ci.cli", "run", HERE / "slice" / "rules.yaml",
            "--tests", HERE / "slice", "--work", tmp_path, "--json",
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + _red(tmp_path)
    said = json.loads(done.stdout)
    assert (said["red"], said["unbucketed"], said["executed"] > 150) == (0, 0, True)
    assert sum(said["buckets"].values()) == said["total"]


def _red(folder: Path) -> str:
    ledger = folder / "ledger.jsonl"
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    found = [json.loads(line) for line in lines]
    return "\n".join(str(e) for e in found if e["bucket"] not in ("passed", "excluded-dtype"))
