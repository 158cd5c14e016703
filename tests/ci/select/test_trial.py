"""Stage 4: runs that are cut short, rules that a run gives reason for, and whether they hold."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from openspyre.ci.reuse.formatting import formatted
from openspyre.ci.reuse.reading import read_rules
from openspyre.ci.reuse.schema import RuleSet
from openspyre.ci.select.run_commands import RUN_COMMANDS
from openspyre.ci.select.stages.diff import Change, Diff, diff_text
from openspyre.ci.select.stages.errors import SelectionError
from openspyre.ci.select.stages.knowledge import Asked, Policy
from openspyre.ci.select.stages.plan import Chosen, Plan, plan_text
from openspyre.ci.select.stages.trial import (
    Occasion,
    Outcome,
    Review,
    differences,
    review_text,
    reviewed,
    run_plan,
)
from openspyre.ci.select.writing import with_hits, with_review

CI = Path(__file__).parents[1]
DAY = datetime.date(2026, 11, 30)
ISSUE = "https://example.com/1"
OCCASION = Occasion("f" * 40, DAY)
SAME = Diff("b" * 40, "f" * 40, ())
IDS = [f"test_it.py::TestA::test_{letter}" for letter in "abc"]
PLAN = Plan("b" * 40, "f" * 40, None, tuple(Chosen(id, 1, 1.0, 1.0, "") for id in IDS), ())


@dataclass
class Fake:
    """A runner with known outcomes that may stop in the middle."""

    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    most: int = 99
    ran: list[str] = field(default_factory=list)

    def run(self, items: Sequence[Chosen]) -> Iterator[tuple[Chosen, Sequence[Outcome]]]:
        for item in items[: self.most]:
            self.ran.append(item.id)
            yield item, self.outcomes.get(item.id, [Outcome(item.id, "passed")])


def test_a_run_goes_on_where_it_was_cut_short(tmp_path: Path) -> None:
    journal = tmp_path / "deep" / "run.jsonl"
    with pytest.raises(SelectionError, match="says nothing of 1 tests"):
        run_plan(PLAN, Fake(most=2), journal)
    journal.write_text(journal.read_text() + '{"item": "test_it.py::Te')  # killed while it wrote
    rest = Fake()
    assert [outcome.id for outcome in run_plan(PLAN, rest, journal)] == IDS
    assert rest.ran == IDS[2:]
    again = Fake()
    assert [outcome.id for outcome in run_plan(PLAN, again, journal)] == IDS
    assert again.ran == []


@pytest.mark.parametrize("text", ["{}\n", "nothing\n", "\n"])
def test_a_journal_of_another_plan(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.jsonl").write_text(text)
    with pytest.raises(SelectionError, match="is not of this plan"):
        run_plan(PLAN, Fake(), tmp_path / "run.jsonl")


def outcomes(*buckets: str, reason: str = "") -> list[Outcome]:
    pairs = [(op, dtype) for op in ("add", "sin") for dtype in ("float16", "float32")]
    return [
        Outcome(f"{IDS[0]}[dtype={dtype},op={op}]", bucket, reason if bucket != "passed" else "")
        for (op, dtype), bucket in zip(pairs, buckets, strict=False)
    ]


def review(found: list[Outcome], *, issue: str = "", policy: Policy | None = None) -> Review:
    return reviewed(found, SAME, policy or Policy(), replace(OCCASION, issue=issue))


def test_a_gate_needs_everything_green() -> None:
    (gate,) = review(outcomes(*["passed"] * 4)).proposals
    assert (gate.verdict, gate.hits, gate.test) == ("gate", 4, IDS[0])
    assert review(outcomes("passed", "passed", "passed", "flaky")).proposals[0].verdict == "observe"
    assert review(outcomes(*["skipped-upstream"] * 4)).proposals == ()


@pytest.mark.parametrize(
    ("bucket", "issue", "verdict", "cause"),
    [
        ("failed", "", "observe", "op"), ("failed", ISSUE, "xfail", "op"),
        ("crashed", "", "observe", "crash"), ("crashed", ISSUE, "quarantine", "crash"),
        ("hung", ISSUE, "quarantine", "hang"), ("flaky", ISSUE, "observe", "infra"),
    ],
)  # fmt: skip
def test_verdicts(bucket: str, issue: str, verdict: str, cause: str) -> None:
    (rule,) = review(outcomes(*[bucket] * 4, reason="ValueError: a (b)"), issue=issue).proposals
    assert (rule.verdict, rule.cause, rule.ops) == (verdict, cause, ())
    assert rule.reason.startswith(f"{bucket} at ffffffffffff: ValueError: a (b)")
    assert rule.raises == (("ValueError", r"a\s+\(b\)") if verdict == "xfail" else ("", ""))
    assert rule.isolate is (bucket == "crashed" and not issue)
    assert rule.expires is not None
    assert rule.expires > DAY


@pytest.mark.parametrize(
    ("reason", "text", "raises"),
    [
        ("ValueError: a b", "a\n  b", ("ValueError", r"a\s+b")),
        ("AssertionError: ", "", ("AssertionError", r"^\s*$")),
        ("it told no outcome", "", ("", "")),
    ],
)
def test_what_a_proposed_xfail_expects(reason: str, text: str, raises: tuple[str, str]) -> None:
    """It finds the text itself, of which the reason is one line; without a type there is none."""
    (rule,) = review(outcomes(*["failed"] * 4, reason=reason), issue=ISSUE).proposals
    assert rule.raises == raises
    assert (rule.verdict == "xfail") is bool(raises[0])
    assert re.search(rule.raises[1], text)


@pytest.mark.parametrize("bucket", ["import-error", "not-reached"])
def test_nothing_is_proposed_of_what_nobody_saw(bucket: str) -> None:
    said = review([Outcome("test_it.py::*", bucket, "SyntaxError: x")], issue=ISSUE)
    assert said.proposals == ()


@pytest.mark.parametrize("under", ["another", None])
def test_a_journal_of_another_product(tmp_path: Path, under: str | None) -> None:
    run_plan(PLAN, Fake(), tmp_path / "run.jsonl", "one")
    if under is None:  # it may be read under any
        assert len(run_plan(PLAN, Fake(), tmp_path / "run.jsonl", under)) == 3
        return
    with pytest.raises(SelectionError, match="what is tested, are others"):
        run_plan(PLAN, Fake(), tmp_path / "run.jsonl", under)


@given(st.lists(st.sampled_from(["passed", "failed", "crashed"]), min_size=4, max_size=4))
def test_rules_own_what_failed_and_nothing_else(buckets: list[str]) -> None:
    found = outcomes(*buckets, reason="E: x")
    for rule in review(found).proposals:
        owned = {
            t.id for t in found
            if (not rule.ops or t.parameters["op"] in rule.ops)
            and (not rule.dtypes or t.parameters["dtype"] in rule.dtypes)
        }  # fmt: skip
        buckets_owned = {t.bucket for t in found if t.id in owned}
        assert len(buckets_owned) == 1
        assert len(owned) == rule.hits
    owners = sum(rule.hits for rule in review(found).proposals)
    assert owners == (4 if set(buckets) == {"passed"} else 4 - buckets.count("passed"))


def test_parameters_with_commas() -> None:
    one = Outcome("f.py::A::b[dtype=float32,k=1,2,name=a b]", "passed")
    assert one.parameters == {"dtype": "float32", "k": "1,2", "name": "a b"}
    assert Outcome("f.py::A::b", "passed").parameters == {}


def test_a_gate_that_fails_stays_one_and_is_named() -> None:
    policy = Policy((Asked("A-1", IDS[0], "gate"), Asked("A-2", IDS[1], "observe")))
    found = [Outcome(IDS[0], "failed", "E: x"), Outcome(IDS[1], "passed")]
    said = review(found, policy=policy)
    assert said.proposals == ()
    assert said.red == (f"{IDS[0]}: failed: E: x at {'f' * 40}",)
    assert said.green == ("A-2",)
    text = review_text(said, PLAN)
    assert "## Gates that failed" in text
    assert f"- {said.red[0]}" in text


RULES = """\
schema: openspyre.ci/1
torch: ">=2.13,<2.14"
device: openreg
bootstrap: openreg_device:register
files:
  - path: test_it.py
    rules:
      - {id: IT-001, test: "TestA::test_moved", verdict: gate}
      - {id: IT-002, test: "TestA::test_gone", verdict: gate}
      - {id: IT-003, test: "TestA::test_stays", verdict: gate, hits: 1}
