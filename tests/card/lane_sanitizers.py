"""Long lane: csrc/ under the address, undefined-behaviour and thread sanitizers.
`./dev test --long sanitizers` leaves `results/sanitizers.json`.

The card's own tests run with its library built for each. Of csrc/device, the parts that need no
more of torch than its types (queues, events, memory, slots, launches) are built into a program of
their own, which uses them from many threads: the sanitizers know nothing about a Python and a torch
that were not built for them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.card.fuzzing import ROOT, build_card
from tests.card.queues import build_queues, write_plus
from tests.lanes import BEGUN, followed
from tests.results import write_result

# By kind: the compiler's flags, its run time library (before Python's own), its options.
KINDS = {
    "address": (("-fsanitize=address",), "libasan.so", "ASAN_OPTIONS"),
    "undefined": (
        ("-fsanitize=undefined", "-fno-sanitize-recover=all"), "libubsan.so", "UBSAN_OPTIONS",
    ),
    "thread": (("-fsanitize=thread",), "libtsan.so", "TSAN_OPTIONS"),
}  # fmt: skip
# Python itself does not give everything back at its end.
OPTIONS = "detect_leaks=0:halt_on_error=1:print_stacktrace=1"
# The thread sanitizer is for what runs on threads; the rest takes hours under it.
THREADED = ["tests/card/test_execute_engine.py", "tests/card/test_debug_modes.py"]
# They start processes of their own, measure, or compile a program.
WITHOUT = "not forked and not fuzz and not mutant and not recorded"
# Cores of a corrupted program may write the same bytes of the card's memory in no order. That is
# its fault (the checker says so), and the thread sanitizer cannot tell it from one of the engine.
RACING = "not corrupted"
# Of the program of queues: threads, steps of each.
WALK = ("8", "2000")
_found: dict[str, dict[str, object]] = {}


@pytest.fixture(scope="module", autouse=True)
def results() -> Iterator[None]:
    yield
    whole = [one for one in _found.values() if {"passed", "queue_steps"} <= set(one)]
    if len(whole) == len(KINDS):
        write_result("sanitizers", _found, begun=BEGUN)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_the_cards_tests_pass(kind: str, tmp_path: Path) -> None:
    start = time.monotonic()
    _, library, options = KINDS[kind]
    card = built_card(kind)
    package = tmp_path / "src" / "openspyre"
    shutil.copytree(ROOT / "src" / "openspyre", package, ignore=shutil.ignore_patterns("*.so"))
    shutil.copy(card, package / "lib" / "libspyre_card.so")
    log = tmp_path / "report"  # pytest has taken the process's own output
    environment = {
        **os.environ,
        options: f"{os.environ.get(options, '')}:{OPTIONS}:log_path={log}".lstrip(":"),
        "LD_PRELOAD": f"{runtime(library)}:{runtime('libstdc++.so.6')}",
        "PYTHONPATH": f"{package.parent}{os.pathsep}{ROOT}",
        "OPENBLAS_NUM_THREADS": "1",
    }
    chosen = f"{WITHOUT} and {RACING}" if kind == "thread" else WITHOUT
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    paths = f"pythonpath={package.parent} {ROOT} {ROOT / 'bench'}"
    command += ["-o", paths, "-o", "timeout=3600", "-k", chosen]
    command += THREADED if kind == "thread" else ["tests/card"]
    done = followed(command, name=kind, env=environment)
    reports = "".join(path.read_text()[:4000] for path in tmp_path.glob("report.*"))
    assert not reports, reports
    assert done.returncode == 0, done.stdout[-8000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    _found[kind] = {"passed": int(passed[1]), "seconds": round(time.monotonic() - start)}


def built_card(kind: str) -> Path:
    folder = ROOT / "build" / f"sanitize-{kind}"
    card = folder / "libspyre_card.so"
    build_card(card, folder, ("-O1", "-g", "-Wno-error", *KINDS[kind][0]))
    return card


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_queues_and_memory_of_the_device(kind: str, tmp_path: Path) -> None:
    flags, _, options = KINDS[kind]
    card = built_card(kind)
    program = build_queues(card.parent / "queues", card, ("-O1", "-g", *flags))
    write_plus(tmp_path / "plus")
    leaks = "detect_leaks=1:halt_on_error=1:print_stacktrace=1"
    command = [program, tmp_path / "plus", *WALK]
    done = followed(command, name=f"queues, {kind}", env={**os.environ, options: leaks})
    assert done.returncode == 0, done.stdout[-8000:]
    assert done.stdout.endswith("ok\n"), done.stdout[-8000:]
    _found.setdefault(kind, {})["queue_steps"] = int(WALK[0]) * int(WALK[1])


def runtime(library: str) -> str:
    command = ["g++", f"-print-file-name={library}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if "/" not in found:
        pytest.fail(f"{library} is not installed; try: apt-get install gcc", pytrace=False)
    return found


def test_a_sanitizer_reports(tmp_path: Path) -> None:
    """The lane can fail: a library with a fault stops Python."""
    source = tmp_path / "fault.cpp"
    source.write_text(
        'extern "C" int fault(int n) { int a[2] = {0, 0}; return a[n] << 31 << n; }\n'
    )
    library = tmp_path / "fault.so"
    flags = ["-fsanitize=undefined", "-fno-sanitize-recover=all", "-shared", "-fPIC"]
    subprocess.run(["g++", *flags, source, "-o", library], check=True)
    code = f"import ctypes; ctypes.CDLL({json.dumps(str(library))}).fault(40)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "runtime error" in done.stderr
