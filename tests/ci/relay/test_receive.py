"""Each delivery leads to one run at most, whatever is repeated, late, killed or simultaneous."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from openspyre.ci.relay.__main__ import app
from openspyre.ci.relay.envelope import Envelope, read_envelope
from openspyre.ci.relay.journal import Journal, Run, Unwritable
from openspyre.ci.relay.receive import Decision, Step, decision, received
from tests.ci.relay.world import OTHER_SHA, SHA, UP, envelope, pull_request, push

MAIN = frozenset({"main"})


def dispatch(payload: object, event: str = "pull_request", delivery: str = "d-1") -> Envelope:
    return read_envelope(json.dumps(envelope(payload, event, delivery)).encode(), UP)


def taken(journal: Journal, sent: Envelope, run: int = 1, attempt: int = 1) -> Decision:
    return received(sent, Run(run, attempt), journal, MAIN, time.time())


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "state" / "journal.sqlite")


@pytest.mark.parametrize(
    ("payload", "event", "step", "lane", "ref"),
    [
        (pull_request("opened"), "pull_request", "run", "pull-request", SHA),
        (pull_request("reopened"), "pull_request", "run", "pull-request", SHA),
        (pull_request("synchronize"), "pull_request", "run", "pull-request", SHA),
        (pull_request("closed"), "pull_request", "cancel", "", ""),
        (pull_request("closed", merged=True), "pull_request", "cancel", "", ""),
        (
            pull_request("closed", labels=[{"name": "Merged"}], base={"ref": "release/2.13"}),
            *("pull_request", "run", "post-merge", "release/2.13"),
        ),
        (
            pull_request("opened", labels=[{"name": "Merged"}]),
            *("pull_request", "run", "pull-request", SHA),
        ),
        (push("refs/heads/main"), "push", "run", "push", SHA),
        (push("refs/heads/other"), "push", "ignore", "", ""),
        (push("refs/tags/main"), "push", "ignore", "", ""),
        (push("refs/tags/ciflow/trunk/7"), "push", "ignore", "", ""),
        (push("refs/heads/main", "0" * 40, True), "push", "ignore", "", ""),
    ],
)
def test_what_a_dispatch_leads_to(
    payload: object, event: str, step: str, lane: str, ref: str
) -> None:
    chosen = decision(dispatch(payload, event).job, MAIN)
    assert (chosen.step, chosen.lane, chosen.ref) == (step, lane, ref)
    assert chosen.reason


def test_a_delivery_runs_once(journal: Journal) -> None:
    sent = dispatch(pull_request())
    assert taken(journal, sent).step is Step.RUN
    for run, attempt in ((2, 1), (1, 1), (2, 9)):
        again = taken(journal, sent, run, attempt)
        assert again.step is Step.IGNORE
        assert "before" in again.reason


def test_the_same_run_may_be_tried_again(journal: Journal) -> None:
    sent = dispatch(pull_request())
    taken(journal, sent)
    assert journal.finish("d-1", "failure", 5.0)
    second = taken(journal, sent, attempt=2)
    assert second.step is Step.RUN
    assert "attempt 2" in second.reason
    (entry,) = journal.entries()
    assert (entry.run, entry.conclusion) == (Run(1, 2), None)
    assert taken(journal, sent, attempt=2).step is Step.IGNORE


def test_an_earlier_state_of_a_pull_request_does_not_follow_a_later_one(journal: Journal) -> None:
    later = pull_request("synchronize", head={"sha": OTHER_SHA}, updated_at="2026-11-30T12:00:01Z")
    assert taken(journal, dispatch(later, delivery="d-2")).step is Step.RUN
    late = taken(journal, dispatch(pull_request(), delivery="d-1"), run=2)
    assert late.step is Step.IGNORE
    assert "later state" in late.reason
    closed = pull_request("closed", updated_at="2026-11-30T14:00:01+02:00")  # the same second
    assert taken(journal, dispatch(closed, delivery="d-3"), run=3).step is Step.CANCEL
    other = pull_request(number=8)
    assert taken(journal, dispatch(other, delivery="d-4"), run=4).step is Step.RUN
    decisions = {entry.delivery_id: entry.decision for entry in journal.entries()}
    assert decisions == {"d-1": "superseded", "d-2": "run", "d-3": "cancel", "d-4": "run"}


def test_a_run_tried_again_does_not_take_the_place_of_a_later_one(journal: Journal) -> None:
    first = dispatch(pull_request(), delivery="d-1")
    taken(journal, first, run=1)
    later = pull_request("synchronize", head={"sha": OTHER_SHA}, updated_at="2026-11-30T12:00:01Z")
    taken(journal, dispatch(later, delivery="d-2"), run=2)
    again = taken(journal, first, run=1, attempt=2)
    assert again.step is Step.IGNORE
    assert "later state" in again.reason
    assert taken(journal, dispatch(later, delivery="d-2"), run=2, attempt=2).step is Step.RUN
    assert {e.delivery_id: e.run.attempt for e in journal.entries()} == {"d-1": 2, "d-2": 2}


def test_a_pull_request_that_is_opened_again_runs(journal: Journal) -> None:
    for number, (action, step) in enumerate(
        [("opened", "run"), ("closed", "cancel"), ("reopened", "run"), ("synchronize", "run")]
    ):
        moment = f"2026-11-30T12:00:0{number}Z"
        sent = dispatch(pull_request(action, updated_at=moment), delivery=f"d-{number}")
        assert taken(journal, sent, run=number + 1).step == step


def test_without_a_time_nothing_is_out_of_date(journal: Journal) -> None:
    taken(journal, dispatch(pull_request()))
    payload = pull_request(updated_at=None)
    assert taken(journal, dispatch(payload, delivery="d-2"), run=2).step is Step.RUN


@pytest.mark.parametrize("moment", ["yesterday", 3, "", "2026-13-01T00:00:00Z"])
def test_a_time_is_one(moment: object) -> None:
    with pytest.raises(ValueError, match="updated_at"):
        dispatch(pull_request(updated_at=moment))


# --- the journal on disk ----------------------------------------------------------------------


_CLAIMS = """
import json, sys, time
from pathlib import Path
from openspyre.ci.relay.envelope import Job
from openspyre.ci.relay.journal import Claim, Journal, Run
path, go, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
while not go.exists():
    time.sleep(0.001)
