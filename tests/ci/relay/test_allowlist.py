"""The allowlist as the relay reads it."""

from __future__ import annotations

import pytest

from openspyre.ci.relay.allowlist import read_allowlist
from openspyre.ci.relay.message import InvalidMessage
from openspyre.ci.relay.wire import Level
from tests.ci.relay.world import ALLOWLIST, FOUR, ONE, THREE, TWO


def test_levels_devices_and_people() -> None:
    listed = read_allowlist(ALLOWLIST)
    levels = {ONE: Level.L1, TWO: Level.L2, THREE: Level.L3, FOUR: Level.L4}
    assert listed.levels == levels
    assert listed.level("no/body") is None
    assert listed.of_device("abacus") == (THREE,)
    assert listed.oncalls[TWO] == ("ann", "bob")
    assert listed.oncalls[THREE] == ("cy",)


def test_who_shows_on_a_pull_request() -> None:
    listed = read_allowlist(ALLOWLIST)
    label = frozenset({"ciflow/crcr/abacus"})
    assert [listed.checks(repo, label) for repo in (ONE, TWO, THREE, FOUR)] == [
        *(False, False),
        *(True, True),
    ]
    assert not listed.checks(THREE, frozenset({"ciflow/crcr/loom"}))
    assert listed.checks(FOUR, frozenset())


@pytest.mark.parametrize("text", ["", "{}", "L1:", "L5: [a/b]", "L1: []\nL3: {}"])
def test_nobody_may_be_listed(text: str) -> None:
    assert read_allowlist(text).levels == {}


def test_the_form_of_the_document_and_newer_keys_are_taken() -> None:
    listed = read_allowlist("L3: [a/b, {c/d: [x]}]\nL2: [{e/f: {nightly_only: true}}]\nnew: 3")
    assert listed.levels == {"a/b": Level.L3, "c/d": Level.L3, "e/f": Level.L2}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("L1: [nobody]", "not owner/name"),
        ("L1: ['a/b; rm']", "not owner/name"),
        ("L1: [a/b]\nL4: [a/b]", "listed twice"),
        ("L1: [a/b, a/b]", "listed twice"),
        ("L3: {x: {a/b: []}, y: {a/b: []}}", "listed twice"),
        ("L3: {x: {a/b: [], a/b: []}}", "a key twice"),
        ("L1: [{a/b: x, c/d: y}]", "2 keys"),
        ("L1: [{}]", "0 keys"),
        ("L1: {a/b: x}", "no list"),
        ("L1: a/b", "no list"),
        ("L1: [3]", "neither a repository nor a map"),
        ("L1: [[a/b]]", "neither a repository nor a map"),
        ("L3: {x: [a/b]}", "no map from devices"),
        ("L3: {3: {a/b: []}}", "no map from devices"),
        ("L2: [{a/b: 3}]", "on call"),
        ("L2: [{a/b: [3]}]", "on call"),
        ("[]", "no map of levels"),
        ("text", "no map of levels"),
        ("{", "not YAML"),
        ("L1: !!python/object/apply:os.system ['true']", "not YAML"),
        ("[" * 700, "not YAML"),
        ("#" * (1024 * 1024 + 1), "more than"),
    ],
    ids=lambda value: value[:30],
)
def test_what_is_no_allowlist_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidMessage, match=why):
        read_allowlist(text)
