"""Long lane: the card compiled for s390x (big-endian) gives what it gives here.

`./dev test --long s390x` leaves `results/s390x.json`; it needs g++-s390x-linux-gnu and qemu-user.
Every load, run, time and check that the card's tests make here is recorded, with inputs and
results, and repeated there; memory, cycles and messages must be equal.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.card.fuzzing import ROOT, build_card
from tests.results import write_result

COMPILER = "s390x-linux-gnu-g++"
EMULATORS = ("qemu-s390x-static", "qemu-s390x")
# They make calls without end, or of their own, or read elements as parts of others.
WITHOUT = "not fuzz and not mutant and not recorded and not corrupted"


@pytest.mark.timeout(7200)
def test_a_big_endian_host_gives_the_same(tmp_path: Path) -> None:
    calls = tmp_path / "calls.bin"
    record(calls)
    folder = ROOT / "build" / "s390x"
    program = folder / "calls"
    source = ROOT / "csrc" / "recorded" / "calls.cpp"
    build_card(program, folder, ("-O2", "-static"), source, compiler=COMPILER)
    done = subprocess.run([emulator(), program, calls], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["byte_order"] == "big"
    assert min(found[call] for call in ("load", "run", "time", "check")) > 50
    write_result("s390x", found)


def record(path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.card.recording"]
    command += ["--record", str(path), "-o", "timeout=1800", "-k", WITHOUT, "tests/card"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


def emulator() -> str:
    for name in EMULATORS:
        if shutil.which(name):
            return name
    pytest.fail("there is no s390x emulator: apt-get install qemu-user-static")