def claim(number):
    job = Job(f"d-{number}", "push", "up/torch", None, "0" * 40, "main", (), "", 0.0)
    return Journal(path).claim(job, Run(seed + 1, 1), "run", 1.0)
print(json.dumps([number for number in range(6) if claim(number) is Claim.NEW]))
"""


def test_of_receivers_at_the_same_time_one_gets_a_delivery(tmp_path: Path) -> None:
    go = tmp_path / "go"
    arguments = [sys.executable, "-c", _CLAIMS, tmp_path / "new" / "journal.sqlite", go]
    workers = [
        subprocess.Popen([*arguments, str(seed)], stdout=subprocess.PIPE, text=True)
        for seed in range(3)
    ]
    for worker in workers:
        assert worker.stdout
        assert worker.stdout.readline() == "ready\n"
    go.touch()
    got = [number for worker in workers for number in json.loads(worker.communicate(timeout=90)[0])]
    assert sorted(got) == list(range(6))


_DIES_INSIDE = """
import os, signal, sys
from pathlib import Path
from openspyre.ci.relay import journal as module
journal = module.Journal(Path(sys.argv[1]))
with journal._transaction() as database:
    database.execute(
        "INSERT INTO deliveries VALUES ('d-9', 1, 1, 'pr-1', 'x', 0.0, 'run', 1.0, NULL, NULL)"
    )
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_receiver_killed_in_the_middle_leaves_nothing_half_done(
    tmp_path: Path, journal: Journal
) -> None:
    taken(journal, dispatch(pull_request()))
    died = subprocess.run([sys.executable, "-c", _DIES_INSIDE, journal.path], check=False)
    assert died.returncode == -signal.SIGKILL
    assert [entry.delivery_id for entry in journal.entries()] == ["d-1"]
    assert taken(journal, dispatch(pull_request(), delivery="d-9"), run=9).step is Step.RUN


