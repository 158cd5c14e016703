"""docs/upstream.md is what results/upstream.json says, and the bench counts every test."""

from __future__ import annotations

import json

from upstream import measurements

from openspyre.ci.reuse.markdown import page_of
from tests.results import ROOT

RESULT = ROOT / "results" / "upstream.json"


def test_the_page_is_that_of_the_result() -> None:
    assert (ROOT / "docs" / "upstream.md").read_text() == page_of(json.loads(RESULT.read_text()))


def test_every_test_is_counted() -> None:
    found = json.loads(RESULT.read_text())
    assert sum(found["buckets"].values()) == found["total"]
    assert sum(sum(counts.values()) for counts in found["files"].values()) == found["total"]
    rows = measurements(found)
    assert sum(row.value for row in rows if row.unit == "tests") == found["total"]
