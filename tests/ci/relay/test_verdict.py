"""Why a run failed: what the relay would cut is cut here, what it would drop is not sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openspyre.ci.relay.message import InvalidMessage
from openspyre.ci.relay.verdict import read_verdict


def verdict(**changes: object) -> dict[str, object]:
    said: dict[str, object] = {
        "schema_version": 1,
        "category": "upstream",
        "confidence": "high",
        "summary": "a rename",
        **changes,
    }
    return {name: value for name, value in said.items() if value is not ...}


def read(said: object) -> Any:
    return read_verdict(json.dumps(said).encode())


def test_a_whole_verdict_comes_back() -> None:
    said = verdict(
        suspected_upstream={"pr": 7, "commit": "ABCDEF0", "reason": "renamed"},
        evidence=[{"job": "j", "test": "t", "excerpt": "e", "log_url": "https://x.org/l#1"}],
        reproduced_on_retry=False,
        analyzer={"name": "n", "version": "1", "model": "m", "prompt_version": "p"},
        analyzed_at="2026-11-30T12:00:00Z",
    )
    assert read(said) == said


def test_the_least_comes_back() -> None:
    assert read(verdict()) == verdict()
    assert read(verdict(schema_version="1")) == verdict()


def test_unknown_and_empty_fields_are_left_out() -> None:
    said = verdict(new=1, analyzer={"x": 1}, evidence=[{"x": 2}], suspected_upstream=None)
    assert read(said) == verdict()


def test_what_is_too_long_is_cut() -> None:
    said = verdict(
        summary=" s" * 900,
        suspected_upstream={"pr": 1, "reason": "r" * 301},
        evidence=[{"job": "j" * 201, "excerpt": "e" * 1001, "log_url": "https://x/" + "u" * 500}]
        + [{"job": "k"}] * 10,
        analyzer={"name": "n" * 201},
    )
    found = read(said)
    assert len(found["summary"]) == 1000
    assert len(found["suspected_upstream"]["reason"]) == 300
    assert len(found["evidence"]) == 10
    first = found["evidence"][0]
    assert [len(first[name]) for name in ("job", "excerpt", "log_url")] == [200, 1000, 500]
    assert len(found["analyzer"]["name"]) == 200


@pytest.mark.parametrize(
    "changes",
    [
        {"schema_version": ...},
        {"schema_version": 2},
        {"schema_version": True},
        {"schema_version": 1.0},
        {"category": "us"},
        {"category": ["upstream"]},
        {"category": ...},
        {"confidence": "certain"},
        {"summary": ""},
        {"summary": "  "},
        {"summary": 3},
        {"summary": ...},
        {"category": "backend", "suspected_upstream": {"pr": 7}},
        {"suspected_upstream": {}},
        {"suspected_upstream": {"reason": "r"}},
        {"suspected_upstream": {"pr": 0}},
        {"suspected_upstream": {"pr": True}},
        {"suspected_upstream": {"commit": "abc"}},
        {"suspected_upstream": {"commit": "g" * 40}},
        {"suspected_upstream": {"commit": "a" * 41}},
        {"suspected_upstream": []},
        {"evidence": {}},
        {"evidence": ["x"]},
        {"evidence": [{"job": ""}]},
        {"reproduced_on_retry": "no"},
        {"analyzer": []},
        {"analyzer": {"name": 1}},
        {"analyzed_at": "yesterday"},
        {"analyzed_at": 3},
        {"padding": "x" * (16 * 1024)},
    ],
    ids=lambda changes: json.dumps(changes, default=lambda _: "missing")[:60],
)
def test_what_is_wrong_drops_all_of_it(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidMessage):
        read(verdict(**changes))


@pytest.mark.parametrize(
    "link",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "/relative",
        "https://",
        "https://github.com@evil.org/",
        "https://x.org/a b",
        "https://x.org/a\u2028b",
        "https://x.org/a\x00b",
        "https://[x",
        "ftp://x.org",
        "",
    ],
    ids=ascii,
)
def test_a_link_is_a_plain_address(link: str) -> None:
    with pytest.raises(InvalidMessage):
        read(verdict(evidence=[{"log_url": link}]))


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_message_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidMessage):
        read_verdict(raw)
