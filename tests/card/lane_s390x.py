"""Long lane: the card compiled for s390x (big-endian) gives what it gives here.

`./dev test --long s390x` leaves `results/s390x.json`; it needs g++-s390x-linux-gnu and qemu-user.
Every load, run, time and check that the card's tests make here is recorded, with inputs and
results, and repeated there; memory, cycles and messages must be equal.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import pytest

from tests.card.fuzzing import ROOT, build_card
from tests.lanes import BEGUN, followed
from tests.results import write_result

COMPILER = "s390x-linux-gnu-g++"
EMULATORS = ("qemu-s390x-static", "qemu-s390x")
# They make calls without end, or of their own.
WITHOUT = "not fuzz and not mutant and not recorded"
PACKAGES = "apt-get install g++-s390x-linux-gnu qemu-user-static"


@pytest.mark.timeout(7200)
def test_a_big_endian_host_gives_the_same(tmp_path: Path) -> None:
    start = time.monotonic()
    runner = emulator()
    calls = tmp_path / "calls.bin"
    record(calls)
    folder = ROOT / "build" / "s390x"
    program = folder / "calls"
    source = ROOT / "csrc" / "recorded" / "calls.cpp"
    build_card(program, folder, ("-O2", "-static"), source, compiler=COMPILER)
    done = followed([runner, program, calls], name="repeating on s390x")
    assert done.returncode == 0, wrong(done.stdout)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["byte_order"] == "big"
    assert min(found[call] for call in ("load", "run", "time", "check")) > 50
    assert found["undefined"] < found["run"] / 20
    write_result("s390x", {**found, "seconds": round(time.monotonic() - start)}, begun=BEGUN)


def wrong(output: str) -> str:
    lines = [line for line in output.splitlines() if not line.startswith("undefined")]
    return "\n".join(lines[-40:])


def record(path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.card.recording"]
    command += ["--record", str(path), "-o", "timeout=1800", "-k", WITHOUT, "tests/card"]
    done = followed(command, name="recording")
    assert done.returncode == 0, done.stdout[-4000:]


def emulator() -> str:
    found = [name for name in EMULATORS if shutil.which(name)]
    missing = [] if found else [EMULATORS[0]]
    if shutil.which(COMPILER) is None:
        missing.append(COMPILER)
    if missing:
        pytest.fail(f"not installed: {', '.join(missing)}; try: {PACKAGES}", pytrace=False)
    return found[0]