"""


def rules_of(text: str, folder: Path) -> RuleSet:
    (folder / "rules.yaml").write_text(text)
    return read_rules([folder / "rules.yaml"], None)


def test_rules_move_with_their_test_and_die_with_it(tmp_path: Path) -> None:
    rules = rules_of(RULES, tmp_path)
    asked = [
        Asked(r.id, f"test_it.py::{r.cls}::{r.method}", "gate") for r in rules.rules().values()
    ]
    changes = (
        Change("test_to.py::TestB::test_moved", ("moved",), "test_it.py::TestA::test_moved"),
        Change("test_it.py::TestA::test_gone", ("removed",)),
    )
    found = [Outcome(IDS[0], "failed", "E: x"), Outcome("test_new.py::TestN::test_n", "passed")]
    said = reviewed(found, replace(SAME, changes=changes), Policy(tuple(asked)), OCCASION)
    assert said.gone == {"IT-001": "test_to.py::TestB::test_moved", "IT-002": ""}
    written = with_review(rules, said)
    new = rules_of(formatted(written), tmp_path)  # it holds
    assert {id: (r.cls, r.method, r.verdict.value) for id, r in new.rules().items()} == {
        "IT-001": ("TestB", "test_moved", "gate"), "IT-003": ("TestA", "test_stays", "gate"),
        "IT-004": ("TestA", "test_a", "observe"), "NEW-001": ("TestN", "test_n", "gate"),
    }  # fmt: skip
    assert [file.path for file in new.files] == ["test_it.py", "test_new.py", "test_to.py"]
    counted = with_hits(new, {"IT-004": 3, "IT-003": 7}, ["IT-004"])
    assert [r.hits for r in counted.rules().values()] == [1, 3, None, None]


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("passed", "passed", True), ("passed", "failed", False), ("failed", "xfailed", True),
        ("crashed", "quarantined", True), ("flaky", "passed", True), ("passed", "xfailed", False),
        ("passed", "", False),
    ],
)  # fmt: skip
def test_differences(before: str, after: str, same: bool) -> None:
    second = [Outcome("a", after)] if after else []
    assert (differences([Outcome("a", before)], second) == []) is same


UPSTREAM = """
import torch
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase

