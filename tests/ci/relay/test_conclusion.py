"""What the relay is told of a run, from an account that a stranger may have written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openspyre.ci.relay.conclusion import BAD, BUCKETS, EXECUTED, conclusion, read_account
from openspyre.ci.relay.message import InvalidMessage


def account(*, red: int | None = None, **buckets: int) -> Any:
    counts = {name.replace("_", "-"): n for name, n in buckets.items()}
    summary: dict[str, Any] = {"buckets": counts}
    if red is not None:
        summary["red"] = red
    return read_account(json.dumps(summary).encode())


def test_a_run_in_which_all_went_as_asked_is_a_success() -> None:
    run = account(passed=3, xfailed=2, skipped_upstream=4, quarantined=1, excluded_op=9)
    assert conclusion(run, "success") == "success"
    assert run.results() == {"passed": 3, "failed": 0, "skipped": 7, "total": 10}


@pytest.mark.parametrize("bucket", [*BAD, "import-error", "not-reached"])
def test_one_test_that_did_not_is_a_failure(bucket: str) -> None:
    run = account(passed=3, **{bucket: 1})
    assert conclusion(run, "success") == "failure"
    assert run.results()["failed"] == (0 if bucket == "not-reached" else 1)


@pytest.mark.parametrize("name", ["unbucketed", "expired"])
def test_an_account_that_is_not_in_order_is_a_failure(name: str) -> None:
    run = read_account(json.dumps({"buckets": {"passed": 3}, name: 1}).encode())
    assert conclusion(run, "success") == "failure"


def test_what_only_is_observed_is_no_failure() -> None:
    run = account(passed=3, failed=2, red=0)
    assert conclusion(run, "success") == "success"
    assert run.results() == {"passed": 3, "failed": 0, "skipped": 0, "total": 3}


@pytest.mark.parametrize("buckets", [{}, {"skipped_upstream": 5}, {"excluded_rule": 5}])
def test_a_run_in_which_no_test_ran_is_a_failure(buckets: dict[str, int]) -> None:
    assert conclusion(account(**buckets), "success") == "failure"


@pytest.mark.parametrize(
    ("result", "told"),
    [("success", "failure"), ("failure", "failure"), ("cancelled", "cancelled")],
)
def test_a_run_that_left_no_account(result: str, told: str) -> None:
    assert conclusion(None, result) == told


def test_a_job_that_failed_after_a_green_run_is_a_failure() -> None:
    assert conclusion(account(passed=3), "failure") == "failure"


@pytest.mark.parametrize("result", ["cancelled", "skipped"])
def test_a_job_that_was_cut_off_was_cancelled_whatever_it_left(result: str) -> None:
    assert conclusion(account(passed=3), result) == "cancelled"
    assert conclusion(account(failed=3), result) == "cancelled"


def test_a_run_may_time_out() -> None:
    raw = json.dumps({"buckets": {"passed": 3}, "timed_out": True}).encode()
    assert conclusion(read_account(raw), "failure") == "timed_out"


@pytest.mark.parametrize(
    "summary",
    [
        [],
        {},
        {"buckets": []},
        {"buckets": {"passed": -1}},
        {"buckets": {"passed": 1.0}},
        {"buckets": {"passed": True}},
        {"buckets": {"passed": "1"}},
        {"buckets": {"passed": 10**12}},
        {"buckets": {"passd": 1}},
        {"buckets": {"failed": 1}, "red": 2},
        {"buckets": {"passed": 1}, "red": -1},
        {"buckets": {"passed": 1}, "executed": 2},
        {"buckets": {"passed": 1}, "unbucketed": "0"},
        {"buckets": {"passed": 1}, "timed_out": 1},
    ],
    ids=json.dumps,
)
def test_what_is_no_account_is_refused(summary: object) -> None:
    with pytest.raises(InvalidMessage):
        read_account(json.dumps(summary).encode())


@given(st.dictionaries(st.sampled_from(BUCKETS), st.integers(0, 3)), st.integers(0, 2))
def test_success_is_exactly_what_the_rule_says(buckets: dict[str, int], unbucketed: int) -> None:
    raw = json.dumps({"buckets": buckets, "unbucketed": unbucketed}).encode()
    run = read_account(raw)
    ran = sum(buckets.get(name, 0) for name in EXECUTED)
    wrong = sum(buckets.get(name, 0) for name in (*BAD, "import-error", "not-reached"))
    good = ran > 0 and wrong == 0 and unbucketed == 0
    assert conclusion(run, "success") == ("success" if good else "failure")
    results = run.results()
    assert results["total"] == results["passed"] + results["failed"] + results["skipped"]
    if good:
        assert results["failed"] == 0
