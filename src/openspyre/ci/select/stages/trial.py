"""Stage 4: run what is planned, propose rules with reasons, and check that they hold.

Running is somebody else's: a `Runner` is given, and yields what came of each test method.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from .diff import Diff
from .errors import SelectionError
from .knowledge import Policy
from .plan import Chosen, Plan
from .records import SCHEMA, record_of, to_json

PASSED, SKIPPED, FLAKY = "passed", "skipped-upstream", "flaky"
DIED = ("crashed", "hung")
_AS_ASKED = (PASSED, SKIPPED, "xfailed", "quarantined")
_UNKNOWN = ("import-error", "not-reached")  # nothing is known of the test
_MATCHED = 60  # characters of an exception's text
_PARAMETERS = re.compile(r"(?:^|,)(\w+)=")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test that ran.

    Attributes:
        id: `file::Class::method[op=..,dtype=..]`.
        bucket: passed, failed, crashed, hung, flaky, xpass, skipped-upstream and so on.
        reason: `Type: text` of what it raised; why it is in its bucket.
    """

    id: str
    bucket: str
    reason: str = ""
    seconds: float = 0.0

    @property
    def method(self) -> str:
        return self.id.partition("[")[0]

    @property
    def parameters(self) -> dict[str, str]:
        """What it was made with; a value may hold commas."""
        inside = self.id.partition("[")[2].removesuffix("]")
        found = list(_PARAMETERS.finditer(inside))
        ends = [*(m.start() for m in found[1:]), len(inside)][: len(found)]
        return {m[1]: inside[m.end() : end] for m, end in zip(found, ends, strict=True)}


class Runner(Protocol):
    """Runs test methods on a device, each test isolated from the others."""

    def run(self, items: Sequence[Chosen]) -> Iterator[tuple[Chosen, Sequence[Outcome]]]:
        """Yields each method with the tests made of it, when all of these have ended."""
        ...


def run_plan(plan: Plan, runner: Runner, journal: Path, under: str | None = "") -> list[Outcome]:
    """Runs a plan, and goes on where an earlier run of it was cut short.

    Args:
        under: what outcomes depend on beside the plan, in any form: the product under test. None
            takes what ended under anything.

    Raises:
        SelectionError: the journal is of another plan or product, or the runner left a method out.
    """
    head = {"schema": SCHEMA, "base": plan.base, "head": plan.head, "under": under}
    found = _journalled(journal, head, "under" if under is None else "")
    left = [one for one in plan.chosen if one.id not in found]
    journal.parent.mkdir(parents=True, exist_ok=True)
    new = not journal.exists()
    with journal.open("a", encoding="utf-8") as file:
        if new:
            file.write(to_json(head) + "\n")
        for one, outcomes in runner.run(left):
            found[one.id] = list(outcomes)
            line = {"item": one.id, "outcomes": [asdict(outcome) for outcome in outcomes]}
            file.write(to_json(line) + "\n")
            file.flush()
    if missing := [one.id for one in plan.chosen if one.id not in found]:
        raise SelectionError(
            f"the runner says nothing of {len(missing)} tests", why=", ".join(missing[:3]),
            hint="run again: what ended is kept",
        )  # fmt: skip
    return [outcome for one in plan.chosen for outcome in found[one.id]]


