"""What is sent to the relay: built, and checked here first, since a state that is taken stays."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from openspyre.ci.relay.message import InvalidMessage
from openspyre.ci.relay.wire import (
    CONCLUSIONS,
    DELIVERY,
    EVENTS,
    FAILED_TESTS_KEY,
    HUD_LIMIT,
    JOB_NAME,
    NIGHTLY_EVENTS,
    SCHEMA_VERSION,
    SHA,
    State,
    is_address,
)

FAILED_TESTS = 1000
FAILED_LIMITS: Mapping[str, int] = {  # bytes; those of the names are ours
    "name": 1024,
    "classname": 1024,
    "message": 1024,
    "stacktrace": 4096,
}
_AROUND = 4096  # bytes that the relay puts around a callback
_CHECK_RUN = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, slots=True)
class Reporter:
    """Which job reports. Both callbacks of a job carry the same."""

    workflow: str
    url: str
    run_id: int
    run_attempt: int
    job_name: str
    check_run_id: str

    def fields(self) -> Mapping[str, str]:
        return {
            "name": self.workflow,
            "url": self.url,
            "run_id": str(self.run_id),
            "run_attempt": str(self.run_attempt),
            "job_name": self.job_name,
            "check_run_id": self.check_run_id,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """How a job ended. Of `failed_tests`, if any, as many are sent as the dashboard takes."""

    conclusion: str
    results: Mapping[str, int] | None = None
    artifact_url: str = ""
    verdict: Mapping[str, object] | None = None
    failed_tests: Sequence[Mapping[str, object]] = ()


def announcement(
    envelope: Mapping[str, object], reporter: Reporter, now: float
) -> Mapping[str, object]:
    """The callback that says that a job has begun."""
    times = {"started_at": _iso(now), "completed_at": None}
    workflow = {**_head(State.IN_PROGRESS, None), **reporter.fields(), **times}
    return {**envelope, "workflow": workflow}


def completion(
    envelope: Mapping[str, object], reporter: Reporter, report: Report, now: float
) -> Mapping[str, object]:
    """The callback that says how a job has ended."""
    nightly = envelope.get("event_type") in NIGHTLY_EVENTS
    times = {"started_at": _iso(now) if nightly else None, "completed_at": _iso(now)}
    workflow: dict[str, object] = {
        **_head(State.COMPLETED, report.conclusion),
        **reporter.fields(),
        **times,
    }
    if report.results is not None:
        workflow["test_results"] = dict(report.results)
    if report.artifact_url:
        workflow["artifact_url"] = report.artifact_url
    if report.verdict is not None:
        workflow["triage_verdict"] = report.verdict
    if report.failed_tests:
        workflow[FAILED_TESTS_KEY] = []
        room = HUD_LIMIT - _AROUND - forwarded_bytes({**envelope, "workflow": workflow})
        workflow[FAILED_TESTS_KEY] = list(_fitting(report.failed_tests, room))
    return {**envelope, "workflow": workflow}


def forwarded_bytes(body: object) -> int:
    """The length of a callback at the dashboard: the relay reads it and writes it anew."""
    return len(json.dumps(body))


def nightly_envelope(upstream: str, sha: str, event: str) -> Mapping[str, object]:
    """What stands for a dispatch where a downstream tests a commit by itself."""
    payload = {"repository": {"full_name": upstream}, "head_sha": sha}
    return {"event_type": event, "delivery_id": sha, "payload": payload}


def encoded(body: Mapping[str, object]) -> bytes:
    """The bytes of a callback that the relay and the dashboard can take.

    Raises:
        InvalidMessage: they would refuse it, perhaps after its state is taken.
    """
    raw = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    found = [*problems(body)]
    if (size := forwarded_bytes(body)) + _AROUND > HUD_LIMIT:
        found.append(f"it has {size} bytes, more than {HUD_LIMIT - _AROUND}")
    if found:
        raise InvalidMessage("the callback would be refused, so it is not sent", why=found[0])
    return raw


def problems(body: Mapping[str, object]) -> Iterator[str]:
    """Why the relay or the dashboard would refuse a callback; nothing where they take it."""
    workflow = body.get("workflow")
    if not isinstance(workflow, Mapping):
        yield "it has no workflow"
        return
    event, delivery = body.get("event_type"), str(body.get("delivery_id", ""))
    if event not in (*EVENTS, *NIGHTLY_EVENTS):
        yield "its event_type is unknown"
    if not DELIVERY.fullmatch(delivery):
        yield "its delivery_id is none"
    status, ended = workflow.get("status"), workflow.get("status") == State.COMPLETED
    if event in NIGHTLY_EVENTS and not (ended and SHA.fullmatch(delivery)):
        yield "a nightly callback is completed, and its delivery_id a commit"
    if status not in (State.IN_PROGRESS, State.COMPLETED):
        yield "its status is unknown"
    if (workflow.get("conclusion") in CONCLUSIONS) != ended or (
        not ended and workflow.get("conclusion") is not None
    ):
        yield f"its conclusion is none of {', '.join(CONCLUSIONS)}, or comes before the end"
    yield from _unnamed(workflow)


def _unnamed(workflow: Mapping[str, object]) -> Iterator[str]:
    for name in ("run_id", "run_attempt"):
        text = str(workflow.get(name, ""))
        if not (text.isascii() and text.isdecimal() and int(text[:20]) > 0 and len(text) <= 20):
            yield f"its {name} is no number above 0"
    if not str(workflow.get("name") or "").strip() or len(str(workflow["name"])) > 200:
        yield "its name is empty, or longer than 200 characters"
    if not JOB_NAME.fullmatch(str(workflow.get("job_name") or "")):
        yield "its job_name is none: letters, digits, blanks and ._()/,- up to 128"
    if not _CHECK_RUN.fullmatch(str(workflow.get("check_run_id") or "")):
        yield "its check_run_id is none"
    for name in ("url", "artifact_url"):
        if name in workflow and not is_address(str(workflow[name])):
            yield f"its {name} is no http(s) address"


def _head(status: State, conclusion: str | None) -> Mapping[str, object]:
    return {"schema_version": SCHEMA_VERSION, "status": str(status), "conclusion": conclusion}


def _fitting(tests: Sequence[Mapping[str, object]], room: int) -> Iterator[Mapping[str, object]]:
    for test in tests[:FAILED_TESTS]:
        cut = _cut(test)
        room -= forwarded_bytes(cut) + len(", ")
        if room < 0:
            return
        yield cut


def _cut(test: Mapping[str, object]) -> Mapping[str, object]:
    texts = {
        name: str(test[name]).encode(errors="replace")[:limit].decode(errors="ignore")
        for name, limit in FAILED_LIMITS.items()
        if name in test
    }
    duration = test.get("duration")
    timed = isinstance(duration, int | float) and not isinstance(duration, bool)
    return {**texts, "duration": duration} if timed else texts


def _iso(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
