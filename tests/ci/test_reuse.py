"""PyTorch-style tests run as rules ask, on a second device; every one ends in one bucket."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from openspyre.ci.capability import Row, State
from openspyre.ci.reuse.capability_table import derived, write_capability
from openspyre.ci.reuse.ledger import (
    EXECUTED,
    Bucket,
    Ledger,
    Outcome,
    outcome,
    read_ledger,
)
from tests.ci.planted_tests import RULES, write_tests

CI = Path(__file__).parent
BOTH = ("--workers", 2)


def rows() -> list[Row]:
    """What the second device can do: `exp` is wrong, and `add` is so in float64."""
    right = ("float16", "float32", "float64", "int64")
    ops = {
        "add": ("float16", "int64"), "mul": right, "div": right, "div.no_rounding_mode": right,
    }  # fmt: skip
    found = [Row(op, "function", d, State.CARD, "") for op, ds in ops.items() for d in ds]
    return [*found, Row("exp", "function", "float32", State.WRONG, "elements differ")]


def spyre_ci(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(CI), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "openspyre.ci.cli", *map(str, words)],
        cwd=cwd, env={**os.environ, "PYTHONPATH": path}, text=True, capture_output=True,
        check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reuse")
    write_tests(folder / "up")
    table = derived(rows(), "2.13.0")
    write_capability(folder / "capability.json", table)
    soon = datetime.date.today() + datetime.timedelta(days=30)
    text = RULES.replace("DIGEST", table.digest).replace("DATES", f"{{expires: {soon}}}")
    (folder / "rules.yaml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def ran(place: Path) -> subprocess.CompletedProcess[str]:
    return spyre_ci(
        "run", "rules.yaml", "--tests", "up", "--work", "work", "--json", *BOTH, cwd=place
    )


@pytest.fixture(scope="module")
def ledger(place: Path, ran: subprocess.CompletedProcess[str]) -> Ledger:
    assert ran.returncode == Outcome.RED.value, ran.stderr + ran.stdout
    return read_ledger(place / "work" / "ledger.jsonl")


EXPECTED = {
    "test_outcomes.py::TestOutcomes::test_passes": "passed",
    "test_outcomes.py::TestOutcomes::test_fails": "failed",
    "test_outcomes.py::TestOutcomes::test_aborts": "crashed",
    "test_outcomes.py::TestOutcomes::test_exits": "crashed",
    "test_outcomes.py::TestOutcomes::test_loops": "hung",
    "test_outcomes.py::TestOutcomes::test_flaky": "flaky",
    "test_outcomes.py::TestOutcomes::test_passes_unexpectedly": "xpass",
    "test_outcomes.py::TestOutcomes::test_fails_as_expected": "xfailed",
    "test_outcomes.py::TestOutcomes::test_fails_for_another_reason": "xfail-mismatch",
    "test_outcomes.py::TestOutcomes::test_skips_under_xfail": "xfail-mismatch",
    "test_outcomes.py::TestOutcomes::test_skips_in_its_body": "skipped-upstream",
    "test_outcomes.py::TestOutcomes::test_fails_in_a_part": "failed",
    "test_outcomes.py::TestOutcomes::test_left_out": "excluded-rule",
    "test_outcomes.py::TestOutcomes::test_in_quarantine": "quarantined",
    "test_outcomes.py::TestOutcomes::test_only_cuda": "skipped-upstream",
    "test_outcomes.py::TestOutcomes::test_only_cuda_too": "skipped-upstream",
    "test_outcomes.py::TestOutcomes::test_generated[dtype=float32,k=1]": "passed",
    "test_outcomes.py::TestOutcomes::test_generated[dtype=float32,k=2]": "passed",
    "test_outcomes.py::TestOutcomes::test_generated[dtype=float64,k=1]": "passed",
    "test_outcomes.py::TestOutcomes::test_generated[dtype=float64,k=2]": "xfailed",
    "test_outcomes.py::TestOutcomes::test_close": "passed",
    "test_outcomes.py::TestSameNames::test_fails": "passed",
    "test_outcomes.py::TestBadSetUp::test_never": "failed",
    "test_outcomes.py::TestBypassed::test_only_cuda": "passed",
    "test_outcomes.py::TestForCuda::test_passes": "excluded-guard",
    "test_outcomes.py::TestPlain::test_passes": "excluded-scope",
    # the same names in a file of the same name, whose class for another device is asked for
    "deep/test_outcomes.py::TestForCuda::test_passes": "passed",
    "test_small_ops.py::TestOps::test_right[dtype=float16,op=add]": "passed",
    "test_small_ops.py::TestOps::test_right[dtype=float32,op=add]": "excluded-dtype",
    "test_small_ops.py::TestOps::test_right[dtype=int64,op=add]": "passed",
    "test_small_ops.py::TestOps::test_right[dtype=float16,op=div]": "passed",
    "test_small_ops.py::TestOps::test_right[dtype=float32,op=div]": "passed",
    "test_small_ops.py::TestOps::test_right[dtype=int64,op=div]": "passed",
    "test_small_ops.py::TestOps::test_right[dtype=float16,op=mul]": "xfailed",
    "test_small_ops.py::TestOps::test_right[dtype=float32,op=mul]": "passed",
    "test_small_ops.py::TestOps::test_right[dtype=int64,op=mul]": "passed",
    "test_small_ops.py::TestOps::test_right[dtype=float16,op=exp]": "excluded-op",
    "test_small_ops.py::TestOps::test_right[dtype=float32,op=exp]": "excluded-op",
    "test_small_ops.py::TestOps::test_right[dtype=int64,op=exp]": "excluded-op",
    "test_small_ops.py::TestOps::test_only_exp[dtype=float32,op=exp]": "excluded-op",
    # any one dtype: float32 with all hooks off, which is none of add's on this device
    "test_small_ops.py::TestOps::test_any_one[dtype=float32,op=add]": "excluded-dtype",
    "test_small_ops.py::TestOps::test_any_one[dtype=float16,op=add]": "passed",
    "test_small_ops.py::TestOps::test_any_one[dtype=float32,op=div]": "passed",
    "test_small_ops.py::TestOps::test_explicit[dtype=float32,op=add]": "excluded-dtype",
    "test_small_ops.py::TestOps::test_explicit[dtype=float64,op=add]": "excluded-dtype",
    "test_small_ops.py::TestOps::test_none[op=add]": "passed",
    "test_small_ops.py::TestOps::test_none[op=div]": "passed",
    "test_empty.py::*": "import-error",
    "test_syntax.py::*": "import-error",
    "test_dies.py::*": "import-error",
} | {
    f"test_small_ops.py::TestOps::test_right[dtype={dtype},op=div.no_rounding_mode]": rule
    for dtype, rule in dict.fromkeys(("float16", "float32", "int64"), "excluded-rule").items()
}


def test_every_test_ends_in_its_bucket(ledger: Ledger) -> None:
    assert {entry.id: entry.bucket.value for entry in ledger.entries} == EXPECTED
    assert sum(ledger.counts().values()) == len(EXPECTED)


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("TestOutcomes::test_aborts", "SIGABRT"),
        ("TestOutcomes::test_exits", "the process ended with 0"),
        ("TestOutcomes::test_loops", "did not end within 3 s"),
        ("TestOutcomes::test_flaky", "failed (AssertionError: the first time), then passed alone"),
        ("TestOutcomes::test_fails_for_another_reason", "RuntimeError: out of cheese"),
        ("TestOutcomes::test_skips_under_xfail", "it skips (not today)"),
        ("TestOutcomes::test_only_cuda", "Only runs on"),
        ("TestOutcomes::test_fails", "twice: AssertionError: Tensor-likes are not close!"),
        ("TestBadSetUp::test_never", "RuntimeError: no set-up"),
        ("TestForCuda::test_passes", "generates TestForCuda for other devices"),
    ],
)
def test_the_ledger_says_why(ledger: Ledger, test: str, reason: str) -> None:
    (entry,) = [e for e in ledger.entries if e.id == f"test_outcomes.py::{test}"]
    assert reason in entry.reason


def test_a_hang_shows_where(ledger: Ledger) -> None:
    (entry,) = [e for e in ledger.entries if e.bucket is Bucket.HUNG]
    assert "in test_loops" in entry.trace


def test_what_is_only_observed_is_not_red(ledger: Ledger) -> None:
    assert {entry.id.rpartition("::")[2] for entry in ledger.red()} == {
        "test_fails", "test_flaky", "test_passes_unexpectedly", "test_skips_under_xfail",
        "test_fails_for_another_reason", "*",
    }  # fmt: skip


@pytest.mark.parametrize("bucket", sorted({*EXPECTED.values()}))
def test_a_dropped_entry_is_noticed(ledger: Ledger, bucket: str) -> None:
    """Exit code 3 follows whichever one assignment is missing, doubled or invented."""
    universe = set(EXPECTED)
    assert ledger.problems(universe) == []
    victim = next(entry for entry in ledger.entries if entry.bucket.value == bucket)
    nameless = replace(victim, rule="")
    without = Ledger(tuple(entry for entry in ledger.entries if entry is not victim))
    twice = Ledger((*ledger.entries, victim))
    other = Ledger((*without.entries, replace(victim, id=f"{victim.id}x")))
    for wrong in (without, twice, other):
        problems = wrong.problems(universe)
        assert victim.id in problems[0]
        assert outcome(wrong, problems) is Outcome.ACCOUNTING
    ran = bucket in ("skipped-upstream", *(b.value for b in EXECUTED))
    problems = Ledger((*without.entries, nameless)).problems(universe)
    assert (problems == []) is ran


def test_outputs(place: Path, ran: subprocess.CompletedProcess[str], ledger: Ledger) -> None:
    said = json.loads(ran.stdout)
    assert said["buckets"] == ledger.counts()
    assert (said["outcome"], said["total"], said["unbucketed"]) == ("red", len(EXPECTED), 0)
    cases = ElementTree.parse(place / "work" / "junit.xml").getroot().findall(".//testcase")
    assert len(cases) == len(EXPECTED)
    assert sum(case.find("failure") is not None for case in cases) == len(ledger.red())
    page = (place / "work" / "report.html").read_text()
    assert "out of cheese" in page
    assert "excluded-guard" in page


def test_the_canary_runs_what_is_in_quarantine(place: Path) -> None:
    found = spyre_ci(
        "canary", "rules.yaml", "--tests", "up", "--file", "test_outcomes.py", "--json", cwd=place
    )
    assert json.loads(found.stdout) == {
        "run": 1, "passed": ["test_outcomes.py::TestOutcomes::test_in_quarantine"], "lift": ["Q-1"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ids", "code", "said"),
    [
        ("\n", Outcome.NOTHING_RAN, "nothing ran: 0 tests"),
        ("test_nothing.py::A::b\n", Outcome.CONFIG, "--ids names 1 tests that there are not"),
    ],
)
def test_nothing_run_is_not_green(place: Path, ids: str, code: Outcome, said: str) -> None:
    (place / "ids").write_text(ids)
    shared = ("--tests", "up", "--work", "none", "--ids", "ids")
    found = spyre_ci("run", "rules.yaml", *shared, "--file", "test_nothing.py", cwd=place)
    assert found.returncode == code.value
    assert said in found.stdout + found.stderr


def test_a_run_goes_on_where_it_was(place: Path, ledger: Ledger) -> None:
    """Nothing is run again, and the ledger says the same."""
    journal = place / "work" / "journal" / "test_small_ops.jsonl"
    before, file = journal.read_text(), "test_small_ops.py"
    spyre_ci(
        "run", "rules.yaml", "--tests", "up", "--work", "work", "--resume", "--file", file,
        cwd=place,
    )  # fmt: skip
    again = read_ledger(place / "work" / "ledger.jsonl")
    assert again.entries == tuple(entry for entry in ledger.entries if entry.file == file)
    assert sorted(journal.read_text().splitlines()) == sorted(before.splitlines())
