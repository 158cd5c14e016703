"""`relay-stub` as a person uses it: served by the command, used by the others."""

from __future__ import annotations

import hashlib
import hmac
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from openspyre.ci.relay.__main__ import app
from openspyre.ci.relay.message import InvalidMessage
from openspyre.ci.relay.stub.clock import SetClock
from openspyre.ci.relay.stub.rehearsal import rehearsal
from openspyre.ci.relay.wire import State
from tests.ci.relay.world import ALLOWLIST, TWO, UP, envelope, pull_request


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[dict[str, str]]:
    (tmp_path / "allowlist.yml").write_text(ALLOWLIST)
    words = ["relay-stub", "--upstream", UP, "--allowlist", str(tmp_path / "allowlist.yml")]
    words += ["--repository", TWO, "--dispatches", str(tmp_path / "sent"), "--seconds", "120"]
    command = [sys.executable, "-m", "openspyre.ci.relay", *words, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def test_a_rehearsal_from_the_hook_to_the_page(stub: dict[str, str], tmp_path: Path) -> None:
    body = json.dumps(pull_request()).encode()
    digest = hmac.new(stub["webhook_secret"].encode(), body, hashlib.sha256).hexdigest()
    headers = {
        "X-GitHub-Event": "pull_request",
        "X-GitHub-Delivery": "d-1",
        "X-Hub-Signature-256": f"sha256={digest}",
    }
    assert httpx2.post(stub["webhook"], content=body, headers=headers).status_code == 200
    sent = sorted(path.name for path in (tmp_path / "sent").iterdir())
    assert sent == ["d-1.down.four.json", "d-1.down.one.json", *sent[2:]]
    assert len(sent) == 4

    def ran(*words: str) -> Any:
        variables = {name: stub[name] for name in stub if name.isupper()}
        variables |= {"GITHUB_RUN_ID": "5", "GITHUB_REPOSITORY": TWO, "GITHUB_WORKFLOW": "w"}
        event = str(tmp_path / "sent" / "d-1.down.two.json")
        found = CliRunner().invoke(app, [*words, "--upstream", UP, event], env=variables)
        assert found.exit_code == 0, found.output
        return found.stdout

    assert ran("receive", "--journal", str(tmp_path / "journal")).startswith("run (pull request 7")
    to = ("--url", stub["callback"], "--job-name", "leg")
    ran("report", "announce", *to)
    ran("report", "complete", *to, "--result", "cancelled")
    assert "cancelled" in httpx2.get(stub["dashboard"] + "/" + TWO).text


def test_a_stub_sweeps_while_it_runs(tmp_path: Path) -> None:
    clock = SetClock(1000.0)
    stub = rehearsal(
        upstream=UP, allowlist=ALLOWLIST, repository=TWO, dispatches=tmp_path, clock=clock
    )
    relay = stub.service.relay
    relay._dispatched("push", "d-1", {})
    token = stub.service.issuer.token(TWO)
    workflow = {"status": "in_progress", "run_id": 5, "name": "w", "job_name": "j"}
    body = {"delivery_id": "d-1", "workflow": {**workflow, "check_run_id": "c"}}
    answer = relay.callback({"authorization": token}, json.dumps(body).encode())
    assert answer.status == 200
    stub.sweep_for(6 * 3600 + 120)
    assert clock.time == 1000.0 + 6 * 3600 + 120
    states = {record.state for key, record in relay.store.records.items() if key.job_name}
    assert states == {State.COMPLETED}


@pytest.mark.parametrize(
    ("allowlist", "faults", "why"),
    [("L1: {}", (), "no list"), ("", ("6xx",), "there is no fault '6xx'")],
)
def test_what_a_stub_cannot_be_made_of(
    tmp_path: Path, allowlist: str, faults: tuple[str, ...], why: str
) -> None:
    with pytest.raises(InvalidMessage, match=why):
        rehearsal(
            upstream=UP, allowlist=allowlist, repository=TWO, dispatches=tmp_path, faults=faults
        )


def test_a_delivery_that_cannot_name_a_file_is_not_dispatched(tmp_path: Path) -> None:
    stub = rehearsal(upstream=UP, allowlist=ALLOWLIST, repository=TWO, dispatches=tmp_path / "sent")
    relay = stub.service.relay
    body = json.dumps(pull_request()).encode()
    for delivery in ("../../x", "a/b", "", "x" * 200):
        digest = hmac.new(relay.secret, body, hashlib.sha256).hexdigest()
        headers = {
            "x-github-event": "pull_request",
            "x-github-delivery": delivery,
            "x-hub-signature-256": f"sha256={digest}",
        }
        assert relay.webhook(headers, body).status == 502
    assert not (tmp_path / "sent").exists()


def test_a_stub_that_is_killed_leaves_no_half_of_a_dispatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = rehearsal(upstream=UP, allowlist=ALLOWLIST, repository=TWO, dispatches=tmp_path)

    def killed(path: Path, contents: bytes) -> int:
        path.write_text(contents.decode()[:50])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", killed)
    with pytest.raises(KeyboardInterrupt):
        stub.service.relay.dispatch(TWO, json.dumps(envelope(pull_request())).encode())
    assert not [*tmp_path.glob("*.json")]


@pytest.mark.parametrize(
    "words",
    [
        ["--allowlist", "missing.yml"],
        ["--allowlist", "bad.yml"],
        ["--allowlist", "good.yml", "--upstream", "torch"],
        ["--allowlist", "good.yml", "--repository", "me"],
    ],
)
def test_the_command_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yml").write_text("L1: {}")
    Path("good.yml").write_text(ALLOWLIST)
    options = ["--upstream", UP, "--repository", TWO, "--dispatches", "sent", "--seconds", "0"]
    ran = CliRunner().invoke(app, ["relay-stub", *options, *words])
    assert ran.exit_code == 2
    assert ran.stderr.startswith("spyre-ci relay-stub: ")