class TestA(TestCase):
    def test_a(self, device):
        self.assertEqual(torch.ones(3, device=device).sum(), 3)

    @dtypes(torch.float32, torch.float64)
    def test_b(self, device, dtype):
        if dtype == torch.float64:
            raise ValueError("no (double)")

instantiate_device_type_tests(TestA, globals())
"""


def test_a_run_and_its_rules_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a second device: the plan runs, the rules hold a second time."""
    monkeypatch.setenv("PYTHONPATH", f"{CI}:{Path(__file__).parents[3] / 'src'}")
    app = typer.Typer()
    for name, function in RUN_COMMANDS.items():
        app.command(name)(function)
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "test_it.py").write_text(UPSTREAM)
    (tmp_path / "rules.yaml").write_text(RULES.split("    rules:")[0])
    out = tmp_path / "out"
    out.mkdir()
    (out / "plan.json").write_text(plan_text(PLAN))
    (out / "diff.jsonl").write_text(diff_text(SAME))
    shared = ["--tests", str(tmp_path / "up"), "--out", str(out), "--issue", ISSUE, "--json"]
    rules = ["--rules", str(tmp_path / "rules.yaml")]
    ran = CliRunner().invoke(app, ["run-plan", *rules, *shared])
    assert ran.exit_code == 0, ran.output  # nothing was asked yet: what fails is observed
    said = json.loads(ran.output)
    assert said["buckets"] == {"passed": 2, "failed": 1}
    assert not (out / "triage_verdict.json").exists()
    ledger = (out / "ledger.jsonl").read_text()
    again = CliRunner().invoke(app, ["run-plan", *rules, *shared])
    assert (again.exit_code, json.loads(again.output)) == (0, said)  # it had all ended before
    assert (out / "ledger.jsonl").read_text() == ledger
    text = (out / "rules.new.yaml").read_text()
    new = read_rules([out / "rules.new.yaml"], datetime.date.today())
    assert [(r.method, r.verdict.value, r.dtypes) for r in new.rules().values()] == [
        ("test_a", "gate", ()), ("test_b", "xfail", ("float64",)),
    ]  # fmt: skip
    verified = CliRunner().invoke(app, ["verify", *shared])
    assert verified.exit_code == 0, verified.output
    with_numbers = (out / "rules.new.yaml").read_text()
    assert with_numbers.count("hits: 1") == 2
    assert "".join(line for line in with_numbers.splitlines(True) if "hits" not in line) == text
    assert {path.name for path in out.iterdir()} >= {"ledger.jsonl", "junit.xml", "review.md"}
