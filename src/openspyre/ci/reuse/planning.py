"""What is to become of each test of a file: its owner among the rules, or the capability row."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from openspyre.ci.native.identity import Identity
from openspyre.ci.reuse.capability_table import Capability
from openspyre.ci.reuse.ledger import Bucket
from openspyre.ci.reuse.schema import Rule, TestFile, Verdict


@dataclass(frozen=True, slots=True)
class Collected:
    """A test that exists with all hooks off.

    Attributes:
        generic: whether it is generated for the device.
    """

    id: str
    test: Identity
    generic: bool


@dataclass(frozen=True, slots=True)
class Planned:
    """A test and what is asked of it.

    Attributes:
        bucket: where it is without being run; None if it is run.
        rule: the rule that owns it.
        source: of the reason: a rule's id, or a row of the capability table.
    """

    id: str
    test: Identity
    verdict: Verdict
    bucket: Bucket | None = None
    reason: str = ""
    source: str = ""
    rule: Rule | None = None


@dataclass(frozen=True, slots=True)
class FilePlan:
    """All tests of one file, and what is wrong with the rules about them."""

    file: TestFile
    tests: tuple[Planned, ...]
    problems: tuple[str, ...]
    hits: Mapping[str, int]

    def scheduled(self) -> list[Planned]:
        return [test for test in self.tests if test.bucket is None]


def planned(
    file: TestFile, collected: Iterable[Collected], capability: Capability | None,
    unlisted: Verdict, *, check_hits: bool = True,
) -> FilePlan:  # fmt: skip
    """What becomes of every test of a file.

    Args:
        capability: None lifts every limit.
        unlisted: what is asked of a test that no rule owns.
    """
    owners = _Owners(file.rules)
    problems: list[str] = []
    hits: Counter[str] = Counter()
    tests = []
    for item in sorted(collected, key=lambda c: c.id):
        rule, clash = owners.of(item.test) if item.generic else (None, "")
        if clash:
            problems.append(f"{item.id}: {clash}")
        if rule is not None:
            hits[rule.id] += 1
        tests.append(_planned(item, rule, capability, unlisted))
    if check_hits:
        problems += _hit_problems(file, tests, hits)
    return FilePlan(file, tuple(tests), tuple(problems), dict(hits))


def _planned(
    item: Collected, rule: Rule | None, capability: Capability | None, unlisted: Verdict
) -> Planned:
    def out(bucket: Bucket, reason: str, source: str, verdict: Verdict = unlisted) -> Planned:
        return Planned(item.id, item.test, verdict, bucket, reason, source, rule)

    if not item.generic:
        return out(Bucket.EXCLUDED_SCOPE, "it is not generated for the device", "scope")
    if capability is not None and (op := item.test.value("op")):
        row, dtype = capability.ops.get(op), item.test.value("dtype")
        if row is None or not row.fwd:
            why = row.reason or row.state if row else "it is not in the capability table"
            return out(Bucket.EXCLUDED_OP, f"{op}: {why}", f"capability:{op}")
        if dtype and dtype not in row.fwd:
            why = f"{op} was found right in {', '.join(row.fwd)} alone"
            return out(Bucket.EXCLUDED_DTYPE, why, f"capability:{op}")
    if rule is None:
        return Planned(item.id, item.test, unlisted)
    match rule.verdict:
        case Verdict.EXCLUDE:
            return out(Bucket.EXCLUDED_RULE, rule.reason, rule.id, rule.verdict)
        case Verdict.QUARANTINE:
            return out(Bucket.QUARANTINED, rule.reason, rule.id, rule.verdict)
    return Planned(item.id, item.test, rule.verdict, None, rule.reason, rule.id, rule)


def _hit_problems(
    file: TestFile, tests: Sequence[Planned], hits: Mapping[str, int]
) -> Iterable[str]:
    capable = {
        test.rule.id
        for test in tests
        if test.rule and test.bucket not in (Bucket.EXCLUDED_OP, Bucket.EXCLUDED_DTYPE)
    }
    for rule in file.rules:
        owned = hits.get(rule.id, 0)
        if missing := _missing(rule, tests):
            yield f"{rule.at}: {rule.id}: {missing}"
        elif owned == 0:
            yield f"{rule.at}: {rule.id} owns no test: none has all that, or others own them"
        elif rule.hits is not None and rule.hits != owned:
            yield f"{rule.at}: {rule.id} owns {owned} tests, not {rule.hits}"
        elif rule.id not in capable:
            yield f"{rule.at}: {rule.id} owns only tests that the capability table leaves out"
    classes = {test.test.cls for test in tests}
    for name in file.guards.bypass:
        if name not in classes:
            yield f"{file.at}: guards: there is no class {name}"


def _missing(rule: Rule, tests: Sequence[Planned]) -> str:
    """Which of a rule's names no test has."""
    of_class = [test.test for test in tests if test.test.cls == rule.cls]
    if not of_class:
        return f"there is no class {rule.cls}"
    of_method = [test for test in of_class if rule.method in ("*", test.method)]
    if not of_method:
        return f"{rule.cls} has no method {rule.method}"
    for name, wanted in (("op", rule.ops), ("dtype", rule.dtypes)):
        there = {test.value(name) for test in of_method}
        if missing := [text for text in wanted if text not in there]:
            return f"no {name} {', '.join(missing)} in {rule.cls}::{rule.method}"
    return ""


class _Owners:
    """The most specific rule of each test."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._by_method: dict[tuple[str, str], list[Rule]] = defaultdict(list)
        for rule in sorted(rules, key=lambda r: (-r.specificity, r.id)):
            self._by_method[rule.cls, rule.method].append(rule)

    def of(self, test: Identity) -> tuple[Rule | None, str]:
        """The owner, and what is wrong if two have the same right to it."""
        rules = [*self._by_method[test.cls, test.method], *self._by_method[test.cls, "*"]]
        found = [rule for rule in rules if rule.matches(test)]
        if not found:
            return None, ""
        first = max(found, key=lambda r: r.specificity)
        same = [
            f"{r.id} at {r.at}" for r in found
            if r.specificity == first.specificity or r.at.file != first.at.file
        ]  # fmt: skip
        return first, f"owned by {' and by '.join(same)}" if len(same) > 1 else ""
