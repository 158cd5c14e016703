"""A relay stub with a clock that tests move, and what upstream and a downstream send to it."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa

from openspyre.ci.relay.allowlist import read_allowlist
from openspyre.ci.relay.stub.clock import SetClock
from openspyre.ci.relay.stub.hud import Fault, Hud
from openspyre.ci.relay.stub.identity import Issuer, Verifier
from openspyre.ci.relay.stub.relay import Answer, NotDispatched, Relay
from openspyre.ci.relay.stub.store import Store
from openspyre.ci.relay.wire import BUILDKITE_ISSUER

UP = "upstream/torch"
ONE, TWO, THREE, FOUR = "down/one", "down/two", "down/three", "down/four"
ALLOWLIST = f"""
L1: [{ONE}]
L2: [{{{TWO}: "ann, bob"}}]
L3: {{abacus: {{{THREE}: [cy]}}}}
L4: [{FOUR}]
"""
SECRET = b"between upstream and its relay"
SHA = "0123456789abcdef0123456789abcdef01234567"
OTHER_SHA = "f" * 40
START = 1_800_000_000.0


@cache
def key(name: str) -> rsa.RSAPrivateKey:
    """A key that lasts as long as the tests: making one takes a while."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclass(slots=True)
class World:
    """A stub. `unreachable` are repositories whose dispatch GitHub does not take."""

    clock: SetClock
    issuer: Issuer
    pipelines: Issuer
    relay: Relay
    dispatched: list[tuple[str, dict[str, Any]]]
    unreachable: set[str] = field(default_factory=set)

    @property
    def hud(self) -> Hud:
        return self.relay.hud

    def hook(
        self, payload: object, *, event: str = "pull_request", delivery: str = "d-1"
    ) -> Answer:
        """Upstream's hook, well signed."""
        body = json.dumps(payload).encode()
        return self.relay.webhook(hook_headers(body, event, delivery), body)

    def call(self, body: object, repository: str = TWO, /, **claims: object) -> Answer:
        """A downstream's callback, with its token."""
        headers = {"authorization": f"Bearer {self.issuer.token(repository, **claims)}"}
        return self.relay.callback(headers, json.dumps(body).encode())


def world(*, allowlist: str = ALLOWLIST, faults: tuple[Fault, ...] = ()) -> World:
    clock = SetClock(START)
    issuer = Issuer(clock, key=key("github"))
    pipelines = Issuer(clock, name=BUILDKITE_ISSUER, key=key("buildkite"))
    dispatched: list[tuple[str, dict[str, Any]]] = []
    relay = Relay(
        upstream=UP,
        secret=SECRET,
        allowlist=read_allowlist(allowlist),
        verifier=Verifier(
            clock,
            {issuer.name: issuer.jwks(), pipelines.name: pipelines.jwks()},
            pipelines={"org/known": TWO},
            required={FOUR: {"ref": "refs/heads/main"}},
        ),
        hud=Hud(clock, list(faults)),
        store=Store(clock),
        clock=clock,
        dispatch=lambda repository, raw: _dispatch(made, repository, raw),
    )
    made = World(clock, issuer, pipelines, relay, dispatched)
    return made


def _dispatch(made: World, repository: str, raw: bytes) -> None:
    if repository in made.unreachable:
        raise NotDispatched("404")
    made.dispatched.append((repository, json.loads(raw)))


def hook_headers(body: bytes, event: str, delivery: str = "d-1") -> dict[str, str]:
    return {
        "x-github-event": event,
        "x-github-delivery": delivery,
        "x-hub-signature-256": "sha256=" + hmac.new(SECRET, body, hashlib.sha256).hexdigest(),
    }


def pull_request(action: str = "opened", **changes: Any) -> dict[str, Any]:
    """The payload of a hook; changes are to its pull request."""
    pull: dict[str, Any] = {
        "number": 7,
        "head": {"sha": SHA, "repo": {"full_name": "somebody/torch"}},
        "base": {"ref": "main"},
        "labels": [],
        "updated_at": "2026-11-30T12:00:00Z",
        "merged": False,
        "title": "`$(touch /tmp/x)`; ::set-output name=step::run",
    }
    return {"action": action, "repository": {"full_name": UP}, "pull_request": {**pull, **changes}}


def push(ref: str = "refs/heads/main", after: str = SHA, deleted: bool = False) -> dict[str, Any]:
    return {"ref": ref, "after": after, "deleted": deleted, "repository": {"full_name": UP}}


def envelope(
    payload: object, event: str = "pull_request", delivery: str = "d-1"
) -> dict[str, object]:
    return {"event_type": event, "delivery_id": delivery, "payload": payload}


def workflow(status: str = "in_progress", **changes: object) -> dict[str, object]:
    done = status == "completed"
    said: dict[str, object] = {
        "schema_version": "1",
        "status": status,
        "conclusion": "success" if done else None,
        "name": "upstream",
        "url": "https://example.org/run/5",
        "run_id": "5",
        "run_attempt": "1",
        "job_name": "leg",
        "check_run_id": "55",
        "started_at": None if done else "2026-11-30T12:00:00Z",
        "completed_at": "2026-11-30T12:00:00Z" if done else None,
    }
    return {name: value for name, value in {**said, **changes}.items() if value is not ...}


def callback(
    status: str = "in_progress", *, delivery: str = "d-1", payload: object = None, **changes: object
) -> dict[str, object]:
    """A callback's body; `...` as a change leaves the field out."""
    sent = envelope(payload or pull_request(), delivery=delivery)
    return {**sent, "workflow": workflow(status, **changes)}


def detail(answer: Answer) -> str:
    return str(dict[str, object](answer.body).get("detail"))


def body_of(answer: Answer) -> Mapping[str, Any]:
    return answer.body
