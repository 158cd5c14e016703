"""The long lane `upstream`: PyTorch's own test files on the card, in parts.

`./dev test --long upstream` takes an hour; a part of a file's tests is the same in every run. A
run that was cut short goes on. Leaves `results/upstream.json` and `docs/upstream.md`. Without the
sources (OPENSPYRE_UPSTREAM_CACHE, fetched from Debian) it ends with exit code 5.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

from openspyre.ci.reuse.ledger import Entry, Ledger, ledger_of
from openspyre.ci.reuse.loading import load
from openspyre.ci.reuse.markdown import page_of, result_of
from openspyre.ci.reuse.running import Choice, place_of, prepare, run_prepared
from tests.debian_pytorch import NoSources, cache_folder
from tests.lanes import BEGUN
from tests.results import ROOT, write_result
from tests.upstream.sources import NAME, folder_of_tests

RULES = Path(__file__).parent / "spyre.yaml"
NO_SOURCES = 5
# Every n-th test of the files with many; OPENSPYRE_UPSTREAM_WHOLE=1 runs all of them.
PARTS = {
    "test_unary_ufuncs.py": 48, "test_reductions.py": 12, "test_type_promotion.py": 4,
    "test_tensor_creation_ops.py": 4,
}  # fmt: skip
if os.environ.get("OPENSPYRE_UPSTREAM_WHOLE"):
    PARTS = {}


@pytest.mark.timeout(6 * 3600)
def test_upstreams_files() -> None:
    try:
        tests = folder_of_tests()
    except NoSources as error:
        pytest.exit(f"lane upstream: {error}", returncode=NO_SOURCES)
    ledger, problems = run(tests, cache_folder() / "work")
    assert problems == []
    assert [entry.id for entry in ledger.red()] == []
    assert ledger.executed() > 0


def run(tests: Path, work: Path) -> tuple[Ledger, Sequence[str]]:
    """Runs every file of the rules, and writes the result after each.

    Returns:
        The ledger of all, and where it does not add up.
    """
    loaded = load([RULES])
    entries: list[Entry] = []
    problems: list[str] = []
    for file in sorted(loaded.rules.files, key=lambda file: PARTS.get(file.path, 1)):
        place = place_of(loaded.rules, tests, work)
        ready = prepare(loaded.rules, file, loaded.capability, place)
        assert ready.plan.problems == ()
        choice = Choice(shard=(1, PARTS.get(file.path, 1)), resume=True)
        found = run_prepared([ready], place, choice)
        counts = {name: n for name, n in found.ledger.counts().items() if n}
        print(f"upstream: {file.path}: {counts}", flush=True)
        entries += found.ledger.entries
        problems += found.problems
        write(ledger_of(entries))
    return ledger_of(entries), problems


def write(ledger: Ledger) -> None:
    """Writes the result and the page."""
    found = result_of(ledger, NAME, version("torch"), "spyre")
    found["parts"] = {file: f"1/{n}" for file, n in PARTS.items() if file in found["files"]}
    path = write_result("upstream", found, begun=BEGUN)
    write_page(path)


def write_page(result: Path) -> None:
    text = page_of(json.loads(result.read_text()))
    (ROOT / "docs" / "upstream.md").write_text(text)
