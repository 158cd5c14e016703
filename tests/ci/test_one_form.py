"""`config fmt` on everything that the schema allows: idempotent, and nothing is lost."""

from __future__ import annotations

import datetime
import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from openspyre.ci.native.identity import Identity, value_text
from openspyre.ci.reuse.formatting import formatted
from openspyre.ci.reuse.located import At
from openspyre.ci.reuse.reading import read_rules
from openspyre.ci.reuse.schema import CAUSES, RuleSet

NOWHERE = At("", 0, 0)
TEXTS = st.text(min_size=1, max_size=12)
LONG = st.text("ab \"':#{}[],&*%!|>-?\\\n\u00e9\u2028\x85\t", min_size=1, max_size=150)
WORDS = st.text(min_size=1, max_size=8).filter(
    lambda t: t.isprintable() and not set(t) & {*" \u3000"}
)
NAMES = st.from_regex(r"[A-Za-z_]\w{0,7}", fullmatch=True).filter(str.isidentifier)
DEVICES = st.from_regex(r"[A-Za-z_]\w{0,7}", fullmatch=True)
LISTS = st.lists(TEXTS, min_size=1, max_size=3, unique=True)
NUMBERS = st.floats(0, allow_infinity=False)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), TEXTS, LONG, st.just(""),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["%3D", "a=b", "100%", "[x],y", "no", "1", "1e3", "2026-12-01", "~", "<<"]),
)  # fmt: skip
DAYS = st.dates(datetime.date(2026, 1, 1), datetime.date(2027, 12, 31))
PATTERNS = st.text("ab(.)\\\"' %", min_size=1, max_size=8).map(
    lambda text: f"a{json.dumps(text)[1:-1]}"
)


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


def is_pattern(text: str) -> bool:
    import re

    try:
        return not all(re.compile(text).search(probe) for probe in ("", "\0\n"))
    except re.error:
        return False


@st.composite
def rules_of_a_file(draw: st.DrawFn, verdict: str) -> dict[str, Any]:
    dates = draw(optional(since=DAYS, owner=TEXTS)) | {"expires": draw(DAYS)}
    rule: dict[str, Any] = {
        "test": f"{draw(NAMES)}::{draw(NAMES | st.just('*'))}",
        "verdict": verdict,
    }
    rule |= {"reason": draw(LONG.filter(str.strip)), "issue": draw(TEXTS), "dates": dates}
    rule |= draw(
        optional(
            ops=LISTS, dtypes=LISTS, tags=LISTS, hits=st.integers(1, 10**9),
            params=st.dictionaries(NAMES, VALUES, min_size=1, max_size=3),
            isolate=st.sampled_from(["test", "chunk"]),
        )
    )  # fmt: skip
    rule["cause"] = "hang" if verdict == "quarantine" else draw(st.sampled_from(CAUSES))
    if verdict == "xfail":
        rule["raises"] = {"type": draw(TEXTS), "match": draw(PATTERNS.filter(is_pattern))}
    if verdict in ("gate", "observe") and draw(st.booleans()):
        rule["tolerance"] = {"atol": draw(NUMBERS), "rtol": draw(NUMBERS)}
    return rule


VERDICTS = st.lists(
    st.sampled_from(["gate", "observe", "xfail", "quarantine", "exclude"]), max_size=3
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    found = {"schema": "openspyre.ci/1", "torch": ">=2", "device": draw(DEVICES)}
    found |= draw(
        optional(
            bootstrap=st.sampled_from(["a", "a.b:c"]),
            capability=st.fixed_dictionaries({"file": TEXTS, "digest": TEXTS}),
            defaults=optional(
                unlisted=st.sampled_from(["gate", "observe"]),
                timeout_s=st.floats(0.001, 80_000) | st.integers(1, 80_000),
                max_days=optional(observe=st.integers(0, 10**6), xfail=st.integers(0, 10**6)),
            ),
        )
    )  # fmt: skip
    files = []
    number = 0
    for path in draw(st.lists(NAMES, max_size=2, unique=True)):
        file: dict[str, Any] = {"path": f"{path}.py", "rules": []}
        file |= draw(
            optional(
                sha256=st.from_regex("[0-9a-f]{64}", fullmatch=True),
                guards=optional(bypass=LISTS, for_custom=st.booleans()),
            )
        )  # fmt: skip
        for verdict in draw(VERDICTS):
            number += 1
            rule = draw(rules_of_a_file(verdict))
            cls, method = rule["test"].split("::")
            file["rules"].append(
                {"id": f"{draw(WORDS)}{number}", **rule, "test": f"{cls}{number}::{method}"}
            )
        files.append(file)
    return {**found, "files": files}


def read(text: str) -> RuleSet:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rules.yaml"
        path.write_bytes(text.encode())
        return read_rules([path], None)


def unplaced(rules: RuleSet) -> Mapping[str, object]:
    """All that the rules say, without where and in which order."""
    files = {}
    for file in rules.files:
        listed = {
            r.id: replace(
                r, at=NOWHERE, ops=tuple(sorted(r.ops)), dtypes=tuple(sorted(r.dtypes)),
                tags=tuple(sorted(r.tags)),
            )
            for r in file.rules
        }  # fmt: skip
        files[file.path] = replace(file, at=NOWHERE, rules=()), listed
    capability = replace(rules.capability, at=NOWHERE) if rules.capability else None
    return {"files": files, "rest": replace(rules, files=(), capability=capability)}


@given(documents())
def test_a_second_time_changes_nothing_and_nothing_is_lost(document: dict[str, Any]) -> None:
    given_rules = read(yaml.safe_dump(document, sort_keys=False))
    text = formatted(given_rules)
    again = read(text)
    assert formatted(again) == text
    assert unplaced(again) == unplaced(given_rules)


@given(VALUES)
def test_a_rule_matches_the_value_that_it_names(value: object) -> None:
    """What a test is generated with and what a rule says meet, also after `fmt`."""
    rule = {"id": "G-1", "test": "A::b", "params": {"k": value}}
    document = {
        "schema": "openspyre.ci/1", "torch": ">=2", "device": "d",
        "files": [{"path": "a.py", "rules": [rule]}],
    }  # fmt: skip
    rules = read(yaml.safe_dump(document))
    test = Identity("A", "b", (("k", value_text(value)),))
    assert rules.rules()["G-1"].matches(test)
    assert read(formatted(rules)).rules()["G-1"].matches(test)
