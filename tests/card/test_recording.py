"""Calls of the card that are written down can be repeated, and what differs is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.card.fuzzing import ROOT, build_card

SOURCE = ROOT / "csrc" / "recorded" / "calls.cpp"


def test_recorded_calls_are_repeated(tmp_path: Path) -> None:
    calls, program = tmp_path / "calls.bin", tmp_path / "calls"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.card.recording"]
    command += [
        "--record",
        str(calls),
        "tests/card/test_kept.py",
        "tests/card/test_execute_matmul.py",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    built = next(iter(sorted((ROOT / "build").glob("temp.*/card"))), ROOT / "build" / "card")
    build_card(program, built, (), SOURCE)
    right = subprocess.run([program, calls], capture_output=True, text=True, check=False)
    assert right.returncode == 0, right.stdout[-2000:]
    found = json.loads(right.stdout)
    assert found["run"] > 20
    assert found["time_kept"] > 0
    assert found["wrong"] == 0

    data = bytearray(calls.read_bytes())
    data[-33] ^= 1  # the last byte of memory behind the last run; four words of it follow
    calls.write_bytes(data)
    wrong = subprocess.run([program, calls], capture_output=True, text=True, check=False)
    assert wrong.returncode == 1
    assert wrong.stdout.count("WRONG") == 1
    assert "run: byte" in wrong.stdout
