"""The verdict on a red run comes from what the selection knows, in the relay's form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from openspyre.ci.relay.verdict import read_verdict
from openspyre.ci.reuse.ledger import Bucket, Entry, ledger_of
from openspyre.ci.reuse.schema import Verdict
from openspyre.ci.select.stages.diff import Change, Diff
from openspyre.ci.select.stages.plan import Chosen, Plan
from openspyre.ci.select.triage import triage

BASE, HEAD = "b" * 40, "f" * 40
CHANGES = Diff(
    BASE, HEAD,
    (
        Change("a.py::A::test_body", ("body",), why=("body: body differs, test/a.py:7",)),
        Change("a.py::B::*", ("class",), why=("class: class differs, test/a.py:90",)),
        Change("product::aten/add.cpp", ("product",)),
    ),
)  # fmt: skip
PLAN = Plan(
    BASE, HEAD, None,
    (
        Chosen("a.py::A::test_body", 0, 1.0, 1.0, "R10: add"),
        Chosen("a.py::A::test_reached", 2, 1.0, 1.0, "R11: aten/add.cpp names add"),
        Chosen("a.py::A::test_turn", 4, 1.0, 1.0, "its turn among the unchanged gates"),
    ),
    (),
)  # fmt: skip


def entry(method: str, bucket: Bucket = Bucket.FAILED, reason: str = "E: x") -> Entry:
    return Entry(f"a.py::{method}[dtype=float16]", bucket, Verdict.GATE, reason, "G-1")


BODY, REACHED, TURN = entry("A::test_body"), entry("A::test_reached"), entry("A::test_turn")
FLAKY, LOST = entry("A::test_body", Bucket.FLAKY), entry("A::test_body", Bucket.NOT_REACHED)
PASSED = entry("A::test_other", Bucket.PASSED, "")


def verdict(*entries: Entry) -> Mapping[str, Any]:
    found = triage(ledger_of([PASSED, *entries]), CHANGES, PLAN)
    assert found is not None
    assert read_verdict(json.dumps(found).encode()) == found  # the relay takes it as it is
    return found


@pytest.mark.parametrize(
    ("entries", "category", "confidence"),
    [
        ((BODY,), "upstream", "medium"), ((entry("B::test_any"),), "upstream", "medium"),
        ((REACHED,), "upstream", "low"), ((BODY, REACHED), "upstream", "medium"),
        ((TURN,), "backend", "medium"), ((FLAKY,), "flake", "high"), ((LOST,), "infra", "high"),
        ((BODY, TURN), "unknown", "low"),
        ((Entry("a.py::*", Bucket.IMPORT_ERROR, Verdict.GATE, "E"),), "backend", "medium"),
    ],
)  # fmt: skip
def test_categories(entries: tuple[Entry, ...], category: str, confidence: str) -> None:
    found = verdict(*entries)
    assert (found["category"], found["confidence"]) == (category, confidence)
    assert ("suspected_upstream" in found) is (category == "upstream")


def test_upstream_is_named_with_the_reason() -> None:
    found = verdict(BODY)
    assert found["suspected_upstream"] == {
        "commit": HEAD, "reason": "body: body differs, test/a.py:7",
    }  # fmt: skip
    assert "1 of 2 tests (1 upstream); first a.py::A::test_body[dtype=float16]" in found["summary"]
    (evidence,) = found["evidence"]
    assert evidence["excerpt"] == "failed: E: x\nchosen: body: body differs, test/a.py:7"


@pytest.mark.parametrize(
    ("entries", "again"),
    [
        ((BODY,), None), ((entry("A::a", reason="twice: E: x"),), True), ((FLAKY,), False),
        ((BODY, entry("A::a", reason="twice: E: x")), False),
    ],
)  # fmt: skip
def test_whether_it_failed_again(entries: tuple[Entry, ...], again: bool | None) -> None:
    assert verdict(*entries).get("reproduced_on_retry") is again


def test_what_is_too_long_is_cut() -> None:
    many = [entry(f"A::{'n' * 300}{number}", reason="E: " + "y" * 400) for number in range(30)]
    assert len(verdict(*many)["evidence"]) == 10


def test_nothing_red_is_no_verdict() -> None:
    assert triage(ledger_of([PASSED]), CHANGES, PLAN) is None
