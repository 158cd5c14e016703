"""`spyre-ci enumerate`, `diff`, `relevance`, `plan`, `preview` and `explain`."""

from __future__ import annotations

import datetime
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from openspyre.ci.reuse.located import InvalidRules, plain, read_yaml
from openspyre.ci.select.stages.agent import Question, command, consult, question
from openspyre.ci.select.stages.canonical import digest
from openspyre.ci.select.stages.diff import Diff, diff_from, diff_of, diff_text
from openspyre.ci.select.stages.enumeration import Shapes, enumerate_ref
from openspyre.ci.select.stages.errors import SelectionError
from openspyre.ci.select.stages.explaining import Known, explained
from openspyre.ci.select.stages.git import Repository
from openspyre.ci.select.stages.knowledge import (
    Capability,
    History,
    Policy,
    capability_of,
    history_of,
    policy_of,
)
from openspyre.ci.select.stages.layout import Layout
from openspyre.ci.select.stages.plan import (
    Plan,
    Tier,
    Wishes,
    label_text,
    labels_from,
    plan_from,
    plan_of,
    plan_text,
)
from openspyre.ci.select.stages.product import product_ops
from openspyre.ci.select.stages.records import (
    Enumeration,
    enumeration_of,
    enumeration_text,
    read_text,
)
from openspyre.ci.select.stages.relevance import Judged, Label, World, judged, tables_of
from openspyre.ci.telling import AS_JSON, shown_progress
from openspyre.ci.telling import told as told_errors
from openspyre.errors import SpyreError
from openspyre.runtime.whole_file import write_whole

Repo = Annotated[Path, typer.Option("--repo", help="The upstream git repository.")]
Base = Annotated[str, typer.Option(help="The ref before the change.")]
Head = Annotated[str, typer.Option(help="The ref behind it.")]
Out = Annotated[Path, typer.Option("--out", help="Folder of the stages' files.")]
Tests = Annotated[str, typer.Option("--tests", help="Folder of tests in the repository.")]
Table = Annotated[Path, typer.Option("--capability", help="From `spyre-ci capability`.")]
Device = Annotated[str, typer.Option(help="Name of the device, as tests spell it.")]
Rules = Annotated[list[Path] | None, typer.Option("--rules", help="YAML of rules; may repeat.")]
Past = Annotated[Path | None, typer.Option("--history", help="JSON of earlier runs.")]
Budget = Annotated[float | None, typer.Option(help="Seconds for the tests of the plan.")]
Today = Annotated[str, typer.Option(help="The day that decides what expires: 2026-12-01.")]
ModelOps = Annotated[
    Path | None, typer.Option(help="File of full names of ops of tracked models, one a line.")
]
Agent = Annotated[str, typer.Option(help="Command that labels the unsure ones; none by default.")]
AgentSeconds = Annotated[float, typer.Option(min=0.1, help="Time for its answer.")]
AgentMost = Annotated[int, typer.Option(min=0, help="Questions it may be asked at most.")]
OUT = Path("selection")


@contextmanager
def told(name: str) -> Iterator[None]:
    """What the stages say of a user's mistake is told as all commands tell it."""
    with told_errors(name):
        try:
            yield
        except SelectionError as error:
            raise SpyreError(error.what, why=error.why, hint=error.hint) from None


