"""The workflow files: what each job may do, and their own command lines run against the stub."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from openspyre.ci.cli import app as whole_app
from openspyre.ci.relay.__main__ import app
from openspyre.ci.relay.journal import Journal
from openspyre.ci.relay.stub.server import Service, served
from tests.ci.relay.world import SHA, TWO, UP, envelope, pull_request, world

ROOT = Path(__file__).parents[3]
FILES = {path.stem: path for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
WORKFLOWS: dict[str, Any] = {
    name: yaml.load(path.read_text(), yaml.BaseLoader) for name, path in FILES.items()
}
DISPATCH, LEG, NIGHTLY = "upstream-dispatch", "upstream-leg", "upstream-nightly"
JOBS = [(file, job) for file, found in WORKFLOWS.items() for job in found["jobs"]]
STEPS = [
    (file, job, number)
    for file, job in JOBS
    for number in range(len(WORKFLOWS[file]["jobs"][job].get("steps", ())))
]
MAY_MINT = {(LEG, "announce"), (LEG, "report")}
CALLS = {(DISPATCH, "legs"), (NIGHTLY, "legs")}
OUTSIDE = re.compile(r"github\.event|github\.head_ref")


def job(file: str, name: str) -> Any:
    return WORKFLOWS[file]["jobs"][name]


def step(file: str, name: str, number: int) -> Any:
    return job(file, name)["steps"][number]


def test_there_are_three() -> None:
    assert set(WORKFLOWS) >= {DISPATCH, LEG, NIGHTLY}


@pytest.mark.parametrize("file", [DISPATCH, LEG, NIGHTLY])
def test_nothing_is_allowed_unless_a_job_says_so(file: str) -> None:
    assert WORKFLOWS[file]["permissions"] == {}
    assert all("permissions" in found for found in WORKFLOWS[file]["jobs"].values())


@pytest.mark.parametrize(("file", "name"), JOBS)
def test_only_those_who_report_may_have_a_token(file: str, name: str) -> None:
    allowed = {"contents": "read"}
    if (file, name) in MAY_MINT | CALLS:
        allowed["id-token"] = "write"
    assert job(file, name)["permissions"].items() <= allowed.items()


def test_who_may_have_a_token_never_sees_upstreams_code() -> None:
    for file, name in MAY_MINT:
        for found in job(file, name)["steps"]:
            if "checkout" in found.get("uses", ""):
                assert not {"repository", "ref", "path"} & found["with"].keys()
            assert "upstream/" not in found.get("run", "")
    shown = [found.get("with", {}) for found in job(LEG, "test")["steps"]]
    assert any(w.get("repository") == "${{ inputs.repository }}" for w in shown)
    assert "id-token" not in job(LEG, "test")["permissions"]
    assert "secrets." not in FILES[LEG].read_text()


@pytest.mark.parametrize(("file", "name", "number"), STEPS)
def test_no_value_gets_into_a_shell_but_as_a_variable(file: str, name: str, number: int) -> None:
    found = step(file, name, number)
    assert "${{" not in found.get("run", "")
    for variable in re.findall(r"\$(?:\{)?([A-Z_]+)", found.get("run", "")):
        assert variable in found["env"], f"{variable} comes from somewhere else"
    unquoted = re.sub(r'"[^"]*"|\'[^\']*\'', "", found.get("run", ""))
    assert "$" not in unquoted


@pytest.mark.parametrize("file", [DISPATCH, LEG, NIGHTLY])
def test_nothing_of_a_payload_is_in_an_expression(file: str) -> None:
    expressions = re.findall(r"\$\{\{(.*?)\}\}", FILES[file].read_text())
    assert expressions
    assert not [text for text in expressions if OUTSIDE.search(text)]


@pytest.mark.parametrize(("file", "name", "number"), STEPS)
def test_foreign_actions_are_pinned_and_leave_no_credentials(
    file: str, name: str, number: int
) -> None:
    found = step(file, name, number)
    if "uses" in found:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", found["uses"])
    if found.get("uses", "").startswith("actions/checkout@"):
        assert found["with"]["persist-credentials"] == "false"


@pytest.mark.parametrize(("file", "name"), JOBS)
def test_every_job_ends(file: str, name: str) -> None:
    found = job(file, name)
    assert ("timeout-minutes" in found) != ("uses" in found)


@pytest.mark.parametrize(("file", "name"), sorted(CALLS))
def test_a_leg_is_given_what_it_asks_for(file: str, name: str) -> None:
    found = job(file, name)
    assert found["uses"] == f"./.github/workflows/{LEG}.yml"
    inputs = WORKFLOWS[LEG]["on"]["workflow_call"]["inputs"]
    given = found["with"].keys()
    assert given <= inputs.keys()
    assert {name for name, one in inputs.items() if one.get("required") == "true"} <= given
    assert found["with"]["leg"] == "${{ matrix.leg }}"  # which names the job at the relay


def test_a_closed_pull_request_takes_the_place_of_its_legs() -> None:
    given = job(DISPATCH, "legs")["with"]
    group = job(LEG, "test")["concurrency"]["group"]
    for name in ("concurrency", "leg"):
        group = group.replace(f"${{{{ inputs.{name} }}}}", given[name])
    assert job(DISPATCH, "cancel")["concurrency"]["group"] == group
    for found in (job(DISPATCH, "cancel"), job(LEG, "test")):
        assert found["concurrency"]["cancel-in-progress"] == "true"
    assert "concurrency" not in WORKFLOWS[DISPATCH]  # a repeated dispatch must cancel nothing


def test_what_was_announced_is_reported_however_the_test_ends() -> None:
    assert job(LEG, "report")["if"].startswith("${{ always() &&")
    assert job(LEG, "report")["needs"] == ["announce", "test"]
    assert job(LEG, "test")["if"] == "${{ !cancelled() }}"


def test_outputs_are_those_of_the_commands() -> None:
    for file, name, number in STEPS:
        text = json.dumps(job(file, name).get("outputs", {}))
        for used in re.findall(r"steps\.(\w+)\.outputs", text):
            assert any(found.get("id") == used for found in job(file, name)["steps"]), number


def test_the_leg_runs_the_tests_with_options_that_exist() -> None:
    (line,) = (s["run"] for s in job(LEG, "test")["steps"] if "spyre-ci" in s.get("run", ""))
    words = line.split()
    assert words[:2] == ["spyre-ci", "run"]
    command: Any = typer.main.get_command(whole_app)
    options = {option for param in command.commands["run"].params for option in param.opts}
    assert {word for word in words if word.startswith("--")} <= options
    assert {"receive", "finish", "report", "reconcile", "relay-stub"} <= command.commands.keys()


def command_lines() -> Iterator[tuple[str, str, list[str]]]:
    for file, name, number in STEPS:
        words = step(file, name, number).get("run", "").split()
        if words[:3] == ["python", "-m", "openspyre.ci.relay"]:
            yield file, name, words[3:]


def test_every_option_of_a_command_line_exists() -> None:
    lines = list(command_lines())
    assert {words[0] for _, _, words in lines} == {"receive", "report", "reconcile", "finish"}
    for _, _, words in lines:
        command: Any = typer.main.get_command(app)
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        options = {option for param in command.params for option in param.opts}
        assert {word for word in words if word.startswith("--")} <= options


# --- the command lines themselves, in a shell -------------------------------------------------


class Runner:
    """Runs steps as GitHub does: expressions become variables, a shell runs the line."""

    def __init__(self, folder: Path, values: Mapping[str, str], **variables: str) -> None:
        self.folder, self.values, self.variables = folder, values, variables

    def __call__(self, file: str, name: str, **values: str) -> dict[str, str]:
        (found,) = (s for s in job(file, name)["steps"] if "PYTHONPATH" in s.get("env", {}))
        known = {**self.values, **values}
        output = self.folder / f"output-{name}"
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "ACTIONS_"))},
            **{k: self.evaluated(text, known) for k, text in found["env"].items()},
            **self.variables,
            "GITHUB_OUTPUT": str(output),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        ran = subprocess.run(
            ["bash", "-e", "-c", found["run"]], cwd=ROOT, env=environment, text=True,
            capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert "::" not in ran.stdout
        lines = output.read_text().splitlines() if output.exists() else []
        return dict(line.split("=", 1) for line in lines)

    @staticmethod
    def evaluated(text: str, known: Mapping[str, str]) -> str:
        return re.sub(r"\$\{\{ (.*?)(?: \|\| .*?)? \}\}", lambda found: known[found[1]], text)


def test_the_workflows_own_lines_from_a_hostile_dispatch_to_the_dashboard(tmp_path: Path) -> None:
    made = world()
    mark = tmp_path / "executed"
    hostile = f'"; touch {mark}; $(touch {mark}) `touch {mark}`\n::set-output name=step::run'
    payload = pull_request(title=hostile, body=hostile, labels=[{"name": hostile[:100]}])
    assert made.hook(payload).status == 200
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"client_payload": envelope(payload), "action": hostile}))
    with served(Service(made.relay, made.issuer, TWO, "password")) as address:
        settings = {
            "vars.RELAY_UPSTREAM": UP,
            "vars.RELAY_CALLBACK": f"{address}/github/callback",
            "vars.RELAY_JOURNAL": str(tmp_path / "journal"),
            "vars.RELAY_BRANCH": "main",
            "inputs.leg": "abacus",
            "inputs.nightly": "",
            "runner.temp": str(tmp_path),
        }
        run = Runner(
            tmp_path,
            settings,
            GITHUB_EVENT_PATH=str(event),
            GITHUB_RUN_ID="77",
            GITHUB_RUN_ATTEMPT="1",
            GITHUB_WORKFLOW="upstream",
            GITHUB_REPOSITORY=TWO,
            GITHUB_SERVER_URL="https://github.com",
            ACTIONS_ID_TOKEN_REQUEST_URL=f"{address}/token?v=1",
            ACTIONS_ID_TOKEN_REQUEST_TOKEN="password",
        )
        taken = run(DISPATCH, "receive")
        assert (taken["step"], taken["ref"], taken["repository"]) == ("run", SHA, UP)
        announced = run(LEG, "announce")
        (tmp_path / "results").mkdir()
        summary = tmp_path / "results" / "summary.json"
        summary.write_text(json.dumps({"buckets": {"passed": 4}}))
        outputs = {f"needs.announce.outputs.{name}": text for name, text in announced.items()}
        run.variables["GITHUB_RUN_ATTEMPT"] = "2"  # of the reporting job alone
        run(LEG, "report", **outputs, **{"needs.test.result": "success"})
        ended = {f"needs.receive.outputs.{name}": text for name, text in taken.items()}
        run(DISPATCH, "finish", **ended, **{"needs.legs.result": "success"})
    (row,) = made.hud.rows.values()
    assert made.hud.seen[row.key] == 2
    assert (row.job, row.check_run_id, row.conclusion) == ("abacus", "77-1", "success")
    assert Journal(tmp_path / "journal").entries()[0].conclusion == "success"
    assert not mark.exists()


def test_the_nightlys_own_lines(tmp_path: Path) -> None:
    moment = datetime.now(UTC) - timedelta(hours=2)
    commit = {"sha": SHA, "commit": {"committer": {"date": moment.isoformat()}}}
    (tmp_path / "commits.json").write_text(json.dumps([commit]))
    (tmp_path / "pulls.json").write_text("[]")
    settings = {
        "vars.RELAY_UPSTREAM": UP,
        "vars.RELAY_JOURNAL": str(tmp_path / "journal"),
        "vars.RELAY_BRANCH": "main",
        "runner.temp": str(tmp_path),
        "matrix.missed.sha": SHA,
        "needs.legs.result": "failure",
    }
    run = Runner(tmp_path, settings, GITHUB_RUN_ID="78")
    assert json.loads(run(NIGHTLY, "reconcile")["again"]) == [{"sha": SHA}]
    run(NIGHTLY, "finish")
    (entry,) = Journal(tmp_path / "journal").entries()
    assert (entry.delivery_id, entry.conclusion) == (SHA, "failure")


def test_the_jobs_that_report_need_neither_torch_nor_the_stubs_libraries() -> None:
    text = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'jwt', 'cryptography', 'yaml'): sys.modules[name] = None\n"
        "from openspyre.ci.relay.__main__ import app\n"
    )
    subprocess.run([sys.executable, "-c", text], check=True)
