"""Rules read from YAML: strictly, with all problems at once, each at its line and column."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from openspyre.ci.native.hooks import Expect, Tolerance
from openspyre.ci.native.identity import value_text
from openspyre.ci.reuse.fields import Fields
from openspyre.ci.reuse.located import InvalidRules, Located, read_yaml
from openspyre.ci.reuse.schema import (
    CAUSES,
    QUARANTINE_CAUSES,
    SCHEMA,
    CapabilitySource,
    Defaults,
    Guards,
    Rule,
    RuleSet,
    TestFile,
    Verdict,
)

_VERDICTS = tuple(verdict.value for verdict in Verdict)
_NEEDS = {
    Verdict.GATE: (),
    Verdict.OBSERVE: ("reason", "expires"),
    Verdict.XFAIL: ("reason", "issue", "expires", "raises"),
    Verdict.QUARANTINE: ("reason", "issue", "expires", "cause"),
    Verdict.EXCLUDE: ("reason", "issue", "expires", "cause"),
}


def read_rules(paths: Sequence[Path], today: datetime.date | None, grace: int = 0) -> RuleSet:
    """The rules of some files together; files with one `path` merge.

    Args:
        today: None lets every date hold.
        grace: days for which a rule that has expired still holds.

    Raises:
        InvalidRules: with every problem.
        SpyreError: a file cannot be read.
    """
    problems: list[str] = []
    parts = [_rule_set(read_yaml(path), problems) for path in paths]
    if not parts:
        raise InvalidRules(["there is no file of rules"])
    for other in parts[1:]:
        for name in ("torch", "device", "bootstrap", "defaults"):
            if getattr(other, name) != getattr(parts[0], name):
                problems.append(f"{paths[0]}: its {name} is not that of the other files")
    merged = replace(
        parts[0],
        capability=_one_capability([p.capability for p in parts if p.capability], problems),
        files=_merged([f for part in parts for f in part.files], problems),
    )
    problems += _clashes(merged)
    if today is not None:
        every = merged.rules().values()
        problems += [p for rule in every for p in _dates(rule, merged, today, grace)]
    if problems:
        raise InvalidRules(sorted(set(problems), key=problems.index))
    return merged


def expired(rules: RuleSet, today: datetime.date) -> list[Rule]:
    """The rules whose day has passed."""
    return [r for r in rules.rules().values() if r.expires is not None and r.expires < today]


def _one_capability(
    named: Sequence[CapabilitySource], problems: list[str]
) -> CapabilitySource | None:
    for other in named[1:]:
        if other.digest != named[0].digest:
            problems.append(
                f"{other.at}: capability is {other.file} with {other.digest}, but"
                f" {named[0].file} with {named[0].digest} at {named[0].at}: one set has one table"
            )
    return named[0] if named else None


def _merged(files: list[TestFile], problems: list[str]) -> tuple[TestFile, ...]:
    found: dict[str, TestFile] = {}
    for file in files:
        if file.path in found:
            first = found[file.path]
            if file.sha256 and first.sha256 and file.sha256 != first.sha256:
                problems.append(
                    f"{file.at}: {file.path} was verified with sha256 {file.sha256}, but with"
                    f" {first.sha256} at {first.at}: verify all of its rules with one file"
                )
            bypass = dict.fromkeys((*first.guards.bypass, *file.guards.bypass))
            custom = first.guards.for_custom or file.guards.for_custom
            found[file.path] = replace(
                first, rules=(*first.rules, *file.rules), guards=Guards(tuple(bypass), custom),
                sha256=first.sha256 or file.sha256,
            )  # fmt: skip
        else:
            found[file.path] = file
    return tuple(found.values())


def _clashes(rules: RuleSet) -> list[str]:
    found: list[str] = []
    ids: dict[str, Rule] = {}
    for file in rules.files:
        for rule in file.rules:
            if rule.id in ids:
                found.append(f"{rule.at}: {rule.id} is also the id of a rule at {ids[rule.id].at}")
            ids[rule.id] = rule
        found += [
            f"{two.at}: {two.id} is as specific as {one.id} at {one.at}, on the same tests"
            for one, two in combinations(file.rules, 2)
            if one.may_clash(two)
        ]
        found += [
            f"{two.at}: {two.id} is about tests of {one.id} at {one.at}: two files own them"
            for one, two in combinations(file.rules, 2)
            if one.at.file != two.at.file and not one.may_clash(two)
            and (one.covers(two) or two.covers(one))
        ]  # fmt: skip
    return found


def _dates(rule: Rule, rules: RuleSet, today: datetime.date, grace: int) -> list[str]:
    if rule.expires is None:
        return []
    found = []
    if (today - rule.expires).days > grace:
        found.append(f"{rule.at}: {rule.id} expired on {rule.expires}: {rule.reason}")
    most = rules.defaults.max_days.get(rule.verdict)
    start = rule.since or today
    if most is not None and (rule.expires - start).days > most:
        found.append(
            f"{rule.at}: {rule.id} holds for {(rule.expires - start).days} days,"
            f" {rule.verdict.value} at most {most}"
        )
    if rule.since is not None and rule.since > rule.expires:
        found.append(f"{rule.at}: {rule.id} ends before it begins")
    return found


def _rule_set(node: Located, problems: list[str]) -> RuleSet:
    fields = Fields(node, problems, "a file of rules")
    schema = fields.need("schema", str, SCHEMA)
    if schema != SCHEMA:
        fields.wrong(f"schema is {SCHEMA}, not {schema!r}")
    at = fields.place("torch")
    versions = fields.need("torch", str, "")
    try:
        SpecifierSet(versions)
    except InvalidSpecifier as error:
        fields.wrong(f"torch is a range of versions: {error}", at)
    device = fields.matching("device", r"[A-Za-z_]\w*", "a name, as in torch.NAME", needed=True)
    bootstrap = fields.matching("bootstrap", r"[\w.]+(:\w+)?", "module or module:function")
    capability = _capability(fields.part("capability"))
    defaults = _defaults(fields.part("defaults"))
    files = tuple(_file(item, problems) for item in fields.items("files"))
    fields.end()
    return RuleSet(versions, device, bootstrap, capability, defaults, files)


def _capability(fields: Fields | None) -> CapabilitySource | None:
    if fields is None:
        return None
    found = CapabilitySource(
        fields.need("file", str, ""), fields.need("digest", str, ""), fields.at
    )
    fields.end()
    return found


def _defaults(fields: Fields | None) -> Defaults:
    known = Defaults()
    if fields is None:
        return known
    unlisted = Verdict(fields.choice("unlisted", ("gate", "observe"), "observe"))
    seconds = fields.take("timeout_s", float, known.timeout_s)
    if not 0 < seconds < 86_400:
        fields.wrong("timeout_s is between 0 and a day")
    days = dict(known.max_days)
    if (limits := fields.part("max_days")) is not None:
        for verdict in Verdict:
            if verdict is not Verdict.GATE:
                days[verdict] = limits.at_least(0, verdict.value, days[verdict])
        limits.end()
    fields.end()
    return Defaults(unlisted, seconds, days)


def _file(node: Located, problems: list[str]) -> TestFile:
    fields = Fields(node, problems, "a test file")
    at = fields.place("path")
    path = fields.need("path", str, "test_.py")
    if not _is_relative(path):
        fields.wrong("path is a Python file relative to PyTorch's folder of tests", at)
    sha256 = fields.matching("sha256", "[0-9a-f]{64}", "64 hex digits")
    guards = Guards()
    if (part := fields.part("guards")) is not None:
        guards = Guards(part.texts("bypass"), part.take("for_custom", bool, False))
        part.end()
    rules = tuple(_rule(item, problems) for item in fields.items("rules"))
    fields.end()
    return TestFile(path, node.at, sha256, guards, rules)


def _is_relative(path: str) -> bool:
    """Whether a path has one form, and stays inside of the folder."""
    plain = re.fullmatch(r"[\w.+/-]+\.py", path) is not None
    return plain and not {"", ".", ".."} & {*path.split("/")}


def _rule(node: Located, problems: list[str]) -> Rule:
    fields = Fields(node, problems, "a rule")
    at = fields.place("test")
    cls, found, method = fields.need("test", str, "::").partition("::")
    if not found or (
        (cls, method) != ("", "")
        and not (cls.isidentifier() and (method == "*" or method.isidentifier()))
    ):
        fields.wrong("test is Class::method, or Class::* for all its methods", at)
    dates = fields.part("dates")
    raises, tolerance = fields.part("raises"), fields.part("tolerance")
    rule = Rule(
        id=fields.matching("id", r"\S+", "one word", needed=True),
        cls=cls,
        method=method,
        verdict=Verdict(fields.choice("verdict", _VERDICTS, "gate")),
        at=fields.at,
        ops=fields.texts("ops"),
        dtypes=fields.texts("dtypes"),
        params={name: value_text(value) for name, value in fields.scalars("params").items()},
        cause=fields.choice("cause", CAUSES, ""),
        reason=fields.take("reason", str, "").strip(),
        issue=fields.take("issue", str, ""),
        since=dates.take("since", datetime.date, None) if dates else None,
        expires=dates.take("expires", datetime.date, None) if dates else None,
        owner=dates.take("owner", str, "") if dates else "",
        raises=_raises(raises),
        tolerance=_tolerance(tolerance),
        isolate=fields.choice("isolate", ("test", "chunk"), "chunk") == "test",
        tags=fields.texts("tags"),
        hits=fields.at_least(1, "hits", None),
    )
    if dates:
        dates.end()
    fields.end()
    for said in _misses(rule):
        fields.wrong(f"{rule.id or 'the rule'}: {said}")
    return rule


def _raises(fields: Fields | None) -> Expect | None:
    if fields is None:
        return None
    found = Expect(fields.need("type", str, ""), fields.pattern("match"))
    fields.end()
    return found


def _tolerance(fields: Fields | None) -> Tolerance | None:
    if fields is None:
        return None
    found = Tolerance(fields.need("atol", float, 0.0), fields.need("rtol", float, 0.0))
    if min(found.atol, found.rtol) < 0:
        fields.wrong("a tolerance is not negative")
    fields.end()
    return found


def _misses(rule: Rule) -> list[str]:
    """What the verdict of a rule needs and it lacks, or has and must not."""
    verdict = rule.verdict
    found = [f"{verdict.value} needs {n}" for n in _NEEDS[verdict] if not getattr(rule, n)]
    if rule.raises and verdict is not Verdict.XFAIL:
        found.append("only an xfail has raises")
    if verdict is Verdict.QUARANTINE and rule.cause not in ("", *QUARANTINE_CAUSES):
        found.append(f"quarantine is for {', '.join(QUARANTINE_CAUSES)}, not {rule.cause}")
    if rule.tolerance and verdict not in (Verdict.GATE, Verdict.OBSERVE):
        found.append("only gate and observe have a tolerance")
    if rule.tolerance and not rule.reason:
        found.append("a tolerance needs reason")
    return found