def _journalled(
    journal: Path, head: Mapping[str, str | None], any_: str
) -> dict[str, list[Outcome]]:
    """What ended before; a line that was cut short counts for nothing."""
    if not journal.exists():
        return {}
    found: dict[str, list[Outcome]] = {}
    lines = journal.read_text(encoding="utf-8").split("\n")
    try:
        first = json.loads(lines[0])
        if any(first.get(name) != said for name, said in head.items() if name != any_):
            raise ValueError("its refs, or what is tested, are others")
        for line in lines[1:-1]:
            ended = json.loads(line)
            found[ended["item"]] = [record_of(Outcome, one) for one in ended["outcomes"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SelectionError(
            f"{journal} is not of this plan", why=str(error), hint="remove it to begin again"
        ) from None
    if lines[-1]:
        journal.write_text("\n".join([*lines[:-1], ""]), encoding="utf-8")
    return found


# --- rules ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Proposal:
    """A rule that a run gives reason for, in the words of the YAML; ids are numbers of a file.

    Attributes:
        hits: how many tests it owns.
        raises: type and pattern of what an xfail raises.
    """

    test: str
    verdict: str
    reason: str
    hits: int
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    params: Mapping[str, str] = field(default_factory=dict)
    cause: str = ""
    issue: str = ""
    since: datetime.date | None = None
    expires: datetime.date | None = None
    raises: tuple[str, str] = ("", "")
    isolate: bool = False


@dataclass(frozen=True, slots=True)
class Occasion:
    """What all rules of a run share.

    Attributes:
        issue: the address of an issue; without, a failure is only observed: nothing is expected
            to fail that nobody is to mend.
        days: how long a rule holds, by verdict.
    """

    head: str
    today: datetime.date
    issue: str = ""
    days: Mapping[str, int] = field(
        default_factory=lambda: {"observe": 90, "xfail": 60, "quarantine": 30}
    )


@dataclass(frozen=True, slots=True)
class Review:
    """What a run says about rules, for somebody who looks it over.

    Attributes:
        proposals: new rules.
        red: gates that failed, each with the run that names it; they stay gates.
        green: ids of rules whose tests all pass though less is asked.
        gone: rules whose test the head ref has no more, with the id that it moved to, if any.
    """

    proposals: tuple[Proposal, ...]
    red: tuple[str, ...]
    green: tuple[str, ...]
    gone: Mapping[str, str]


def reviewed(
    outcomes: Iterable[Outcome], diff: Diff, policy: Policy, occasion: Occasion
) -> Review:  # fmt: skip
    """Rules for tests that have none; what there is to say of those that have one.

    A method becomes a gate if everything of it passed. Else each group of tests that failed in
    one way gets a rule by op, dtype and parameters, and what passed stays unlisted.
    """
    by_method: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.bucket not in _UNKNOWN:
            by_method.setdefault(outcome.method, []).append(outcome)
    moved = {change.was: change.id for change in diff.changes if change.was}
    proposals: list[Proposal] = []
    red: list[str] = []
    green: list[str] = []
    for method, tests in sorted(by_method.items()):
        rules = policy.of(method)
        if not rules:
            proposals += _proposals(method, tests, occasion)
            continue
        bad = [test for test in tests if test.bucket not in _AS_ASKED]
        if any(rule.verdict == "gate" for rule in rules):
            red += [f"{t.id}: {t.bucket}: {t.reason} at {occasion.head}" for t in bad]
        passes = all(test.bucket in (PASSED, "xpass") for test in tests)
        green += [r.id for r in rules if r.verdict != "gate" and passes and tests]
    gone = {
        rule.id: moved.get(rule.test, "")
        for rule in policy.rules
        if rule.test in moved
        or any(c.id == rule.test and c.kind == "removed" for c in diff.changes)
    }
    return Review(tuple(proposals), tuple(red), tuple(sorted(set(green))), gone)


def _proposals(method: str, tests: Sequence[Outcome], occasion: Occasion) -> Iterator[Proposal]:
    ran = [test for test in tests if test.bucket != SKIPPED]
    if ran and all(test.bucket == PASSED for test in ran):
        said = f"all {len(ran)} pass at {occasion.head[:12]}"
        yield Proposal(method, "gate", said, len(tests))
        return
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for test in ran:
        if test.bucket != PASSED:
            groups.setdefault((test.bucket, _kind(test.reason)), []).append(test)
    for (bucket, kind), failed in sorted(groups.items()):
        if len(failed) == len(tests):
            yield _rule(method, bucket, kind, failed, occasion)
            continue
        for (params, dtypes), same in sorted(_by_parameters(failed).items()):
            ops = tuple(sorted({op for t in same if (op := t.parameters.get("op", ""))}))
            rule = _rule(method, bucket, kind, same, occasion)
            yield replace(rule, ops=ops, dtypes=dtypes, params=dict(params))


def _rule(
    method: str, bucket: str, kind: str, failed: Sequence[Outcome], occasion: Occasion
) -> Proposal:
    died = bucket in DIED
    verdict = "observe"
    if occasion.issue and bucket != FLAKY and (died or kind):
        verdict = "quarantine" if died else "xfail"
    first = failed[0]
    expires = occasion.today + datetime.timedelta(days=occasion.days[verdict])
    raises = (kind, _pattern(first.reason)) if verdict == "xfail" else ("", "")
    cause = {"crashed": "crash", "hung": "hang", "flaky": "infra"}.get(bucket, "op")
    reason = f"{bucket} at {occasion.head[:12]}: {first.reason or 'no reason was given'}"
    return Proposal(
        method, verdict, reason[:200], len(failed), cause=cause,
        issue=occasion.issue if verdict != "observe" else "", since=occasion.today,
        expires=expires, raises=raises, isolate=died and verdict == "observe",
    )  # fmt: skip


def _pattern(reason: str) -> str:
    """What finds the text of `Type: text` in the exception's own, which may have line ends."""
    words = reason.partition(": ")[2][:_MATCHED].split()
    return r"\s+".join(map(re.escape, words)) or r"^\s*$"


def _kind(reason: str) -> str:
    """The type of an exception, out of `Type: text`."""
    return reason.partition(":")[0].strip() if ":" in reason else ""


Parameters = tuple[tuple[tuple[str, str], ...], tuple[str, ...]]


def _by_parameters(failed: Iterable[Outcome]) -> dict[Parameters, list[Outcome]]:
    """Tests in groups that ops times dtypes name exactly, under the same other parameters."""
    per_op: dict[tuple[tuple[tuple[str, str], ...], str], list[Outcome]] = {}
    for test in failed:
        given = test.parameters
        op = given.pop("op", "")
        given.pop("dtype", "")
        per_op.setdefault((tuple(sorted(given.items())), op), []).append(test)
    found: dict[Parameters, list[Outcome]] = {}
    for (params, _), tests in sorted(per_op.items()):
        dtypes = tuple(sorted({d for t in tests if (d := t.parameters.get("dtype", ""))}))
        found.setdefault((params, dtypes), []).extend(tests)
    return found


def review_text(review: Review, plan: Plan) -> str:
    """`review.md`: what to look at before the rules are taken over."""
    counts: dict[str, int] = {}
    for one in review.proposals:
        counts[one.verdict] = counts.get(one.verdict, 0) + 1
    lines = [f"# {plan.base[:12]} to {plan.head[:12]}", "", f"{len(plan.chosen)} methods ran."]
    lines += [f"- new rules, {verdict}: {n}" for verdict, n in sorted(counts.items())]
    parts: tuple[tuple[str, Iterable[str]], ...] = (
        ("Gates that failed", review.red),
        ("Rules that ask for less than passes", review.green),
        ("Rules whose test is gone or moved",
         [f"{id}: {to or 'removed'}" for id, to in sorted(review.gone.items())]),
        ("New rules that are no gates",
         [f"{p.test}: {p.verdict}: {p.reason}" for p in review.proposals if p.verdict != "gate"]),
    )  # fmt: skip
    for title, listed in parts:
        if text := [f"- {line}" for line in listed]:
            lines += ["", f"## {title}", *text]
    return "\n".join(lines) + "\n"


def differences(first: Iterable[Outcome], second: Iterable[Outcome]) -> list[str]:
    """Where a second run, under the new rules, says something else; flaky tests apart."""
    one, other = ({t.id: t.bucket for t in run} for run in (first, second))
    found = []
    for id in sorted(one.keys() | other.keys()):
        before, after = one.get(id, "not run"), other.get(id, "not run")
        as_ruled = (after == "xfailed" and before == "failed") or (
            after == "quarantined" and before in DIED
        )
        if before != after and FLAKY not in (before, after) and not as_ruled:
            found.append(f"{id}: {before}, then {after}")
    return found
