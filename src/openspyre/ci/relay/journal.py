"""Which deliveries were taken, on disk: each runs once, whatever is repeated, lost or killed.

One SQLite file. A claim is a transaction of its own, so it is wholly there or not at all after a
crash, and of receivers that claim one delivery at the same time one gets it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from openspyre.ci.relay.envelope import Job
from openspyre.errors import SpyreError

_VERSION = 1
_WAIT_SECONDS = 30.0  # for another receiver's transaction
_TABLE = """
CREATE TABLE IF NOT EXISTS deliveries (
    delivery_id TEXT PRIMARY KEY, run_id INTEGER NOT NULL, run_attempt INTEGER NOT NULL,
    concurrency TEXT NOT NULL, sha TEXT NOT NULL, updated REAL NOT NULL, decision TEXT NOT NULL,
    claimed REAL NOT NULL, conclusion TEXT, finished REAL
) STRICT
"""
_COLUMNS = "delivery_id, run_id, run_attempt, concurrency, sha, decision, claimed, conclusion"


class Unwritable(SpyreError):
    """The journal cannot be used: without it nothing may run."""


class Claim(StrEnum):
    """What a claim says about a delivery."""

    NEW = "new"
    RERUN = "rerun"  # of the run that has it
    DUPLICATE = "duplicate"
    SUPERSEDED = "superseded"  # a later state of the same pull request was taken


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a workflow: GitHub's number, and which attempt at it."""

    run_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A delivery, taken last at `claimed`. No `conclusion`: its run is not said to have ended."""

    delivery_id: str
    run: Run
    concurrency: str
    sha: str
    decision: str
    claimed: float
    conclusion: str | None


@dataclass(frozen=True, slots=True)
class Journal:
    """The deliveries taken so far. Times are seconds since 1970.

    Raises:
        Unwritable: the file cannot be made, read or written, or is none of ours.
    """

    path: Path

    def claim(self, job: Job, run: Run, decision: str, now: float) -> Claim:
        """Takes a delivery for a run, unless it is taken or out of date."""
        with self._transaction() as database:
            claim = _judged(database, job, run)
            if claim is not Claim.DUPLICATE:
                stored = str(claim) if claim is Claim.SUPERSEDED else decision
                database.execute(
                    "INSERT INTO deliveries VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)"
                    " ON CONFLICT (delivery_id) DO UPDATE SET run_attempt = excluded.run_attempt,"
                    " decision = excluded.decision, claimed = excluded.claimed,"
                    " conclusion = NULL, finished = NULL",
                    (
                        *(job.delivery_id, run.run_id, run.attempt, job.concurrency),
                        *(job.sha, job.updated, stored, now),
                    ),
                )
        return claim

    def finish(self, delivery_id: str, conclusion: str, now: float) -> bool:
        """Notes that the run of a delivery has ended; whether the delivery was known."""
        with self._transaction() as database:
            done = database.execute(
                "UPDATE deliveries SET conclusion = ?, finished = ? WHERE delivery_id = ?",
                (conclusion, now, delivery_id),
            )
            return done.rowcount > 0

    def entries(self) -> tuple[Entry, ...]:
        """All deliveries, in the order in which they were taken."""
        with self._transaction() as database:
            rows = database.execute(
                f"SELECT {_COLUMNS} FROM deliveries ORDER BY claimed, delivery_id"
            ).fetchall()
        return tuple(Entry(row[0], Run(row[1], row[2]), *row[3:]) for row in rows)

    def prune(self, before: float) -> int:
        """Forgets the deliveries taken before then; how many."""
        with self._transaction() as database:
            done = database.execute("DELETE FROM deliveries WHERE claimed < ?", (before,))
            return done.rowcount

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(_opened(self.path)) as database:
                database.execute("BEGIN IMMEDIATE")
                _check_ours(database)
                database.execute(_TABLE)
                database.execute(f"PRAGMA user_version = {_VERSION}")
                yield database
                database.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise Unwritable(
                f"the journal {self.path} cannot be used",
                why=str(error),
                hint="give --journal a file on a disk that stays; move a damaged one away,"
                " then run `reconcile`",
            ) from None


def _opened(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None)
    database.execute("PRAGMA synchronous = FULL")
    return database


def _check_ours(database: sqlite3.Connection) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (tables,) = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    if version == 0 and tables:  # what other programs leave it at
        raise sqlite3.DatabaseError("it is a database of another program")
    if version not in (0, _VERSION):
        raise sqlite3.DatabaseError(f"its version is {version}, not {_VERSION}")


def _judged(database: sqlite3.Connection, job: Job, run: Run) -> Claim:
    held = database.execute(
        "SELECT run_id, run_attempt FROM deliveries WHERE delivery_id = ?", (job.delivery_id,)
    ).fetchone()
    again = held is not None and held[0] == run.run_id and held[1] < run.attempt
    if held is not None and not again:
        return Claim.DUPLICATE
    (latest,) = database.execute(
        "SELECT MAX(updated) FROM deliveries WHERE concurrency = ?", (job.concurrency,)
    ).fetchone()
    if job.updated and latest is not None and latest > job.updated:
        return Claim.SUPERSEDED
    return Claim.RERUN if again else Claim.NEW
