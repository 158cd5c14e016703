"""Upstream's hook at the relay: its checks in their published order, each with its status."""

from __future__ import annotations

import json

import pytest

from tests.ci.relay.world import (
    FOUR,
    ONE,
    OTHER_SHA,
    SECRET,
    SHA,
    THREE,
    TWO,
    body_of,
    callback,
    detail,
    hook_headers,
    pull_request,
    push,
    world,
)

IGNORED = {"ignored": True}
ALL = sorted((ONE, TWO, THREE, FOUR))


@pytest.mark.parametrize("action", ["opened", "reopened", "synchronize", "closed"])
def test_a_pull_request_goes_to_everybody_listed(action: str) -> None:
    made = world()
    payload = pull_request(action)
    answer = made.hook(payload)
    assert answer.status == 200
    assert body_of(answer)["dispatched"] == [{"repo": name} for name in ALL]
    assert [name for name, _ in made.dispatched] == ALL
    sent = made.dispatched[0][1]
    assert sent == {"event_type": "pull_request", "delivery_id": "d-1", "payload": payload}


@pytest.mark.parametrize("ref", ["refs/heads/main", "refs/tags/ciflow/trunk/7"])
def test_every_push_is_forwarded(ref: str) -> None:
    made = world()
    assert made.hook(push(ref), event="push").status == 200
    assert made.dispatched[0][1]["event_type"] == "push"


def test_an_unsupported_event_is_ignored_before_its_signature_is_looked_at() -> None:
    answer = world().relay.webhook({"x-github-event": "issues"}, b"not even JSON")
    assert (answer.status, answer.body) == (200, IGNORED)


def test_a_hook_without_signature_is_refused_before_its_body_is_read() -> None:
    answer = world().relay.webhook({"x-github-event": "push"}, b"not even JSON")
    assert answer.status == 400
    assert "signature" in detail(answer)


@pytest.mark.parametrize(
    "signature", ["sha256=" + "0" * 64, "sha1=abc", "sha256=", "sha256=\u00e9", "nothing"]
)
def test_a_wrong_signature_is_refused_before_the_body_is_read(signature: str) -> None:
    headers = {"x-github-event": "push", "x-hub-signature-256": signature}
    assert world().relay.webhook(headers, b"not even JSON").status == 401


def test_a_signature_is_of_the_bytes_as_they_came() -> None:
    made = world()
    body = json.dumps(pull_request()).encode()
    changed = body.replace(b'"number": 7', b'"number": 8')
    assert changed != body
    assert made.relay.webhook(hook_headers(body, "pull_request"), changed).status == 401
    assert made.dispatched == []


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[" * 100_000, b""])
def test_what_is_no_json_is_refused_once_its_signature_is_right(body: bytes) -> None:
    assert world().relay.webhook(hook_headers(body, "push"), body).status == 400


@pytest.mark.parametrize(
    "payload", [{"repository": {"full_name": "fork/torch"}}, {"repository": 3}, [], None, "text"]
)
def test_other_repositories_are_ignored(payload: object) -> None:
    made = world()
    answer = made.hook(payload, event="push")
    assert (answer.status, answer.body) == (200, IGNORED)
    assert made.dispatched == []


@pytest.mark.parametrize("action", ["edited", "assigned", "synchronized", "", None, 3])
def test_other_actions_are_ignored(action: object) -> None:
    made = world()
    payload = {**pull_request(), "action": action}
    assert made.hook(payload).body == IGNORED
    assert made.dispatched == []


def test_some_dispatches_may_fail() -> None:
    made = world()
    made.unreachable = {ONE, TWO}
    answer = made.hook(pull_request())
    assert answer.status == 200
    assert body_of(answer)["ok"] is True
    assert [entry["repo"] for entry in body_of(answer)["failed"]] == [ONE, TWO]


def test_when_all_fail_the_answer_says_so() -> None:
    made = world()
    made.unreachable = set(ALL)
    assert made.hook(pull_request()).status == 502


def test_a_redelivered_hook_dispatches_again_and_counts_as_failed() -> None:
    made = world()
    assert made.hook(pull_request()).status == 200
    assert made.hook(pull_request()).status == 502
    assert len(made.dispatched) == 2 * len(ALL)


def test_a_store_outage_leaves_a_dispatch_whose_callbacks_are_refused() -> None:
    made = world()
    made.relay.store.states_down = True
    assert made.hook(pull_request()).status == 502
    assert len(made.dispatched) == len(ALL)
    made.relay.store.states_down = False
    answer = made.call(callback())
    assert answer.status == 400
    assert "no matching dispatch" in detail(answer)


def test_github_takes_no_dispatch_over_its_limit() -> None:
    made = world()
    assert made.hook(pull_request(body="x" * 66_000)).status == 502
    assert made.dispatched == []


def test_a_label_shows_what_a_job_of_its_device_has_said_so_far() -> None:
    made = world()
    assert made.hook(pull_request()).status == 200
    assert made.call(callback(), THREE).status == 200
    assert made.relay.checks == []  # the pull request had no label
    labeled = {**pull_request("labeled"), "label": {"name": "ciflow/crcr/abacus"}}
    assert body_of(made.hook(labeled, delivery="d-2"))["created_check_runs"] == [THREE]
    (check,) = made.relay.checks
    assert (check.repository, check.sha, check.status) == (THREE, SHA, "in_progress")
    assert not check.blocking


@pytest.mark.parametrize("label", ["ciflow/crcr/loom", "ciflow/trunk", ""])
def test_other_labels_show_nothing(label: str) -> None:
    made = world()
    made.hook(pull_request())
    made.call(callback(), THREE)
    made.hook({**pull_request("labeled"), "label": {"name": label}}, delivery="d-2")
    assert made.relay.checks == []


@pytest.mark.parametrize("event", ["check_run", "check_suite"])
def test_a_rerun_is_asked_of_those_who_show_on_the_pull_request(event: str) -> None:
    made = world()
    made.hook(pull_request())
    for repository in (TWO, THREE, FOUR):
        claims = {"ref": "refs/heads/main"} if repository == FOUR else {}
        assert made.call(callback(), repository, **claims).status == 200
    asked = {
        "action": "rerequested",
        "repository": {"full_name": made.relay.upstream},
        event: {"head_sha": SHA},
    }
    assert body_of(made.hook(asked, event=event))["rerun"] == [THREE, FOUR]
    assert made.hook({**asked, "action": "created"}, event=event).body == IGNORED
    assert body_of(made.hook({**asked, event: {"head_sha": OTHER_SHA}}, event=event))["rerun"] == []


def test_the_secret_is_in_no_answer() -> None:
    made = world()
    body = json.dumps(pull_request()).encode()
    answers = [made.hook(pull_request()), made.relay.webhook({"x-github-event": "push"}, body)]
    assert all(SECRET.decode() not in json.dumps(dict(a.body)) for a in answers)
