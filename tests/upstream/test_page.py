"""docs/upstream.md is what results/upstream.json says; the page and the bench add up."""

from __future__ import annotations

import json

from upstream import measurements

from openspyre.ci.reuse.ledger import Bucket, Entry, ledger_of
from openspyre.ci.reuse.markdown import page_of, result_of
from openspyre.ci.reuse.schema import Verdict
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


def test_the_page_says_what_fails_and_why() -> None:
    entries = [
        Entry("a.py::A::b", Bucket.PASSED, Verdict.OBSERVE),
        Entry("a.py::A::c[op=x|y]", Bucket.FAILED, Verdict.OBSERVE, "1 | 2 < 3"),
        Entry("b.py::B::d", Bucket.XFAILED, Verdict.XFAIL, "why", "R-1"),
        Entry("b.py::B::e[op=z]", Bucket.EXCLUDED_OP, Verdict.OBSERVE, "z: wrong", "capability:z"),
    ]
    found = result_of(ledger_of(entries), "somewhere", "2.13", "a device")
    text = page_of({**found, "commit": "0" * 40, "parts": {"b.py": "1/6"}})
    assert "Of 4 tests 3 were run (a part of: b.py 1/6), 1 did not do as they should." in text
    assert "| failed | `a.py::A::c[op=x\\|y]` | 1 \\| 2 &lt; 3 |" in text
    assert "| xfailed | R-1 | why | 1 |" in text
    assert "capability:z" not in text
