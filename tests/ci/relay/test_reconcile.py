"""What upstream shows and the journal lacks is found, and taken once."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from openspyre.ci.relay.__main__ import app
from openspyre.ci.relay.envelope import read_envelope
from openspyre.ci.relay.journal import Journal, Run
from openspyre.ci.relay.receive import received
from tests.ci.relay.world import SHA, UP, envelope, pull_request, push

HOUR = 3600.0


def sha(number: int) -> str:
    return f"{number:040x}"


def ago(hours: float) -> str:
    return datetime.fromtimestamp(time.time() - hours * HOUR, UTC).isoformat()


def pull(number: int, hours: float = 5.0, commit: str = "") -> dict[str, object]:
    head, base = {"sha": commit or sha(number)}, {"ref": "main"}
    return {"number": number, "head": head, "base": base, "updated_at": ago(hours), "title": "$(x)"}


def commit(number: int, hours: float = 5.0) -> dict[str, object]:
    return {"sha": sha(number), "commit": {"committer": {"date": ago(hours)}, "message": "`x`"}}


class Night:
    """A journal, what upstream shows, and the command."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.journal = folder, Journal(folder / "journal")
        self.run_id = 100

    def take(self, number: int, hours: float = 5.0, delivery: str = "") -> None:
        payload = pull_request(number=number, head={"sha": sha(number)})
        message = json.dumps(envelope(payload, delivery=delivery or f"d-{number}")).encode()
        sent, now = read_envelope(message, UP), time.time() - hours * HOUR
        received(sent, Run(number, 1), self.journal, frozenset(), now)

    def __call__(
        self, *options: str, pulls: object = None, commits: object = None, code: int = 0
    ) -> Any:
        words = ["reconcile", "--upstream", UP, "--journal", str(self.journal.path), "--json"]
        if pulls is not None:
            (self.folder / "pulls.json").write_text(json.dumps(pulls))
            words += ["--pulls", str(self.folder / "pulls.json")]
        if commits is not None:
            (self.folder / "commits.json").write_text(json.dumps(commits))
            words += ["--commits", f"main={self.folder / 'commits.json'}"]
        self.run_id += 1
        output = self.folder / f"output-{self.run_id}"
        words += ["--run-id", str(self.run_id), "--output", str(output), *options]
        ran = CliRunner().invoke(app, words)
        assert ran.exit_code == code, ran.output
        if code:
            return ran.stderr
        (line,) = output.read_text().splitlines()
        found = json.loads(ran.stdout)
        assert json.loads(line.removeprefix("again=")) == [
            {"sha": one["sha"]} for one in found["missed"] if one["again"]
        ]
        return found


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return Night(tmp_path)


def shas(found: Any, *, again: bool = False) -> list[int]:
    return [int(one["sha"], 16) for one in found["missed"] if one["again"] or not again]


def test_what_arrived_is_not_missed(night: Night) -> None:
    night.take(1)
    found = night(pulls=[pull(1), pull(2, 6.0), pull(3)], commits=[commit(4, 2.0), commit(5)])
    assert shas(found) == [4, 3, 2]  # the latest first; of a branch its head
    assert shas(found, again=True) == [4, 3, 2]


@pytest.mark.parametrize("ref", ["refs/tags/ciflow/trunk/1", "refs/heads/gh/ann/1/head"])
def test_a_push_that_is_ignored_does_not_stand_for_a_pull_request(night: Night, ref: str) -> None:
    message = json.dumps(envelope(push(ref, sha(1)), "push", "d-1")).encode()
    received(read_envelope(message, UP), Run(1, 1), night.journal, frozenset(), time.time())
    assert shas(night(pulls=[pull(1)])) == [1]


def test_what_is_run_again_is_not_missed_the_next_night(night: Night) -> None:
    assert sorted(shas(night(pulls=[pull(1)], commits=[commit(2)]))) == [1, 2]
    assert shas(night(pulls=[pull(1)], commits=[commit(2)])) == []
    entries = {entry.delivery_id: entry for entry in night.journal.entries()}
    assert entries[sha(1)].concurrency == "pr-1"
    assert entries[sha(2)].concurrency == "push-refs/heads/main"
    assert {entry.run.run_id for entry in entries.values()} == {101}


def test_what_is_too_much_for_a_night_waits_for_the_next(night: Night) -> None:
    pulls = [pull(n, float(n)) for n in range(2, 8)]
    assert shas(night("--most", "4", pulls=pulls), again=True) == [2, 3, 4, 5]
    assert shas(night("--most", "4", pulls=pulls), again=True) == [6, 7]
    found = night("--most", "0", pulls=[pull(9)])
    assert (shas(found), shas(found, again=True)) == ([9], [])


