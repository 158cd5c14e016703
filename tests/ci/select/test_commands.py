"""The commands of selection, on *up* with the device of OpenReg's name."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from openspyre.ci.select import stages
from openspyre.ci.select.commands import COMMANDS
from tests.ci.select.openreg import TABLE
from tests.ci.select.planted_changes import trees
from tests.ci.select.repositories import make_repository

app = typer.Typer()
for name, function in COMMANDS.items():
    app.command(name)(function)
STAGES = Path(stages.__file__).parent
AGENT = """
import json, sys
batch = json.load(sys.stdin)["batch"]
print(json.dumps({"answers": [
    {"id": q["id"], "label": "irrelevant", "why": "x",
     "cited_lines": [int(next(iter(q["source"])))]} for q in batch]}))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    base, head = trees()
    make_repository(folder / "up.git", {"base": base, "head": head})
    (folder / "capability.json").write_text(json.dumps(TABLE))
    rule = {"id": "B-1", "test": "TestA::test_y", "verdict": "gate"}
    (folder / "rules.yaml").write_text(
        json.dumps({"files": [{"path": "test_body.py", "rules": [rule]}]})
    )
    (folder / "agent.py").write_text(AGENT)
    return folder


def call(place: Path, *words: str, code: int = 0) -> str:
    shared = {
        "enumerate": ["--repo", f"{place}/up.git", "--base", "base", "--head", "head"],
        "relevance": ["--capability", f"{place}/capability.json", "--device", "openreg"],
    }
    shared["plan"] = [*shared["enumerate"][:2], *shared["relevance"]]
    shared["preview"] = [*shared["enumerate"], *shared["relevance"]]
    given = [] if "--help" in words else ["--out", f"{place}/out", *shared.get(words[0], ())]
    found = CliRunner().invoke(app, [words[0], *given, *words[1:]])
    assert found.exit_code == code, found.output
    return found.output


def test_stage_by_stage_is_what_preview_does(place: Path) -> None:
    rules = ("--rules", f"{place}/rules.yaml")
    counted = json.loads(call(place, "enumerate", "--json"))
    assert counted["head"]["broken_files"] == 2
    assert json.loads(call(place, "diff", "--json"))["counts"]["moved"] >= 6
    call(place, "relevance", *rules)
    call(place, "plan", *rules)
    files = {path.name: path.read_bytes() for path in (place / "out").iterdir()}
    assert set(files) == {
        "enum.base.jsonl", "enum.head.jsonl", "diff.jsonl", "relevance.jsonl", "plan.json",
    }  # fmt: skip
    call(place, "preview", *rules)
    assert {path.name: path.read_bytes() for path in (place / "out").iterdir()} == files
    shutil.rmtree(place / "out")
    call(place, "preview", *rules)
    assert {path.name: path.read_bytes() for path in (place / "out").iterdir()} == files
    said = call(place, "explain", "test_body.py::TestA::test_y", *rules)
    assert "rule B-1: gate" in said
    assert "tier 0 (always)" in said
    assert "does not run: not-selected" in call(place, "explain", "test_body.py::TestA::test_x")