_DIES_AFTER = """
import os, signal, sys
from pathlib import Path
from openspyre.ci.relay.envelope import Job
from openspyre.ci.relay.journal import Journal, Run
job = Job("d-1", "push", "up/torch", None, "0" * 40, "main", (), "", 0.0)
Journal(Path(sys.argv[1])).claim(job, Run(1, 1), "run", 1.0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_claim_outlives_its_process(journal: Journal) -> None:
    died = subprocess.run([sys.executable, "-c", _DIES_AFTER, journal.path], check=False)
    assert died.returncode == -signal.SIGKILL
    assert taken(journal, dispatch(pull_request()), run=2).step is Step.IGNORE


def test_a_damaged_journal_lets_nothing_run(journal: Journal) -> None:
    taken(journal, dispatch(pull_request()))
    journal.path.write_bytes(b"torn" * 500)
    with pytest.raises(Unwritable, match="reconcile"):
        taken(journal, dispatch(pull_request(), delivery="d-2"))


def test_a_journal_of_another_version_lets_nothing_run(journal: Journal) -> None:
    taken(journal, dispatch(pull_request()))
    with sqlite3.connect(journal.path) as database:
        database.execute("PRAGMA user_version = 7")
    database.close()
    with pytest.raises(Unwritable, match="its version is 7"):
        journal.entries()


@pytest.mark.parametrize("table", ["bookmarks", "deliveries"])
def test_a_database_of_another_program_is_let_be(journal: Journal, table: str) -> None:
    journal.path.parent.mkdir()
    with sqlite3.connect(journal.path) as database:
        database.execute(f"CREATE TABLE {table} (address TEXT)")
    database.close()
    before = journal.path.read_bytes()
    with pytest.raises(Unwritable, match="another program"):
        taken(journal, dispatch(pull_request()))
    assert journal.path.read_bytes() == before


def test_an_attempt_is_as_old_as_itself(journal: Journal) -> None:
    for attempt in (1, 2):
        received(dispatch(pull_request()), Run(1, attempt), journal, MAIN, float(attempt))
    assert [entry.claimed for entry in journal.entries()] == [2.0]


def test_a_journal_that_cannot_be_made_lets_nothing_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unwritable):
        taken(Journal(tmp_path / "file" / "journal"), dispatch(pull_request()))


def test_the_journal_forgets_what_is_old(journal: Journal) -> None:
    for number in range(3):
        sent = dispatch(pull_request(number=number + 1), delivery=f"d-{number}")
        received(sent, Run(1, 1), journal, MAIN, float(number))
    assert journal.prune(2.0) == 2
    assert [entry.delivery_id for entry in journal.entries()] == ["d-2"]
    assert not journal.finish("d-0", "success", 3.0)


@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 2), st.integers(1, 3)), min_size=1, max_size=10
    )
)
def test_any_sequence_of_claims_lets_an_attempt_run_once(
    tmp_path_factory: pytest.TempPathFactory, claims: list[tuple[int, int, int]]
) -> None:
    journal = Journal(tmp_path_factory.mktemp("journal") / "journal.sqlite")
    held: dict[int, tuple[int, int]] = {}
    for delivery, run, attempt in claims:
        sent = dispatch(pull_request(), delivery=f"d-{delivery}")
        ran = taken(journal, sent, run, attempt).step is Step.RUN
        before = held.get(delivery)
        assert ran == (before is None or (before[0] == run and before[1] < attempt))
        if ran:
            held[delivery] = (run, attempt)
    assert {e.delivery_id: (e.run.run_id, e.run.attempt) for e in journal.entries()} == {
        f"d-{delivery}": value for delivery, value in held.items()
    }


# --- the command ------------------------------------------------------------------------------


def invoke(tmp_path: Path, message: object, *options: str) -> Any:
    event = tmp_path / "event.json"
    event.write_text(json.dumps(message))
    words = ["receive", str(event), "--upstream", UP, "--journal", str(tmp_path / "journal")]
    return CliRunner().invoke(app, [*words, "--run-id", "1", "--branch", "main", *options])


def test_the_command_says_what_to_do_and_hands_it_on(tmp_path: Path) -> None:
    output = tmp_path / "output"
    ran = invoke(tmp_path, {"client_payload": envelope(pull_request())}, "--output", str(output))
    assert ran.exit_code == 0
    assert ran.stdout == f"run (pull request 7, {SHA[:12]}): the pull request was opened\n"
    values = dict(line.split("=", 1) for line in output.read_text().splitlines())
    assert values == {
        "step": "run",
        "lane": "pull-request",
        "ref": SHA,
        "sha": SHA,
        "repository": UP,
        "pr": "7",
        "delivery_id": "d-1",
        "concurrency": "pr-7",
    }
    again = invoke(tmp_path, envelope(pull_request()), "--json", "--run-id", "2")
    assert again.exit_code == 0
    assert json.loads(again.stdout)["step"] == "ignore"


def test_the_command_takes_its_values_from_githubs_environment(tmp_path: Path) -> None:
    event, output = tmp_path / "event.json", tmp_path / "output"
    event.write_text(json.dumps({"client_payload": envelope(push(), "push")}))
    environment = {
        "GITHUB_EVENT_PATH": str(event),
        "GITHUB_OUTPUT": str(output),
        "GITHUB_RUN_ID": "12",
        "GITHUB_RUN_ATTEMPT": "3",
    }
    words = ["receive", "--upstream", UP, "--journal", str(tmp_path / "journal")]
    ran = CliRunner().invoke(app, words, env=environment)
    assert ran.exit_code == 0, ran.output
    assert "step=ignore" in output.read_text()  # no branch was chosen
    assert Journal(tmp_path / "journal").entries()[0].run == Run(12, 3)


def test_hostile_text_gets_neither_into_what_is_printed_nor_handed_on(tmp_path: Path) -> None:
    hostile = "::add-mask::x\n::set-output name=step::cancel\n$(id)"
    payload = pull_request(title=hostile, body=hostile, labels=[{"name": hostile}])
    output = tmp_path / "output"
    ran = invoke(tmp_path, envelope(payload), "--json", "--output", str(output))
    assert ran.exit_code == 0
    assert "::" not in ran.output + output.read_text()
    assert "$(" not in ran.output + output.read_text()


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ([], "not an object"),
        (envelope(pull_request(head={"sha": "$(id)"})), "40 hex digits"),
        (envelope(pull_request(), delivery="::warning::x"), "the id of a delivery"),
    ],
)
def test_a_dispatch_not_as_published_is_an_error_of_the_input(
    tmp_path: Path, message: object, why: str
) -> None:
    ran = invoke(tmp_path, message)
    assert ran.exit_code == 2
    assert why in ran.stderr
    assert "::" not in ran.output
    assert not (tmp_path / "journal").exists()


@pytest.mark.parametrize(
    ("name", "code", "step"), [("no/output", 2, "run"), ("/dev/full", 5, "ignore")]
)
def test_outputs_that_cannot_be_written_are_told(
    tmp_path: Path, name: str, code: int, step: str
) -> None:
    ran = invoke(tmp_path, envelope(pull_request()), "--output", name)
    assert ran.exit_code == code
    assert "cannot be written" in ran.stderr
    # A folder that is missing is seen before the delivery is taken.
    assert invoke(tmp_path, envelope(pull_request())).stdout.startswith(step)


def test_a_number_that_the_journal_cannot_hold_is_an_error_of_the_input(tmp_path: Path) -> None:
    assert invoke(tmp_path, envelope(pull_request()), "--run-id", str(2**63)).exit_code == 2


def test_without_a_journal_the_command_ends_with_5(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"torn" * 500)
    ran = invoke(tmp_path, envelope(pull_request()))
    assert ran.exit_code == 5
    assert "cannot be used" in ran.stderr


def test_a_file_that_is_not_there_is_an_error_of_the_input(tmp_path: Path) -> None:
    words = ["receive", str(tmp_path / "no"), "--upstream", UP, "--journal", "j", "--run-id", "1"]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 2
    assert "cannot be read" in ran.stderr


def finish(tmp_path: Path, delivery: str, result: str = "success") -> Any:
    words = ["finish", "--journal", str(tmp_path / "journal"), "--delivery-id", delivery]
    return CliRunner().invoke(app, [*words, "--result", result])


def test_what_has_ended_is_noted(tmp_path: Path) -> None:
    invoke(tmp_path, envelope(pull_request()))
    assert finish(tmp_path, "d-1", "cancelled").exit_code == 0
    assert Journal(tmp_path / "journal").entries()[0].conclusion == "cancelled"
    for delivery in ("d-2", "\udcff"):  # what a shell makes of a byte that is no text
        unknown = finish(tmp_path, delivery)
        assert unknown.exit_code == 2
        assert "does not know" in unknown.stderr
    assert finish(tmp_path, "d-1", "green").exit_code == 2
