"""The account of a run: every collected test in exactly one bucket, with the reason."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from openspyre.ci.reuse.schema import Verdict
from openspyre.errors import SpyreError
from openspyre.runtime.whole_file import write_whole


class Bucket(Enum):
    """What became of a test."""

    PASSED = "passed"
    FAILED = "failed"
    XFAILED = "xfailed"
    XPASS = "xpass"
    XFAIL_MISMATCH = "xfail-mismatch"
    CRASHED = "crashed"
    HUNG = "hung"
    FLAKY = "flaky"
    SKIPPED_UPSTREAM = "skipped-upstream"
    QUARANTINED = "quarantined"
    EXCLUDED_RULE = "excluded-rule"
    EXCLUDED_OP = "excluded-op"
    EXCLUDED_DTYPE = "excluded-dtype"
    EXCLUDED_GUARD = "excluded-guard"
    EXCLUDED_SCOPE = "excluded-scope"
    OVER_BUDGET = "over-budget"
    NOT_SELECTED = "not-selected"
    IMPORT_ERROR = "import-error"
    NOT_REACHED = "not-reached"


EXECUTED = frozenset({
    Bucket.PASSED, Bucket.FAILED, Bucket.XFAILED, Bucket.XPASS, Bucket.XFAIL_MISMATCH,
    Bucket.CRASHED, Bucket.HUNG, Bucket.FLAKY,
})  # fmt: skip
BAD = frozenset({
    Bucket.FAILED, Bucket.XPASS, Bucket.XFAIL_MISMATCH, Bucket.CRASHED, Bucket.HUNG, Bucket.FLAKY,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One test.

    Attributes:
        id: file::Class::method[params], or file::* for a file that cannot be imported.
        verdict: what was asked of it.
        reason: why it is in this bucket; empty if it passed.
        rule: the rule, or the row of the capability table, behind that; of what did not run
            it is never empty.
        seconds: that it took.
        trace: the end of its traceback.
    """

    id: str
    bucket: Bucket
    verdict: Verdict
    reason: str = ""
    rule: str = ""
    seconds: float = 0.0
    trace: str = ""

    @property
    def red(self) -> bool:
        """Whether a run with it is no success: what only is observed never is."""
        if self.bucket is Bucket.IMPORT_ERROR:
            return True
        return self.bucket in BAD and self.verdict is not Verdict.OBSERVE

    @property
    def file(self) -> str:
        return self.id.partition("::")[0]


@dataclass(frozen=True, slots=True)
class Ledger:
    """All of a run's tests, sorted by id."""

    entries: tuple[Entry, ...]

    def counts(self) -> dict[str, int]:
        """Tests by bucket, all buckets."""
        found = Counter(entry.bucket for entry in self.entries)
        return {bucket.value: found[bucket] for bucket in Bucket}

    def red(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.red]

    def executed(self) -> int:
        return sum(entry.bucket in EXECUTED for entry in self.entries)

    def problems(self, universe: Collection[str]) -> list[str]:
        """Where the account does not add up: nothing if every test is in one bucket."""
        often = Counter(entry.id for entry in self.entries)
        known = set(universe)
        found = [f"{id_}: in no bucket" for id_ in sorted(known - often.keys())]
        found += [f"{id_}: in {n} buckets" for id_, n in sorted(often.items()) if n > 1]
        found += [f"{id_}: was never collected" for id_ in sorted(often.keys() - known)]
        ran = EXECUTED | {Bucket.SKIPPED_UPSTREAM}
        found += [
            f"{e.id}: {e.bucket.value} without a reason"
            for e in self.entries
            if e.bucket not in ran and not e.reason
        ]
        found += [
            f"{e.id}: {e.bucket.value} without the rule, or the row of a table, behind it"
            for e in self.entries
            if e.bucket not in ran and not e.rule
        ]
        return found


class Outcome(Enum):
    """How a run ended: the exit code of `spyre-ci run`."""

    GREEN = 0
    RED = 1
    CONFIG = 2
    ACCOUNTING = 3
    NOTHING_RAN = 4
    INFRASTRUCTURE = 5


def outcome(ledger: Ledger, problems: Collection[str]) -> Outcome:
    """The first that holds: the account is wrong, a process failed, nothing ran, a test is red."""
    if problems:
        return Outcome.ACCOUNTING
    if any(entry.bucket is Bucket.NOT_REACHED for entry in ledger.entries):
        return Outcome.INFRASTRUCTURE
    if ledger.red():
        return Outcome.RED
    return Outcome.GREEN if ledger.executed() else Outcome.NOTHING_RAN


def ledger_of(entries: Iterable[Entry]) -> Ledger:
    return Ledger(tuple(sorted(entries, key=lambda entry: entry.id)))


def write_ledger(path: Path, ledger: Ledger) -> None:
    """Writes an entry a line; fields that say nothing are left out."""
    lines = [json.dumps(_plain(entry)) for entry in ledger.entries]
    write_whole(path, "".join(f"{line}\n" for line in lines).encode())


def read_ledger(path: Path) -> Ledger:
    """The ledger of a file.

    Raises:
        SpyreError: it is not one.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        return ledger_of(_entry(json.loads(line)) for line in lines if line)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SpyreError(f"{path} is no ledger", why=repr(error)) from None


def _plain(entry: Entry) -> dict[str, object]:
    found: dict[str, object] = {
        "id": entry.id, "bucket": entry.bucket.value, "verdict": entry.verdict.value,
        "reason": entry.reason, "rule": entry.rule, "seconds": entry.seconds, "trace": entry.trace,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value}


def _entry(found: dict[str, object]) -> Entry:
    changed = {"bucket": Bucket(found["bucket"]), "verdict": Verdict(found["verdict"])}
    return Entry(**{**found, **changed})  # type: ignore[arg-type]
