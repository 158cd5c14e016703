"""`spyre-ci run-plan` and `verify`: what a plan names runs, and the rules that this gives hold."""

from __future__ import annotations

import datetime
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from openspyre.ci.reuse.formatting import formatted
from openspyre.ci.reuse.isolation import Place
from openspyre.ci.reuse.journal import product_key
from openspyre.ci.reuse.ledger import Outcome as Exit
from openspyre.ci.reuse.ledger import outcome, write_ledger
from openspyre.ci.reuse.loading import Loaded, load
from openspyre.ci.reuse.outputs import write_junit
from openspyre.ci.reuse.running import place_of
from openspyre.ci.reuse.schema import RuleSet
from openspyre.ci.select.commands import OUT, Out, told
from openspyre.ci.select.running import ReuseRunner
from openspyre.ci.select.stages.canonical import digest
from openspyre.ci.select.stages.diff import Diff, diff_from
from openspyre.ci.select.stages.knowledge import Asked, Policy
from openspyre.ci.select.stages.plan import Plan, plan_from
from openspyre.ci.select.stages.records import read_text
from openspyre.ci.select.stages.trial import (
    Occasion,
    Outcome,
    Review,
    differences,
    review_text,
    reviewed,
    run_plan,
)
from openspyre.ci.select.triage import triage
from openspyre.ci.select.writing import with_hits, with_review
from openspyre.ci.telling import AS_JSON
from openspyre.runtime.whole_file import write_whole

Rules = Annotated[list[Path], typer.Option("--rules", help="YAML of rules; may repeat.")]
TestsAt = Annotated[Path, typer.Option("--tests", help="PyTorch's folder test/, at the head ref.")]
Issue = Annotated[
    str, typer.Option(help="Address of an issue: failures become xfail, not observe.")
]
NEW, RUN, VERIFY = "rules.new.yaml", "run.jsonl", "verify.jsonl"
VERDICT = "triage_verdict.json"


@dataclass(frozen=True, slots=True)
class _Ran:
    """What came of a run."""

    outcomes: list[Outcome]
    review: Review
    written: RuleSet
    runner: ReuseRunner


