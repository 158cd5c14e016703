"""From the account of a run to what the relay is told: a conclusion, and counts of tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openspyre.ci.relay.message import InvalidMessage, Node, read_message

BAD = ("failed", "xpass", "xfail-mismatch", "crashed", "hung", "flaky")
EXECUTED = ("passed", "xfailed", *BAD)
SKIPPED = ("xfailed", "skipped-upstream", "quarantined")
EXCLUDED = ("excluded-rule", "excluded-op", "excluded-dtype", "excluded-guard", "excluded-scope")
NOT_RUN = (*EXCLUDED, "over-budget", "not-selected", "import-error", "not-reached")
BUCKETS = (*EXECUTED, "skipped-upstream", "quarantined", *NOT_RUN)
RESULTS = ("success", "failure", "cancelled", "skipped")  # of a job, in GitHub's words
_SUMMARY_LIMIT = 8 * 1024 * 1024
_MANY = 10**9


@dataclass(frozen=True, slots=True)
class Account:
    """What a run came to.

    Attributes:
        buckets: tests by bucket, all buckets.
        red: tests whose result is not as asked for; what only is observed is never red.
        unbucketed: places where the account does not add up.
        expired: rules whose date has passed.
        timed_out: whether the run was cut short by its own limit of time.
    """

    buckets: Mapping[str, int]
    red: int
    unbucketed: int
    expired: int
    timed_out: bool

    @property
    def executed(self) -> int:
        return sum(self.buckets[bucket] for bucket in EXECUTED)

    def results(self) -> Mapping[str, int]:
        """The relay's counts: what is observed only and not as hoped is in none of them."""
        counts = {
            "passed": self.buckets["passed"],
            "failed": self.red,
            "skipped": sum(self.buckets[bucket] for bucket in SKIPPED),
        }
        return {**counts, "total": sum(counts.values())}


def read_account(raw: bytes) -> Account:
    """The account in a run's summary.json, which the code under test may have written.

    Raises:
        InvalidMessage: it is none, or contradicts itself.
    """
    node = read_message(raw, "the summary", _SUMMARY_LIMIT)
    buckets = node.field("buckets")
    if unknown := sorted(buckets.mapping().keys() - set(BUCKETS)):
        buckets.wrong(f"it has {len(unknown)} unknown buckets")
    counts = {bucket: _number(buckets, bucket) for bucket in BUCKETS}
    bad = sum(counts[bucket] for bucket in BAD)
    red = _number(node, "red") if node.optional("red") is not None else bad + counts["import-error"]
    if red > bad + counts["import-error"]:
        node.wrong("more tests are red than are in buckets that can be")
    timed_out = node.optional("timed_out")
    account = Account(
        buckets=counts,
        red=red,
        unbucketed=_number(node, "unbucketed"),
        expired=_number(node, "expired"),
        timed_out=timed_out is not None and timed_out.flag(),
    )
    said = node.optional("executed")
    if said is not None and said.number(0, _MANY) != account.executed:
        node.wrong("executed is not the sum of the buckets that ran")
    return account


def check_result(word: str) -> None:
    """Whether it is one of RESULTS.

    Raises:
        InvalidMessage: it is not.
    """
    if word not in RESULTS:
        raise InvalidMessage(f"{word!r} is no result", hint=f"use {', '.join(RESULTS)}")


def conclusion(account: Account | None, result: str) -> str:
    """What the relay is told.

    Success is a run in which tests ran, none is red, all were reached and the account adds up.

    Args:
        account: None where the run left none.
        result: how the job that ran the tests ended, one of RESULTS.
    """
    if result in ("cancelled", "skipped"):
        return "cancelled"
    if account is not None and account.timed_out:
        return "timed_out"
    if account is None or result == "failure" or not account.executed:
        return "failure"
    wrong = (account.red, account.unbucketed, account.expired, account.buckets["not-reached"])
    return "failure" if any(wrong) else "success"


def _number(outer: Node, name: str) -> int:
    found = outer.optional(name)
    return 0 if found is None else found.number(0, _MANY)