def enumerate_(
    repo: Repo, base: Base, head: Head, out: Out = OUT, tests: Tests = "test",
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:  # fmt: skip
    """Read all tests of two refs, without importing any: enum.base.jsonl and enum.head.jsonl."""
    with told("enumerate"):
        pair = _enumerated(repo, base, head, out, tests)
        found = {
            which: {
                "commit": one.commit, "tests": len(one.tests),
                "for_devices": sum(t.generic for t in one.tests), "broken_files": len(one.broken),
            }
            for which, one in zip(("base", "head"), pair, strict=True)
        }  # fmt: skip
    _say(found, as_json, [
        f"{which}: {n['tests']} tests, {n['for_devices']} of them for devices,"
        f" {n['broken_files']} files that do not parse" for which, n in found.items()
    ])  # fmt: skip


def diff(
    out: Out = OUT, tests: Tests = "test", as_json: Annotated[bool, AS_JSON] = False
) -> None:  # fmt: skip
    """Compare the two enumerations: diff.jsonl, a line for each change with its kinds."""
    with told("diff"):
        counts = _diffed(_enumerations(out), out, tests).counts()
    _say({"counts": counts}, as_json, [f"{kind}: {n}" for kind, n in counts.items()])


def relevance(
    capability: Table, device: Device, out: Out = OUT, rules: Rules = None, history: Past = None,
    tests: Tests = "test", repo: Annotated[Path | None, typer.Option("--repo")] = None,
    agent: Agent = "", agent_seconds: AgentSeconds = 60.0, agent_most: AgentMost = 200,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:  # fmt: skip
    """Label each change relevant, irrelevant or unsure, with rule and evidence: relevance.jsonl."""
    with told("relevance"):
        words = _words(agent)
        given = _given(capability, device, rules, history)
        pair, changes = _enumerations(out), diff_from(read_text(out / "diff.jsonl"))
        labels = _labelled(pair, changes, given, tests)
        asked = ""
        if words:
            if repo is None:
                raise SelectionError("--agent needs --repo", why="it is shown the sources")
            questions = _questions(repo, pair, changes, labels, given)
            heard = consult(
                labels, questions, command(words, agent_seconds), name=words[0],
                cache=out / "answers", most=agent_most,
            )  # fmt: skip
            labels = list(heard.labels)
            asked = f"the agent changed {heard.changed} labels; {len(heard.refused)} answers" \
                    f" did not count{'; ' + heard.problem if heard.problem else ''}"  # fmt: skip
        _write(out / "relevance.jsonl", label_text(labels))
        counts = {kind.value: sum(one.label is kind for one in labels) for kind in Label}
    lines = [f"{label}: {n}" for label, n in counts.items()]
    _say({"counts": counts, "agent": asked}, as_json, [*lines, *([asked] if asked else [])])


def plan(
    repo: Repo, capability: Table, device: Device, out: Out = OUT, rules: Rules = None,
    history: Past = None, budget: Budget = None, today: Today = "", model_ops: ModelOps = None,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:  # fmt: skip
    """Order what runs, and cut it where the budget ends: plan.json."""
    with told("plan"):
        given = _given(capability, device, rules, history)
        wishes = _wishes(budget, today, model_ops)
        pair, changes = _enumerations(out), diff_from(read_text(out / "diff.jsonl"))
        labels = labels_from(read_text(out / "relevance.jsonl"))
        made = _planned(repo, pair, changes, labels, given, wishes, out)
    _tell_plan(made, as_json)


def preview(
    repo: Repo, base: Base, head: Head, capability: Table, device: Device, out: Out = OUT,
    rules: Rules = None, history: Past = None, tests: Tests = "test", budget: Budget = None,
    today: Today = "", model_ops: ModelOps = None, as_json: Annotated[bool, AS_JSON] = False,
) -> None:  # fmt: skip
    """All stages up to the plan, without the device; what is there of the same refs is kept."""
    with told("preview"):
        given = _given(capability, device, rules, history)
        wishes = _wishes(budget, today, model_ops)
        pair = _enumerated(repo, base, head, out, tests)
        changes = _diffed(pair, out, tests)
        labels = _labelled(pair, changes, given, tests)
        _write(out / "relevance.jsonl", label_text(labels))
        made = _planned(repo, pair, changes, labels, given, wishes, out)
    _tell_plan(made, as_json)


def explain(
    id: Annotated[str, typer.Argument(help="file::Class::method, or one test made of it.")],
    out: Out = OUT, rules: Rules = None, as_json: Annotated[bool, AS_JSON] = False,
) -> None:  # fmt: skip
    """Say why a test was chosen or not: hashes, rule, evidence lines, rank."""
    with told("explain"):
        base, head = _enumerations(out)
        changes = diff_from(read_text(out / "diff.jsonl"))
        labels = _if_there(out / "relevance.jsonl", labels_from) or []
        made = _if_there(out / "plan.json", plan_from)
        known = Known(base, head, changes, tuple(labels), made, _policy(rules))
        lines = explained(id, known)
    _say({"id": id, "lines": lines}, as_json, lines)


COMMANDS: Mapping[str, Callable[..., None]] = {
    "enumerate": enumerate_, "diff": diff, "relevance": relevance, "plan": plan,
    "preview": preview, "explain": explain,
}  # fmt: skip
"""What `spyre-ci` calls them."""


# --- stages and their files -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Given:
    """What the options name, read."""

    capability: Capability
    policy: Policy
    history: History


def _given(
    capability: Path, device: str, rules: Sequence[Path] | None, history: Path | None
) -> _Given:
    table = capability_of(_json(capability), device)
    past = history_of(_json(history)) if history is not None else History()
    return _Given(table, _policy(rules), past)


def _policy(rules: Sequence[Path] | None) -> Policy:
    documents = []
    for path in rules or ():
        try:
            documents.append(plain(read_yaml(path)))
        except InvalidRules as error:
            raise SelectionError(f"{path} is no YAML", why="; ".join(error.problems)) from None
    return policy_of(documents)


def _words(agent: str) -> list[str]:
    """The command of an agent, as a shell splits it; nothing if there is none."""
    try:
        return shlex.split(agent)
    except ValueError as error:
        raise SelectionError(
            f"--agent {agent} is no command", why=str(error),
            hint="close its quotes, as in a shell",
        ) from None  # fmt: skip


def _json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise SelectionError(f"{path} is no JSON", why=str(error)) from None


def _wishes(budget: float | None, today: str, model_ops: Path | None) -> Wishes:
    try:
        day = datetime.date.fromisoformat(today) if today else None
    except ValueError:
        raise SelectionError(f"--today {today} is no day", hint="for example 2026-12-01") from None
    ops = read_text(model_ops).split() if model_ops is not None else ()
    return Wishes(budget, day, frozenset(ops))


def _enumerated(
    repo: Path, base: str, head: str, out: Path, tests: str
) -> tuple[Enumeration, Enumeration]:
    """Both enumerations; what is there of the same commits is taken as it is."""
    repository, parsed = Repository(repo), Shapes()
    found = []
    with shown_progress() as tell:
        for which, ref in (("base", base), ("head", head)):
            path = out / f"enum.{which}.jsonl"
            old = _if_there(path, enumeration_of)
            if old is None or old.commit != repository.commit(ref) or old.tests_in != tests:
                old = enumerate_ref(repository, ref, Layout(tests=tests), parsed=parsed, tell=tell)
                _write(path, enumeration_text(old))
            found.append(old)
    return found[0], found[1]


def _enumerations(out: Path) -> tuple[Enumeration, Enumeration]:
    base, head = (
        enumeration_of(read_text(out / f"enum.{which}.jsonl"), f"enum.{which}.jsonl")
        for which in ("base", "head")
    )
    return base, head


def _diffed(pair: tuple[Enumeration, Enumeration], out: Path, tests: str) -> Diff:
    changes = diff_of(*pair, Layout(tests=tests))
    _write(out / "diff.jsonl", diff_text(changes))
    return changes


def _labelled(
    pair: tuple[Enumeration, Enumeration], changes: Diff, given: _Given, tests: str
) -> list[Judged]:
    tables = tables_of(pair[1], Layout(tests=tests))
    world = World(given.capability, given.policy, given.history, tables)
    return judged(changes, *pair, world)


def _planned(
    repo: Path, pair: tuple[Enumeration, Enumeration], changes: Diff, labels: Sequence[Judged],
    given: _Given, wishes: Wishes, out: Path,
) -> Plan:  # fmt: skip
    base, head = pair
    product = product_ops(Repository(repo), base.commit, head.commit, changes, given.capability)
    made = plan_of(
        changes, labels, head, given.capability, given.policy, given.history, product, wishes
    )
    _write(out / "plan.json", plan_text(made))
    return made


def _questions(
    repo: Path, pair: tuple[Enumeration, Enumeration], changes: Diff, labels: Sequence[Judged],
    given: _Given,
) -> dict[str, Question]:  # fmt: skip
    """What an agent may be asked: the unsure tests with their sources."""
    repository, head = Repository(repo), pair[1]
    tests, by_id = head.by_id(), {change.id: change for change in changes.changes}
    unsure = [one.id for one in labels if one.label is Label.UNSURE and one.id in tests]
    files = repository.files(head.commit)
    blobs = {tests[id].at: files[tests[id].at] for id in unsure}
    texts = {
        blob: data.decode(errors="replace") for blob, data in repository.contents(blobs.values())
    }
    return {
        id: question(
            id, texts[blobs[tests[id].at]], tests[id].line, tests[id].end,
            "\n".join(by_id[id].why), given.capability.digest or digest([str(given.capability)]),
        )
        for id in unsure
    }  # fmt: skip


def _if_there(path: Path, read: Callable[[str, str], Any]) -> Any:
    return read(read_text(path), path.name) if path.exists() else None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode())


def _tell_plan(made: Plan, as_json: bool) -> None:
    counts = {tier.name.lower(): sum(o.tier == tier for o in made.chosen) for tier in Tier}
    over = sum(out.bucket == "over-budget" for out in made.left_out)
    lines = [
        f"{len(made.chosen)} tests in {made.seconds:.0f} s;"
        f" {over} over the budget, {len(made.left_out) - over} left out for a reason",
        *(f"  {name}: {n}" for name, n in counts.items()),
    ]
    _say({"tiers": counts, "seconds": made.seconds, "plan": asdict(made)}, as_json, lines)


def _say(found: dict[str, Any], as_json: bool, lines: Sequence[str]) -> None:
    typer.echo(json.dumps(found) if as_json else "\n".join(lines))