def test_what_is_old_is_let_be_and_what_is_new_may_still_come(night: Night) -> None:
    pulls = [pull(1, 47.9), pull(2, 48.1), pull(3, 0.9), pull(4, 1.1)]
    assert shas(night(pulls=pulls)) == [4, 1]
    assert shas(night("--hours", "72", "--patience", "0", pulls=pulls)) == [3, 2]


def test_two_pull_requests_with_one_commit_run_once(night: Night) -> None:
    found = night(pulls=[pull(1, commit=SHA), pull(2, commit=SHA)])
    assert len(found["missed"]) == 1
    assert len([e for e in night.journal.entries() if e.sha == SHA]) == 1


def test_a_run_that_never_ended_is_told(night: Night) -> None:
    for number in (1, 2, 3):
        night.take(number, 7.0)
    night.take(4, 5.0)  # it may still run
    night.journal.finish("d-2", "success", 0.0)
    found = night()
    assert [entry["delivery_id"] for entry in found["unfinished"]] == ["d-1", "d-3"]


def test_dispatches_that_were_not_received_are_told(night: Night, tmp_path: Path) -> None:
    night.take(1)
    folder = tmp_path / "dispatches"
    folder.mkdir()
    for delivery in ("d-1", "d-9"):
        text = json.dumps(envelope(pull_request(), delivery=delivery))
        (folder / f"{delivery}.json").write_text(text)
    found = night("--dispatches", str(folder))
    assert found["unreceived"] == {"d-9": "d-9.json"}


@pytest.mark.parametrize("contents", [b"{", None])
def test_a_file_that_is_no_dispatch_is_named(
    night: Night, tmp_path: Path, contents: bytes | None
) -> None:
    path = tmp_path / "dispatches" / "half.json"
    path.parent.mkdir()
    path.mkdir() if contents is None else path.write_bytes(contents)
    assert f"{path} is no dispatch" in night("--dispatches", str(path.parent), code=2)


def test_a_folder_that_is_not_there_is_told(night: Night) -> None:
    assert "no folder" in night("--dispatches", str(night.folder / "no"), code=2)


def test_a_list_that_is_too_long_is_told(night: Night) -> None:
    path = night.folder / "long.json"
    with path.open("wb") as file:
        file.truncate(20 * 1024 * 1024)
    assert "is too long" in night("--pulls", str(path), code=2)


def test_wrong_input_forgets_nothing(night: Night) -> None:
    night.take(1, 24 * 91)
    night(pulls={}, code=2)
    assert len(night.journal.entries()) == 1


def test_what_is_forgotten_is_not_looked_for(night: Night) -> None:
    assert "forgotten" in night("--hours", "100", "--forget-days", "4", code=2)


def test_the_journal_forgets_after_its_time(night: Night) -> None:
    night.take(1, 24 * 91)
    night.take(2, 24 * 89)
    night()
    assert [entry.delivery_id for entry in night.journal.entries()] == ["d-2"]


@pytest.mark.parametrize(
    ("lists", "why"),
    [
        ({"pulls": {}}, "not an array"),
        ({"pulls": [{**pull(1), "head": {"sha": "$(id)"}}]}, "40 hex digits"),
        ({"pulls": [{**pull(1), "updated_at": "now"}]}, "ISO 8601"),
        ({"pulls": [{**pull(1), "base": {"ref": "a b"}}]}, "branch"),
        ({"commits": [{}]}, "it has no sha"),
        ({"commits": "x"}, "not an array"),
    ],
)
def test_lists_that_are_none_are_refused(night: Night, lists: Any, why: str) -> None:
    assert why in night(code=2, **lists)
    assert night.journal.entries() == ()


@pytest.mark.parametrize("word", ["main", "=x", "a b=x", "main=missing.json"])
def test_a_list_of_commits_has_a_branch_and_a_file(night: Night, word: str) -> None:
    night("--commits", word, code=2)


def test_people_read_lines(night: Night) -> None:
    night.take(1, 7.0)
    (night.folder / "pulls.json").write_text(json.dumps([pull(2), pull(3, 6.0)]))
    ran = CliRunner().invoke(
        app,
        [
            *("reconcile", "--upstream", UP, "--journal", str(night.journal.path), "--run-id", "1"),
            *("--pulls", str(night.folder / "pulls.json"), "--most", "1"),
        ],
    )
    assert ran.stdout.splitlines() == [
        f"missed      {sha(2)[:12]} pull request 2 (runs again)",
        f"missed      {sha(3)[:12]} pull request 3",
        f"unfinished  {sha(1)[:12]} d-1 (run 1)",
        "2 missed, 1 run again; 1 unfinished, 0 unreceived",
    ]
