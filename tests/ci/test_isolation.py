"""Tests that do what they should not: each costs itself, whatever it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from openspyre.ci.native.identity import plain_text, value_text
from openspyre.ci.reuse.isolation import Ended, HookedFile, Place, run
from openspyre.ci.reuse.ledger import Bucket, Entry, ledger_of, outcome, read_ledger, write_ledger
from openspyre.ci.reuse.outputs import page, terminal, write_junit
from openspyre.ci.reuse.schema import Verdict

HOSTILE = """
import os
import time
from unittest import TestCase


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError


class TestHostile(TestCase):
    def test_a_forks_and_aborts(self):
        if os.fork() == 0:
            time.sleep(600)
        os.abort()

    def test_a_then_closes_all_pipes(self):
        os.closerange(3, 64)
        time.sleep(600)

    def test_b_leaves_a_child(self):
        if os.fork() == 0:
            os.setsid()
            open("child", "w").write(str(os.getpid()))
            time.sleep(600)
        while not os.path.exists("child"):
            time.sleep(0.01)

    def test_c_comes_back_twice(self):
        os.fork()

    def test_d_half_a_character(self):
        self.fail("half \\ud800 of it")

    def test_e_skips_for_half_a_character(self):
        self.skipTest("half \\ud800 of it")

    def test_f_cannot_be_shown(self):
        raise Unspeakable

    def test_g_writes_to_all_pipes(self):
        other = b"deep/test_hostile.py::TestHostile::test_d_half_a_character"
        forged = b'{"event": "end", "id": "' + other + b'", "outcome":'
        for descriptor in range(3, 20):
            try:
                os.write(descriptor, b'no event\\n[1]\\n' + forged + b' "passed"}\\n')
            except OSError:
                pass
"""
FILE = "deep/test_hostile.py"


def place_in(folder: Path) -> Place:
    """A process that has no device: a worker needs none to run what is not generated."""
    return Place(folder / "up", folder / "work", "privateuseone", "json", timeout_s=60.0)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ended]]:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "up" / "deep").mkdir(parents=True)
    (folder / "up" / FILE).write_text(HOSTILE)
    names = [
        line.split("def ")[1].split("(")[0] for line in HOSTILE.splitlines() if "def test" in line
    ]
    ids = [f"{FILE}::TestHostile::{name}" for name in names]
    hooked = HookedFile(FILE, folder / "none.py", for_custom=False)
    found = {end.id.rpartition("::")[2]: end for end in run(place_in(folder), hooked, ids)}
    yield found
    child = folder / "work" / "scratch" / "child"
    subprocess.run(["kill", "-9", child.read_text()], check=True)  # it had outlived the run


EXPECTED = {
    "test_a_forks_and_aborts": ("crashed", "the process died of SIGABRT"),
    "test_b_leaves_a_child": ("passed", ""),
    "test_c_comes_back_twice": ("passed", ""),
    "test_d_half_a_character": ("failed", "AssertionError: half \\ud800 of it"),
    "test_e_skips_for_half_a_character": ("skipped", "half \\ud800 of it"),
    "test_f_cannot_be_shown": ("failed", "Unspeakable: it cannot be shown: ValueError"),
    "test_g_writes_to_all_pipes": ("passed", ""),
    "test_a_then_closes_all_pipes": (
        "crashed",
        "the process closed the pipe by which it tells of tests",
    ),
}


def test_each_costs_itself(ended: dict[str, Ended]) -> None:
    assert {name: (end.outcome, end.reason) for name, end in ended.items()} == EXPECTED


def test_a_process_that_cannot_begin_says_why(tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    place = replace(place_in(tmp_path), device="other")
    hooked = HookedFile("test_none.py", tmp_path / "none.py", for_custom=False)
    (end,) = run(place, hooked, ["test_none.py::A::b"])
    assert end.outcome == "not-reached"
    assert "json registers privateuseone, not other" in end.reason


# --- what is told of them -----------------------------------------------------------------------

SAID = "half \ud800, \x1b[31m a bell \x07, \x00 and <b>"


def test_every_output_holds_every_text(tmp_path: Path) -> None:
    entries = [
        Entry("a.py::A::b", Bucket.FAILED, Verdict.GATE, SAID, "G-1", 1.0, SAID),
        Entry(f"a.py::A::c[k={SAID}]", Bucket.EXCLUDED_RULE, Verdict.EXCLUDE, SAID, SAID),
    ]
    ledger = ledger_of(entries)
    write_ledger(tmp_path / "ledger.jsonl", ledger)
    assert read_ledger(tmp_path / "ledger.jsonl") == ledger
    write_junit(tmp_path / "junit.xml", ledger)
    cases = ElementTree.parse(tmp_path / "junit.xml").getroot().findall(".//testcase")
    assert [case.get("name", "")[0] for case in cases] == ["b", "c"]
    found = outcome(ledger, [SAID])
    (tmp_path / "page.html").write_bytes(page(ledger, found, [SAID], SAID).encode())
    assert "half \\ud800" in (tmp_path / "page.html").read_text()
    said = terminal(ledger, found, [SAID])
    assert said.encode()
    assert not {"\x1b", "\x07", "\x00"} & {*said}


def test_a_terminal_that_lacks_a_letter(tmp_path: Path) -> None:
    name = "rules-\u00e9.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "openspyre.ci.cli", "config", "check", name], cwd=tmp_path,
        capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 2
    assert b"cannot read rules-\\xe9.yaml" in done.stderr
    assert b"Traceback" not in done.stderr


def test_halves_of_characters_have_a_name() -> None:
    assert value_text("\ud800") == "%ED%A0%80"
    assert plain_text("a\ud800\u00e9") == "a\\ud800\u00e9"