def test_an_agent_is_asked_about_the_unsure_alone(place: Path) -> None:
    call(place, "enumerate")
    call(place, "diff")
    alone = json.loads(call(place, "relevance", "--json"))["counts"]
    agent = ("--agent", f"{sys.executable} {place}/agent.py", "--repo", f"{place}/up.git")
    asked = json.loads(call(place, "relevance", "--json", *agent))
    assert asked["counts"]["relevant"] == alone["relevant"]
    assert asked["counts"]["unsure"] == 2  # what does not parse or is gone cannot be shown
    assert alone["unsure"] > 10
    assert f"changed {alone['unsure'] - 2} labels" in asked["agent"]
    call(place, "relevance", *agent[:2], code=2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plan", "--budget", "-1"), "a budget of -1.0 s is none"),
        (("plan", "--today", "soon"), "--today soon is no day"),
        (("plan", "--rules", "agent.py"), "agent.py is no YAML"),
        (("plan", "--history", "agent.py"), "agent.py is no JSON"),
        (("plan", "--history", "rules.yaml"), "this is no history"),
        (("explain", "test_x.py::A::b"), "neither ref has test_x.py::A::b"),
        (("enumerate", "--head", "missing"), "name a repository and refs"),
        (("relevance", "--agent", "sh -c 'open"), "--agent sh -c 'open is no command"),
        (("plan", "--rules", "deep.yaml"), "deep.yaml:1:1: it is nested too deep"),
        (("plan", "--rules", "bell.yaml"), "bell.yaml:1:1: U+0007 is no character of YAML"),
        (("plan", "--rules", "day.yaml"), "day.yaml:1:4: '2026-13-45' is no timestamp"),
        (("plan", "--history", "deep.yaml"), "deep.yaml is no JSON"),
        (("plan", "--history", "past.yaml"), "failed 'often'"),
        (("plan", "--budget", "nan"), "a budget of nan s is none"),
    ],
)
def test_a_mistake_is_one_message(
    place: Path, words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    Path("deep.yaml").write_text("[" * 100_000)
    Path("past.yaml").write_text('{"a.py::A::b": {"failed": "often"}}')
    Path("bell.yaml").write_text("\a: 1\n")
    Path("day.yaml").write_text("a: 2026-13-45\n")
    call(place, "preview")
    said = call(place, *words, code=2)
    assert message in said
    assert "Traceback" not in said


def test_rules_that_are_worn(place: Path) -> None:
    """*down*: an expired rule runs first, a dead one and two that clash stop nothing."""
    rules = [
        {
            "id": "E",
            "test": "TestA::test_y",
            "verdict": "xfail",
            "dates": {"expires": "2020-01-01"},
        },
        {"id": "D", "test": "TestA::test_dead", "verdict": "gate"},
        {"id": "C1", "test": "TestA::test_x", "verdict": "gate"},
        {"id": "C2", "test": "TestA::test_x", "verdict": "observe"},
    ]
    files = [{"path": "test_comment.py", "sha256": "drifted", "rules": rules}]
    (place / "down.yaml").write_text(json.dumps({"files": files}))
    past = {"test_comment.py::TestA::test_x": {"failed": 1, "last": "failed", "seconds": 3.0}}
    (place / "history.json").write_text(json.dumps(past))
    words = ("--rules", f"{place}/down.yaml", "--history", f"{place}/history.json")
    plan = json.loads(call(place, "preview", "--json", "--today", "2026-12-01", *words))["plan"]
    first = {one["id"]: one for one in plan["chosen"] if one["tier"] == 0}
    assert first["test_comment.py::TestA::test_y"]["why"] == "rule E expires on 2020-01-01"
    assert first["test_comment.py::TestA::test_x"]["seconds"] == 3.0
    assert not any("test_dead" in one["id"] for one in plan["chosen"])
    call(place, "preview", "--budget", "2", "--today", "2026-12-01", *words, code=2)


@pytest.mark.parametrize("name", COMMANDS)
def test_help(place: Path, name: str) -> None:
    assert len(call(place, name, "--help").splitlines()) > 5


def test_stages_need_nothing_of_ours(place: Path, tmp_path: Path) -> None:
    """The folder works as it is in another project."""
    shutil.copytree(STAGES, tmp_path / "stages")
    code = """
import sys
from pathlib import Path
from stages.diff import diff_of
from stages.enumeration import enumerate_ref
from stages.git import Repository
from stages.layout import Layout
import stages.agent, stages.explaining, stages.plan, stages.product
pair = [enumerate_ref(Repository(Path(sys.argv[1])), ref, Layout()) for ref in ("base", "head")]
print(len(diff_of(*pair, Layout()).changes))
assert not {"torch", "openspyre"} & sys.modules.keys()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, f"{place}/up.git"], cwd=tmp_path, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


@pytest.mark.parametrize("path", sorted(STAGES.glob("*.py")), ids=lambda path: path.name)
def test_stages_name_no_device_and_nothing_of_ours(path: Path) -> None:
    text = path.read_text()
    assert "spyre" not in text
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            assert all(a.name.split(".")[0] in sys.stdlib_module_names for a in node.names)
        if isinstance(node, ast.ImportFrom) and not node.level:
            assert str(node.module).split(".")[0] in sys.stdlib_module_names
