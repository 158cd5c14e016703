"""The page of a run says what passes, what does not, and why."""

from __future__ import annotations

from openspyre.ci.reuse.ledger import Bucket, Entry, ledger_of
from openspyre.ci.reuse.markdown import page_of, result_of
from openspyre.ci.reuse.schema import Verdict


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
