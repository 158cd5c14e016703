"""The long lane `selection`: two real refs, PyTorch 1.13.1 and 2.6.0 as Debian ships their sources.

`./dev test --long selection` fetches both (45 MB, once) and makes a git repository of them in
OPENSPYRE_UPSTREAM_CACHE (default: `upstream` in the cache of openspyre). It counts changes by the
design's definition, and measures how much is selected and whether all relevant tests that changed
are in it: between the releases, and for edits planted in the newer one. Leaves
`results/selection.json`. Where the sources cannot be had, it ends with exit code 5.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pytest

from openspyre.ci.capability import read_rows
from openspyre.ci.reuse.capability_table import derived, measured_with, write_capability
from openspyre.ci.select.stages.diff import Diff, diff_of
from openspyre.ci.select.stages.enumeration import enumerate_ref, enumerate_shapes
from openspyre.ci.select.stages.explaining import Known, explained
from openspyre.ci.select.stages.git import Repository
from openspyre.ci.select.stages.knowledge import Capability, History, Policy, capability_of
from openspyre.ci.select.stages.layout import Layout
from openspyre.ci.select.stages.plan import Plan, Wishes, plan_of
from openspyre.ci.select.stages.reading import shape_of
from openspyre.ci.select.stages.records import Enumeration
from openspyre.ci.select.stages.relevance import World, judged, tables_of
from openspyre.ci.select.stages.shape import FileShape
from tests.ci.select.by_hand import Key, Tree, changed, edited, tree_of
from tests.ci.select.debian_sources import BASE, HEAD, sources_in
from tests.debian_pytorch import NoSources, cache_folder
from tests.results import ROOT, commit, write_result

NO_SOURCES = 5
MOST_SELECTED = 0.20
LAYOUT = Layout()
SEEDS = (1, 2, 3)
# The design, section 7: all changes, and those in classes that are made per device type.
DESIGN = {
    "files": [448, 855],
    "methods": [11596, 23558],
    "all": {"added": 13765, "removed": 1803, "body": 2711, "decorators": 505},
    "generic": {"added": 1566, "removed": 175, "body": 445, "decorators": 264},
}


@dataclass(frozen=True)
class Selected:
    """A selection and what led to it."""

    head: Enumeration
    diff: Diff
    known: Known
    plan: Plan

    def measured(self, truth: Collection[str]) -> dict[str, object]:
        """Share of all tests that is selected, and of the truth that is among them."""
        chosen = {one.id for one in self.plan.chosen}
        missing = sorted(set(truth) - chosen)
        return {
            "tests": len(self.head.tests), "selected": len(chosen),
            "share": round(len(chosen) / len(self.head.tests), 4),
            "changed_and_relevant": len(truth),
            "recall": round(1 - len(missing) / len(truth), 6),
            "missing": {id: explained(id, self.known) for id in missing[:9]},
            "labels": dict(sorted(Counter(one.rule for one in self.known.labels).items())),
            "kinds": self.diff.counts(),
        }  # fmt: skip


@pytest.fixture(scope="module")
def repository() -> Repository:
    try:
        return sources_in(cache_folder())
    except NoSources as error:
        pytest.exit(f"lane selection: {error}", returncode=NO_SOURCES)


def capability(folder: Path) -> Capability:
    """The table of the survey in this checkout, through the file that the commands read."""
    survey, table = ROOT / "results" / "capability.json", folder / "capability.json"
    write_capability(table, derived(read_rows(survey), measured_with(survey)))
    return capability_of(json.loads(table.read_text()), "spyre")


def select(base: Enumeration, head: Enumeration, able: Capability) -> Selected:
    diff = diff_of(base, head, LAYOUT)
    labels = judged(diff, base, head, World(able, tables=tables_of(head, LAYOUT)))
    plan = plan_of(diff, labels, head, able, Policy(), History(), {}, Wishes())
    return Selected(head, diff, Known(base, head, diff, tuple(labels), plan), plan)


def name(key: Key) -> str:
    path, cls, method = key
    return f"{path.removeprefix('test/')}::{cls}::{method}"


def counted(old: Tree, new: Tree, changes: dict[str, list[Key]]) -> dict[str, object]:
    both = {**old.methods, **new.methods}
    generic = {kind: [k for k in keys if both[k].generic] for kind, keys in changes.items()}
    return {
        "files": [len(old.files), len(new.files)],
        "methods": [len(old.methods), len(new.methods)],
        "all": {kind: len(keys) for kind, keys in changes.items()},
        "generic": {kind: len(keys) for kind, keys in generic.items()},
    }


@pytest.mark.timeout(3600)
def test_two_releases(repository: Repository, tmp_path: Path) -> None:
    begun, start = commit(), time.monotonic()
    old, new = (tree_of(repository, ref, "spyre") for ref in (BASE, HEAD))
    changes = changed(old, new)
    numbers = counted(old, new, changes)
    print("lane selection: by hand:", json.dumps(numbers), flush=True)
    truth = {
        name(key) for kind in ("added", "body", "decorators") for key in changes[kind]
        if new.methods[key].here
    }  # fmt: skip
    shapes: dict[str, FileShape] = {}
    begun_reading = time.monotonic()
    base, head = (enumerate_ref(repository, ref, LAYOUT, parsed=shapes) for ref in (BASE, HEAD))
    able = capability(tmp_path)
    whole = select(base, head, able)
    seconds = time.monotonic() - begun_reading
    releases = whole.measured(truth)
    print("lane selection: releases:", json.dumps(releases, indent=1), flush=True)
    edits = [planted(repository, new, head, shapes, able, seed) for seed in SEEDS]
    found = {
        "design": numbers, "releases": releases, "edits": edits,
        "seconds_for_the_releases": round(seconds), "seconds": round(time.monotonic() - start),
    }  # fmt: skip
    write_result("selection", found, begun=begun)
    assert numbers == DESIGN
    for one in (releases, *edits):
        assert one["recall"] == 1.0
        assert isinstance(one["share"], float)
        assert one["share"] <= MOST_SELECTED


def planted(
    repository: Repository, tree: Tree, head: Enumeration, shapes: dict[str, FileShape],
    able: Capability, seed: int,
) -> dict[str, object]:  # fmt: skip
    """The newer release before and after an edit in each of many files."""
    files, ids = edited(tree, seed, 150)
    sources = {
        path: blob for path, blob in repository.files(HEAD).items()
        if path.endswith(".py") and LAYOUT.is_ours(path)
    }  # fmt: skip
    after = {
        path: shape_of(files[path]) if path in files else shapes[blob]
        for path, blob in sorted(sources.items())
    }
    hashes = {path: str(files.get(path, blob)) for path, blob in sources.items()}
    found = select(head, enumerate_shapes(after, LAYOUT, hashes, head.other), able).measured(ids)
    print(f"lane selection: {len(ids)} edits:", json.dumps(found, indent=1), flush=True)
    return {"seed": seed, "edits": dict(Counter(ids.values())), **found}
