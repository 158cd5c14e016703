"""Whatever is sent to the stub, it answers with one of the published status codes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ci.relay.world import TWO, callback, hook_headers, pull_request, world

PUBLISHED = {200, 400, 401, 403, 413, 422, 429, 500, 502, 503}
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
WORKFLOW = ("status", "run_id", "run_attempt", "name", "job_name", "check_run_id", "test_results")
PAYLOAD = ("action", "repository", "pull_request", "label", "check_run")


@settings(max_examples=100, deadline=None)
@given(st.sampled_from((*WORKFLOW, "workflow", "delivery_id", "event_type", "payload")), values)
def test_any_callback_is_answered(place: str, value: object) -> None:
    made = world()
    made.hook(pull_request())
    body: Any = callback()
    (body["workflow"] if place in WORKFLOW else body)[place] = value
    assert made.call(body).status in PUBLISHED
    assert made.call(callback("completed", job_name="other")).status == 400


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(PAYLOAD), values, st.sampled_from(("pull_request", "push", "check_run")))
def test_any_hook_is_answered(place: str, value: object, event: str) -> None:
    made = world()
    payload = {**pull_request(), place: value}
    assert made.hook(payload, event=event).status in PUBLISHED


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_answered(raw: bytes) -> None:
    made = world()
    token = {"authorization": made.issuer.token(TWO)}
    assert made.relay.callback(token, raw).status in PUBLISHED
    assert made.relay.webhook(hook_headers(raw, "push"), raw).status in PUBLISHED
    text = raw.decode("latin-1")
    assert made.relay.callback({"authorization": text}, b"{}").status == 401


@pytest.mark.parametrize("depth", [100, 900, 950, 990, 2000])
def test_any_depth_is_answered(depth: int) -> None:
    made = world()
    made.hook(pull_request())
    deep = b'{"x":' * depth + b"1" + b"}" * depth
    headers = {"authorization": made.issuer.token(TWO)}
    for place in (b'"payload": {}', b'"name": "upstream"'):
        plain = json.dumps({**callback(), "payload": {}}).encode()
        assert place in plain
        body = plain.replace(place, place.split(b":")[0] + b": " + deep)
        assert made.relay.callback(headers, body).status in PUBLISHED
    hook = json.dumps(pull_request()).encode().replace(b'"number": 7', b'"number": ' + deep)
    assert made.relay.webhook(hook_headers(hook, "pull_request", "d-2"), hook).status in PUBLISHED
