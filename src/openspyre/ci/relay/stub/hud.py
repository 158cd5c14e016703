"""The dashboard: rows of what the relay forwarded, and faults to switch on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from threading import RLock

from openspyre.ci.relay.stub.clock import Clock
from openspyre.ci.relay.wire import HUD_LIMIT

CALL_SECONDS = 10.0  # that the relay waits for one answer


class Fault(StrEnum):
    """How the dashboard fails."""

    REFUSES = "4xx"
    FAILS = "5xx"
    HANGS = "hang"


@dataclass(frozen=True, slots=True)
class Row:
    """A job as the dashboard shows it; the second callback replaces the first one's row."""

    repository: str
    delivery_id: str
    workflow: str
    job: str
    check_run_id: str
    level: int
    status: str
    conclusion: str
    url: str
    run_attempt: str
    counts: Mapping[str, int]
    queue_time: float | None
    execution_time: float | None

    @property
    def key(self) -> str:
        parts = (self.repository, self.delivery_id, self.workflow, self.job, self.check_run_id)
        return "/".join(parts)


@dataclass(slots=True)
class Hud:
    """In memory. `faults` are used up, one a call; then it works."""

    clock: Clock
    faults: list[Fault] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)
    calls: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    lock: RLock = field(default_factory=RLock)

    def post(self, body: Mapping[str, object]) -> tuple[int, str]:
        """The status and reason with which it answers; 504 stands for no answer in time."""
        with self.lock:
            self.calls += 1
            fault = self.faults.pop(0) if self.faults else None
        match fault:
            case Fault.REFUSES:
                return 422, "refused"
            case Fault.FAILS:
                return 503, "unavailable"
            case Fault.HANGS:
                self.clock.sleep(CALL_SECONDS)
                return 504, "no answer"
            case None:
                return self._taken(body)

    def _taken(self, body: Mapping[str, object]) -> tuple[int, str]:
        if len(json.dumps(body)) > HUD_LIMIT:
            return 413, "too large"
        trusted, callback = _map(body, "trusted"), _map(_map(body, "untrusted"), "callback_payload")
        workflow = _map(callback, "workflow")
        if missing := [name for name in ("job_name", "check_run_id") if not workflow.get(name)]:
            return 400, f"missing {', '.join(missing)}"
        row = _row(trusted, callback, workflow)
        with self.lock:
            before = self.rows.get(row.key)
            queue = row.queue_time if before is None else before.queue_time
            self.rows[row.key] = replace(row, queue_time=queue)
            self.seen[row.key] += 1
        return 200, "stored"


def _row(
    trusted: Mapping[str, object], callback: Mapping[str, object], workflow: Mapping[str, object]
) -> Row:
    metrics = _map(trusted, "ci_metrics")
    level = trusted.get("downstream_repo_level")
    return Row(
        repository=_text(trusted, "verified_repo"),
        delivery_id=_text(callback, "delivery_id"),
        workflow=_text(workflow, "name"),
        job=_text(workflow, "job_name"),
        check_run_id=_text(workflow, "check_run_id"),
        level=level if isinstance(level, int) else 0,
        status=_text(workflow, "status"),
        conclusion=_text(workflow, "conclusion"),
        url=_text(workflow, "url"),
        run_attempt=_text(workflow, "run_attempt"),
        counts=_counts(_map(workflow, "test_results")),
        queue_time=_seconds(metrics, "queue_time"),
        execution_time=_seconds(metrics, "execution_time"),
    )


def _counts(results: Mapping[str, object]) -> Mapping[str, int]:
    """The counts of tests; a missing total is their sum."""
    counts = {name: n for name, n in results.items() if isinstance(n, int)}
    return counts if not counts or "total" in counts else {**counts, "total": sum(counts.values())}


def _map(outer: Mapping[str, object], name: str) -> Mapping[str, object]:
    inner = outer.get(name)
    return inner if isinstance(inner, dict) else {}


def _text(outer: Mapping[str, object], name: str) -> str:
    value = outer.get(name)
    return "" if value is None else str(value)


def _seconds(outer: Mapping[str, object], name: str) -> float | None:
    value = outer.get(name)
    return float(value) if isinstance(value, int | float) else None
