"""What the relay answers: its checks in their published order, each with its status code."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from openspyre.ci.relay.allowlist import Allowlist
from openspyre.ci.relay.stub.clock import Clock
from openspyre.ci.relay.stub.hud import Hud
from openspyre.ci.relay.stub.identity import Refused, Verifier
from openspyre.ci.relay.stub.store import Down, IllegalStep, Key, Record, Store
from openspyre.ci.relay.wire import DISPATCH_LIMIT, LABEL_PREFIXES, NIGHTLY_EVENTS, Level, State

HOOKS = ("pull_request", "push", "check_run", "check_suite")
FORWARDED_ACTIONS = ("opened", "reopened", "synchronize", "closed")
HUD_PAUSES = (1.0, 2.0, 4.0)  # between tries at a dashboard that fails


class NotDispatched(Exception):
    """GitHub did not take a dispatch."""


class _Stop(Exception):
    def __init__(self, status: int, detail: object) -> None:
        self.status, self.detail = status, detail
        super().__init__(status)


@dataclass(frozen=True, slots=True)
class Answer:
    """A status code, and a JSON object."""

    status: int
    body: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Check:
    """A check run on an upstream pull request; `blocking` for L4."""

    repository: str
    workflow: str
    sha: str
    status: str
    conclusion: object
    blocking: bool


Dispatch = Callable[[str, bytes], None]  # repository, client_payload; raises NotDispatched
_IGNORED = Answer(200, {"ignored": True})
_TRIPPED = Answer(500, {"detail": "Internal server error"})


@dataclass(slots=True)
class Relay:
    """The relay. Headers have lower-case names.

    Attributes:
        upstream: owner/name, whose hooks are forwarded.
        secret: with which upstream signs its hooks.
        jobs: by commit and repository, what L3 and up have reported last.
        checks: what shows on upstream's pull requests, oldest first.
        reruns: repository and commit of each job that somebody asked to run again.
    """

    upstream: str
    secret: bytes
    allowlist: Allowlist
    verifier: Verifier
    hud: Hud
    store: Store
    clock: Clock
    dispatch: Dispatch
    jobs: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    reruns: list[tuple[str, str]] = field(default_factory=list)

    # --- from upstream ------------------------------------------------------------------------

    def webhook(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """The answer to a hook of upstream."""
        event = headers.get("x-github-event", "")
        if event not in HOOKS:
            return _IGNORED
        try:
            self._verify_signature(headers.get("x-hub-signature-256", ""), body)
            payload = _parsed(body)
            if _map(payload, "repository").get("full_name") != self.upstream:
                return _IGNORED
            return self._handled(event, headers.get("x-github-delivery", ""), payload)
        except _Stop as stop:
            return Answer(stop.status, {"detail": stop.detail})
        except RecursionError:  # nested so deep that it can be read, and not written again
            return _TRIPPED

    def _verify_signature(self, signature: str, body: bytes) -> None:
        if not signature:
            raise _Stop(400, "Missing signature")
        right = "sha256=" + hmac.new(self.secret, body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(right.encode(), signature.encode()):
            raise _Stop(401, "Bad signature")

    def _handled(self, event: str, delivery: str, payload: object) -> Answer:
        action = _map({"": payload}, "").get("action")
        match event:
            case "check_run" | "check_suite":
                return self._rerun(event, payload) if action == "rerequested" else _IGNORED
            case "pull_request" if action == "labeled":
                return self._labeled(payload)
            case "pull_request" if action not in FORWARDED_ACTIONS:
                return _IGNORED
            case _:
                return self._dispatched(event, delivery, payload)

    def _dispatched(self, event: str, delivery: str, payload: object) -> Answer:
        message = {"event_type": event, "delivery_id": delivery, "payload": payload}
        raw = json.dumps(message, separators=(",", ":")).encode()
        done: list[dict[str, str]] = []
        failed: list[dict[str, str]] = []
        for repository in sorted(self.allowlist.levels):
            try:
                if len(raw) > DISPATCH_LIMIT:
                    raise NotDispatched(f"client_payload has {len(raw)} bytes")
                self.dispatch(repository, raw)  # before the state is stored, as the relay does
                self.store.step(Key(delivery, repository), State.DISPATCHED)
                done.append({"repo": repository})
            except (NotDispatched, IllegalStep, Down) as error:
                why = f"GitHub dispatch failed: {error}"
                failed.append({"repo": repository, "error": why})
        if failed and not done:
            detail = {"message": "No downstream dispatch succeeded", "failed": failed}
            raise _Stop(502, detail)
        return Answer(200, {"ok": True, "dispatched": done, "failed": failed})

    def _labeled(self, payload: object) -> Answer:
        name = str(_map(payload, "label").get("name", ""))
        prefix = next((prefix for prefix in LABEL_PREFIXES if name.startswith(prefix)), None)
        if prefix is None:
            return _IGNORED
        sha = str(_map(_map(payload, "pull_request"), "head").get("sha", ""))
        created = []
        for repository in self.allowlist.of_device(name.removeprefix(prefix)):
            if job := self.jobs.get((sha, repository)):
                self._check(repository, sha, job)
                created.append(repository)
        return Answer(200, {"ok": True, "created_check_runs": created})

    def _rerun(self, event: str, payload: object) -> Answer:
        sha = str(_map(payload, event).get("head_sha", ""))
        known = [repository for (commit, repository) in self.jobs if commit == sha]
        self.reruns += [(repository, sha) for repository in known]
        return Answer(200, {"ok": True, "rerun": known})

    # --- from downstream ----------------------------------------------------------------------

    def callback(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """The answer to a callback of a downstream."""
        try:
            message = _parsed(body or b"{}")
            try:
                repository = self.verifier.repository(headers.get("authorization", ""))
            except Refused as refused:
                raise _Stop(refused.status, str(refused)) from None
            level = self.allowlist.level(repository)
            if level is None or level < Level.L2:
                return Answer(200, {"ok": True, "status": "ignored"})
            self._admit(repository)
            if _map({"": message}, "").get("event_type") in NIGHTLY_EVENTS:
                return self._nightly(repository, level, message)
            return self._reported(repository, level, message)
        except _Stop as stop:
            return Answer(stop.status, {"detail": stop.detail})
        except RecursionError:
            return _TRIPPED

    def _admit(self, repository: str) -> None:
        try:
            admitted = self.store.admitted(repository)
        except Down:
            raise _Stop(500, "rate limit check failed") from None
        if not admitted:
            raise _Stop(429, f"rate limit exceeded for {repository}")

    def _nightly(self, repository: str, level: Level, message: Any) -> Answer:
        if _map(message, "workflow").get("status") != State.COMPLETED:
            raise _Stop(400, "nightly callbacks must have status 'completed'")
        self._forward(repository, level, message, {"queue_time": None, "execution_time": None})
        return Answer(200, {"ok": True, "status": str(State.COMPLETED)})

    def _reported(self, repository: str, level: Level, message: Any) -> Answer:
        key, status, workflow = _read_callback(repository, message)
        dispatched = self.store.state(key.dispatch())
        if dispatched is None:
            raise _Stop(400, "callback rejected: no matching dispatch record")
        if status not in (State.IN_PROGRESS, State.COMPLETED):
            raise _Stop(400, f"unknown callback status: {status!s:.80}")
        before = self.store.state(key)
        after = self._step(key, State(str(status)), message)
        if level >= Level.L3:
            self._note(repository, message, workflow)
        self._forward(repository, level, message, _metrics(dispatched, before, after))
        return Answer(200, {"ok": True, "status": status})

    def _step(self, key: Key, state: State, message: object) -> Record:
        try:
            return self.store.step(key, state, message if state is State.IN_PROGRESS else None)
        except IllegalStep as illegal:
            raise _Stop(400, f"callback rejected: {illegal}") from None
        except Down:
            raise _Stop(503, "failed to persist callback state") from None

    def _note(self, repository: str, message: object, workflow: Mapping[str, Any]) -> None:
        pull = _map(_map(message, "payload"), "pull_request")
        sha = str(_map(pull, "head").get("sha", ""))
        self.jobs[sha, repository] = job = dict(workflow)
        listed = pull.get("labels")
        labels = listed if isinstance(listed, list) else []
        names = frozenset(str(_map({"": label}, "").get("name", "")) for label in labels)
        if self.allowlist.checks(repository, names):
            self._check(repository, sha, job)

    def _check(self, repository: str, sha: str, job: Mapping[str, Any]) -> None:
        blocking = self.allowlist.level(repository) is Level.L4
        name, status = str(job.get("name", "")), str(job.get("status", ""))
        check = Check(repository, name, sha, status, job.get("conclusion"), blocking)
        self.checks.append(check)

    def _forward(
        self, repository: str, level: Level, message: object, metrics: Mapping[str, float | None]
    ) -> None:
        trusted = {
            "verified_repo": repository,
            "downstream_repo_level": int(level),
            "ci_metrics": metrics,
        }
        body = {"trusted": trusted, "untrusted": {"callback_payload": message}}
        for pause in (*HUD_PAUSES, None):
            status, reason = self.hud.post(body)
            if status < 300:
                return
            if status < 500:
                raise _Stop(status, f"HUD rejected callback: HTTP {status}: {reason}")
            if pause is not None:
                self.clock.sleep(pause)
        raise _Stop(500, "HUD forward failed")

    def sweep(self) -> int:
        """Ends the jobs that are in progress for too long, and tells the dashboard; how many."""
        swept = 0
        for key, record in self.store.zombies():
            swept += 1
            level = self.allowlist.level(key.repository)
            if isinstance(record.told, dict) and level is not None:
                ended = {"status": "completed", "conclusion": "timed_out"}
                told = {**record.told, "workflow": {**_map(record.told, "workflow"), **ended}}
                took = self.clock.now() - record.since
                try:
                    metrics = {"queue_time": None, "execution_time": took}
                    self._forward(key.repository, level, told, metrics)
                except _Stop:
                    continue  # the state has ended all the same
        return swept


def _read_callback(repository: str, message: Any) -> tuple[Key, object, Mapping[str, Any]]:
    try:
        delivery, workflow = message["delivery_id"], message["workflow"]
        status, run_id = workflow["status"], workflow["run_id"]
        workflow["name"]
        key = Key(
            *(str(delivery), repository, int(run_id), int(workflow.get("run_attempt", 1))),
            job_name=str(workflow.get("job_name") or ""),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise _Stop(400, f"callback body missing required field: {error}") from None
    except (ValueError, OverflowError):  # the relay does not catch a run_id that is no number
        raise _Stop(500, "Internal server error") from None
    return key, status, workflow


def _metrics(dispatched: Record, before: Record | None, after: Record) -> dict[str, float | None]:
    queue = took = None
    if after.state is State.IN_PROGRESS:
        queue = max(0.0, round(after.since - dispatched.since, 3))
    elif before is not None:
        took = max(0.0, round(after.since - before.since, 3))
    return {"queue_time": queue, "execution_time": took}


def _parsed(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise _Stop(400, "Invalid JSON body") from None


def _map(outer: object, name: str) -> Mapping[str, Any]:
    inner = outer.get(name) if isinstance(outer, Mapping) else None
    return inner if isinstance(inner, dict) else {}