def run(
    rules: Rules, tests: TestsAt, out: Out = OUT, issue: Issue = "",
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:  # fmt: skip
    """Run a plan, each test isolated; write the account, review.md and rules.new.yaml.

    Goes on where it was cut short. Where something is red, triage_verdict.json says why, for
    `spyre-ci report complete --verdict`. Exit codes are those of `spyre-ci run`.
    """
    with told("run-plan"):
        plan, changes = _plan(out)
        loaded = load(rules, grace=_FOREVER)
        place = _place(loaded, tests, out, RUN)
        said = [formatted(loaded.rules), product_key(place)]
        ran = _run(plan, changes, loaded, place, out / RUN, issue, digest(said))
        write_whole(out / NEW, formatted(_seen_from(out, ran.written)).encode())
        write_whole(out / "review.md", review_text(ran.review, plan).encode())
        ledger = ran.runner.ledger()
        if ledger.entries:
            write_ledger(out / "ledger.jsonl", ledger)
            write_junit(out / "junit.xml", ledger)
        _write_verdict(out / VERDICT, triage(ledger, changes, plan))
        found = outcome(ledger, ran.runner.problems)
    _say(found, ran, as_json)


def verify(
    tests: TestsAt, out: Out = OUT, issue: Issue = "", as_json: Annotated[bool, AS_JSON] = False
) -> None:
    """Run a plan again under the rules that `run-plan` wrote: nothing may end otherwise.

    Writes into these rules how many tests each owns. Exit codes: 0 they hold, 1 they do not.
    """
    with told("verify"):
        plan, changes = _plan(out)
        before = run_plan(plan, _Silent(), out / RUN, under=None)
        loaded = load([out / NEW], grace=_FOREVER)
        place = _place(loaded, tests, out, VERIFY)
        (out / VERIFY).unlink(missing_ok=True)
        shutil.rmtree(place.work, ignore_errors=True)  # what an earlier one found is no proof
        ran = _run(plan, changes, loaded, place, out / VERIFY, issue, "")
        found = differences(before, ran.outcomes)
        if formatted(ran.written) != formatted(loaded.rules):
            found.append(f"{NEW}: a second pass would write other rules")
        rules = with_hits(loaded.rules, ran.runner.hits, loaded.rules.rules())
        write_whole(out / NEW, formatted(rules).encode())
    if as_json:
        typer.echo(json.dumps({"holds": not found, "differences": found}))
    else:
        typer.echo("\n".join(found) or f"{len(loaded.rules.rules())} rules hold")
    raise typer.Exit(1 if found else 0)


_FOREVER = 36500
"""Days of grace: a rule that expired is what a plan runs first, not a reason to run nothing."""


class _Silent:
    """The runner for what has run: nothing may be left."""

    def run(self, items: Any) -> Any:
        return iter(())


def _plan(out: Path) -> tuple[Plan, Diff]:
    return plan_from(read_text(out / "plan.json")), diff_from(read_text(out / "diff.jsonl"))


def _place(loaded: Loaded, tests: Path, out: Path, journal: str) -> Place:
    work = out.resolve() / f"work-{journal.removesuffix('.jsonl')}"
    return place_of(loaded.rules, tests.resolve(), work)


def _run(
    plan: Plan, changes: Diff, loaded: Loaded, place: Place, journal: Path, issue: str, under: str
) -> _Ran:  # fmt: skip
    runner = ReuseRunner(loaded.rules, loaded.capability, place)
    outcomes = run_plan(plan, runner, journal, under)
    if len(runner.asked) < len(plan.chosen):
        # Some had ended before. The account is of all: their ends are in the files' journals.
        runner = ReuseRunner(loaded.rules, loaded.capability, place)
        for _ in runner.run(plan.chosen):
            pass
    occasion = Occasion(plan.head, datetime.date.today(), issue)
    review = reviewed(outcomes, changes, _policy(loaded.rules), occasion)
    return _Ran(outcomes, review, with_review(loaded.rules, review), runner)


def _write_verdict(path: Path, verdict: Mapping[str, Any] | None) -> None:
    """Writes it; none is left of an earlier run."""
    if verdict is None:
        path.unlink(missing_ok=True)
    else:
        write_whole(path, (json.dumps(verdict, indent=1) + "\n").encode())


def _seen_from(folder: Path, rules: RuleSet) -> RuleSet:
    """The rules for a file in a folder: they name their capability table from there."""
    source = rules.capability
    if source is None:
        return rules
    table = (Path(source.at.file).parent / source.file).resolve()
    named = os.path.relpath(table, folder.resolve())
    return replace(rules, capability=replace(source, file=named))


def _policy(rules: RuleSet) -> Policy:
    asked = [
        Asked(rule.id, f"{file.path}::{rule.cls}::{rule.method}", rule.verdict.value, rule.ops)
        for file in rules.files
        for rule in file.rules
    ]
    return Policy(tuple(asked))


def _say(found: Exit, ran: _Ran, as_json: bool) -> None:
    counts: dict[str, int] = {}
    for one in ran.outcomes:
        counts[one.bucket] = counts.get(one.bucket, 0) + 1
    said = {
        "outcome": found.name.lower(), "buckets": counts, "new_rules": len(ran.review.proposals),
        "red": list(ran.review.red), "green": list(ran.review.green), "gone": dict(ran.review.gone),
        "problems": ran.runner.problems,
    }  # fmt: skip
    if as_json:
        typer.echo(json.dumps(said))
    else:
        listed = ", ".join(f"{n} {bucket}" for bucket, n in sorted(counts.items()))
        typer.echo(f"{listed or 'nothing ran'}; {len(ran.review.proposals)} new rules in {NEW}")
        typer.echo("".join(f"  red: {line}\n" for line in ran.review.red), nl=False)
    raise typer.Exit(found.value)


RUN_COMMANDS: Mapping[str, Callable[..., None]] = {"run-plan": run, "verify": verify}
"""What `spyre-ci` calls them."""
