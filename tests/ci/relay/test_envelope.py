"""A dispatch is read strictly, and nothing of it that a stranger chose gets any further."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openspyre.ci.relay.envelope import read_envelope
from openspyre.ci.relay.message import InvalidMessage
from openspyre.ci.relay.receive import decision, outputs
from tests.ci.relay.world import SHA, UP, envelope, pull_request, push

HOSTILE = (
    "$(touch /tmp/x)",
    "`id`",
    "; rm -rf / #",
    "a\nstep=run",
    "a\r\nb",
    "::set-output name=step::run",
    "${{ secrets.TOKEN }}",
    "../../etc/passwd",
    "-upload-pack=x",
    "main..other",
    "\u202emain",
    "m\u0430in",  # a Cyrillic letter
    "\ud800",
    "main\x00",
    "'\"",
    "",
    " ",
    "x" * 300,
)


def read(message: object) -> Any:
    return read_envelope(json.dumps(message).encode(), UP)


def test_a_pull_request() -> None:
    payload = pull_request("synchronize", labels=[{"name": "module: nn"}, {"name": "Merged"}])
    found = read(envelope(payload))
    job = found.job
    assert (job.delivery_id, job.kind, job.repository) == ("d-1", "pull_request", UP)
    assert (job.pr, job.sha, job.base_ref, job.action) == (7, SHA, "main", "synchronize")
    assert job.labels == ("module: nn", "Merged")
    assert job.updated == 1_796_040_000.0
    assert job.concurrency == "pr-7"
    assert found.fields == envelope(payload)


def test_a_push() -> None:
    job = read(envelope(push("refs/heads/release/2.13"), "push")).job
    assert (job.kind, job.pr, job.sha, job.base_ref) == (
        *("push", None, SHA),
        "refs/heads/release/2.13",
    )
    assert job.concurrency == "push-refs/heads/release/2.13"


def test_the_event_of_github_holds_the_dispatch() -> None:
    event = {"action": "push", "client_payload": envelope(push(), "push"), "sender": {}}
    assert read(event).job.kind == "push"


def test_the_other_spelling_of_an_action_is_taken() -> None:
    assert read(envelope(pull_request("synchronized"))).job.action == "synchronize"


@pytest.mark.parametrize("missing", ["event_type", "delivery_id", "payload"])
def test_each_field_must_be_there(missing: str) -> None:
    message = envelope(pull_request())
    del message[missing]
    with pytest.raises(InvalidMessage, match=f"it has no {missing}"):
        read(message)


def test_no_other_field_may_be_there() -> None:
    with pytest.raises(InvalidMessage, match="1 other fields"):
        read({**envelope(pull_request()), "workflow": {}})


WRONG: tuple[object, ...] = (None, True, 0, -1, 1.5, [], {}, [[]], "", "x", {"sha": {}})
PLACES = (
    ("event_type",),
    ("delivery_id",),
    ("payload",),
    ("payload", "action"),
    ("payload", "repository"),
    ("payload", "repository", "full_name"),
    ("payload", "pull_request"),
    ("payload", "pull_request", "number"),
    ("payload", "pull_request", "head"),
    ("payload", "pull_request", "head", "sha"),
    ("payload", "pull_request", "base"),
    ("payload", "pull_request", "base", "ref"),
)


@pytest.mark.parametrize("place", PLACES, ids=".".join)
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_a_value_of_another_type_is_refused(place: tuple[str, ...], wrong: object) -> None:
    message: Any = envelope(pull_request())
    holder = message
    for name in place[:-1]:
        holder = holder[name]
    holder[place[-1]] = wrong
    if wrong == "x" and place[-1] in ("ref", "delivery_id"):
        read(message)
        return
    with pytest.raises(InvalidMessage):
        read(message)


@pytest.mark.parametrize("labels", ["x", {}, [1], [{}], [{"name": 1}], [{"name": ""}], [[]] * 201])
def test_labels_have_names(labels: object) -> None:
    with pytest.raises(InvalidMessage):
        read(envelope(pull_request(labels=labels)))


@pytest.mark.parametrize(
    "sha", [SHA[:39], SHA + "0", SHA.upper(), "g" * 40, SHA[:39] + "\n", SHA + "\n", "HEAD"]
)
def test_a_commit_is_40_hex_digits(sha: str) -> None:
    with pytest.raises(InvalidMessage, match="40 hex digits"):
        read(envelope(pull_request(head={"sha": sha})))
    with pytest.raises(InvalidMessage, match="40 hex digits"):
        read(envelope(push(after=sha), "push"))


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_hostile_branches_are_refused(text: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        read(envelope(pull_request(base={"ref": text})))
    assert len(text) < 2 or text not in str(refused.value)


@pytest.mark.parametrize("text", [t for t in HOSTILE if t != "main..other"], ids=ascii)
def test_hostile_deliveries_are_refused(text: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        read(envelope(pull_request(), delivery=text))
    assert len(text) < 2 or text not in str(refused.value)


@pytest.mark.parametrize("text", HOSTILE[:-1], ids=ascii)
def test_a_push_to_a_hostile_name_leads_to_nothing(text: str) -> None:
    if not text:
        return
    job = read(envelope(push(f"refs/heads/{text}"), "push")).job
    assert job.base_ref == ""
    assert decision(job, frozenset({"main", text})).step == "ignore"


def test_a_push_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="contradict"):
        read(envelope(push(deleted=True), "push"))
    with pytest.raises(InvalidMessage, match="contradict"):
        read(envelope(push(after="0" * 40), "push"))


def test_another_repository_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="another repository"):
        read_envelope(json.dumps(envelope(pull_request())).encode(), "other/torch")


DEEP = b'{"event_type":' + b"[" * 70 + b"]" * 70 + b"}"


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b'{"a": "\xc3"}', "not UTF-8"),
        (b'{"event_type": NaN}', "NaN is not JSON"),
        (b'{"payload": [1e999]}', "a number is too large"),
        (b'{"event_type": -Infinity}', "-Infinity is not JSON"),
        (b'{"event_type": "push", "event_type": "push"}', "one key twice"),
        (b'{"event_type": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"[" * 200_000, "nested too deep"),
        (b'{"a":' * 200_000, "nested too deep"),
        (DEEP, "nested too deep"),
        (b" " * (4 * 1024 * 1024 + 1), "too long"),
        (b"[]", "an array, not an object"),
        (b"null", "null, not an object"),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_what_is_no_message_is_refused(raw: bytes, why: str) -> None:
    with pytest.raises(InvalidMessage, match=why):
        read_envelope(raw, UP)


def test_lone_surrogates_and_wide_strings_go_back_as_they_came() -> None:
    message = envelope(pull_request(title="\ud800", body="x" * 60_000))
    assert json.loads(json.dumps(read(message).fields)) == message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from((*PLACES, ("payload", "pull_request", "labels"), ("payload", "ref"))),
    json_values,
    st.sampled_from(("pull_request", "push")),
)
def test_any_value_anywhere_is_read_or_refused(
    place: tuple[str, ...], value: object, event: str
) -> None:
    message: Any = envelope({**pull_request(), **push()}, event)
    holder = message
    for name in place[:-1]:
        holder = holder[name]
    holder[place[-1]] = value
    try:
        job = read(message).job
    except InvalidMessage:
        return
    safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+/-"
    for text in outputs(job, decision(job, frozenset({"main"}))).values():
        assert set(text) <= set(safe)
        assert not text.startswith("-")
