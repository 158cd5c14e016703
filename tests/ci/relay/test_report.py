"""The two callbacks of a job, through the stub: what is sent, once, and what became of it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from openspyre.ci.relay.__main__ import app
from openspyre.ci.relay.callback import (
    Report,
    Reporter,
    announcement,
    completion,
    encoded,
    nightly_envelope,
)
from openspyre.ci.relay.message import InvalidMessage
from openspyre.ci.relay.sending import Delivery, NoToken, fetch_token, send
from openspyre.ci.relay.stub.hud import Fault
from openspyre.ci.relay.stub.server import HOST, Service, served
from openspyre.ci.relay.wire import FAILED_TESTS_KEY, HUD_LIMIT
from tests.ci.relay.world import (
    ONE,
    OTHER_SHA,
    SHA,
    TWO,
    UP,
    World,
    envelope,
    pull_request,
    world,
)

JOB = Reporter("upstream", "https://example.org/runs/5", 5, 1, "leg", "5-1")
PASSWORD = "the runner's secret"


# --- building and checking --------------------------------------------------------------------


def test_both_callbacks_carry_the_dispatch_as_it_came_and_one_check_run() -> None:
    sent = envelope(pull_request())
    first = announcement(sent, JOB, 0.0)
    last = completion(sent, JOB, Report("success"), 60.0)
    for body in (first, last):
        assert {name: body[name] for name in sent} == sent
    assert first["workflow"] == {
        "schema_version": "1",
        "status": "in_progress",
        "conclusion": None,
        "name": "upstream",
        "url": "https://example.org/runs/5",
        "run_id": "5",
        "run_attempt": "1",
        "job_name": "leg",
        "check_run_id": "5-1",
        "started_at": "1970-01-01T00:00:00Z",
        "completed_at": None,
    }
    ended: Any = last["workflow"]
    assert (ended["status"], ended["conclusion"]) == ("completed", "success")
    assert (ended["started_at"], ended["completed_at"]) == (None, "1970-01-01T00:01:00Z")
    assert not {"test_results", "artifact_url", "triage_verdict", FAILED_TESTS_KEY} & ended.keys()
    encoded(first)
    encoded(last)


def test_a_nightly_callback_has_both_times_and_is_the_only_one() -> None:
    sent = nightly_envelope(UP, SHA, "nightly")
    body = completion(sent, JOB, Report("success"), 0.0)
    workflow: Any = body["workflow"]
    assert workflow["started_at"] == workflow["completed_at"] == "1970-01-01T00:00:00Z"
    assert body["payload"] == {"repository": {"full_name": UP}, "head_sha": SHA}
    encoded(body)
    with pytest.raises(InvalidMessage, match="nightly"):
        encoded(announcement(sent, JOB, 0.0))


def test_failed_tests_are_cut_and_sent_only_if_given() -> None:
    long = {"name": "t", "message": "\u00e9" * 600, "stacktrace": "x" * 5000, "other": 1}
    said = Report("failure", failed_tests=[long, *[{"name": "u"}] * 1000])
    body: Any = completion(envelope(pull_request()), JOB, said, 0.0)
    sent = body["workflow"][FAILED_TESTS_KEY]
    assert len(sent) == 1000
    assert sent[0] == {"name": "t", "message": "\u00e9" * 512, "stacktrace": "x" * 4096}


def test_as_many_failed_tests_are_sent_as_the_dashboard_takes() -> None:
    tests = [
        {"name": f"t{n}", "message": "m" * 1024, "stacktrace": "s" * 4096} for n in range(1000)
    ]
    said = Report("failure", failed_tests=tests)
    body: Any = completion(envelope(pull_request()), JOB, said, 0.0)
    sent = body["workflow"][FAILED_TESTS_KEY]
    assert sent == tests[: len(sent)]
    size = len(json.dumps(body)) + 4096
    assert size <= HUD_LIMIT < size + len(json.dumps(tests[0])) + 2
    encoded(body)


@pytest.mark.parametrize(
    ("test", "sent"),
    [
        ({"message": "\ud800"}, {"message": "?"}),
        ({"name": "n" * 9999}, {"name": "n" * 1024}),
        ({"classname": ["c" * 9999]}, {"classname": "['" + "c" * 1022}),
        ({"duration": "1" * 9999}, {}),
        ({"duration": 1.5}, {"duration": 1.5}),
    ],
)
def test_what_a_failed_test_says_cannot_stop_its_report(
    test: dict[str, object], sent: dict[str, object]
) -> None:
    body: Any = completion(
        envelope(pull_request()), JOB, Report("failure", failed_tests=[test]), 0.0
    )
    assert body["workflow"][FAILED_TESTS_KEY] == [sent]
    encoded(body)


def test_what_the_relay_forwards_is_measured() -> None:
    labels = [0] * (HUD_LIMIT // 3)  # "0, " of the relay's, "0," of ours
    body = announcement(envelope(pull_request(labels=labels)), JOB, 0.0)
    assert len(json.dumps(body, separators=(",", ":"))) < HUD_LIMIT - 4096
    with pytest.raises(InvalidMessage, match="bytes, more than"):
        encoded(body)


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        ("status", "queued", "status"),
        ("conclusion", "success", "conclusion"),
        ("run_id", "0", "run_id"),
        ("run_id", "x", "run_id"),
        ("run_id", "\u0665", "run_id"),
        ("run_id", "9" * 5000, "run_id"),
        ("run_attempt", "", "run_attempt"),
        ("name", "", "name"),
        ("name", " ", "name"),
        ("job_name", "", "job_name"),
        ("job_name", None, "job_name"),
        ("job_name", "a\nb", "job_name"),
        ("check_run_id", "", "check_run_id"),
        ("url", "javascript:x", "url"),
        ("url", "https://a@b/", "url"),
        ("artifact_url", "", "artifact_url"),
        ("filler", "x" * HUD_LIMIT, "bytes"),
    ],
)
def test_what_would_be_refused_is_not_sent(place: str, value: object, why: str) -> None:
    body = announcement(envelope(pull_request()), JOB, 0.0)
    workflow: Any = body["workflow"]
    with pytest.raises(InvalidMessage, match=why):
        encoded({**body, "workflow": {**workflow, place: value}})


@pytest.mark.parametrize("conclusion", ["", "skipped", "SUCCESS", "neutral"])
def test_a_conclusion_is_one_of_four(conclusion: str) -> None:
    with pytest.raises(InvalidMessage, match="conclusion"):
        encoded(completion(envelope(pull_request()), JOB, Report(conclusion), 0.0))


@pytest.mark.parametrize("change", [{"event_type": "x"}, {"delivery_id": ""}, {"workflow": None}])
def test_a_callback_needs_its_dispatch(change: dict[str, object]) -> None:
    body = announcement(envelope(pull_request()), JOB, 0.0)
    with pytest.raises(InvalidMessage, match="not sent"):
        encoded({**body, **change})


# --- sending ----------------------------------------------------------------------------------


@contextmanager
def answering(*answers: bytes, hold: float = 0.0) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives each caller the next answer as it is, then holds the line."""
    heard: list[bytes] = []
    done = threading.Event()

    def serve(listener: socket.socket) -> None:
        for answer in answers:
            line, _ = listener.accept()
            with line:
                heard.append(line.recv(65536))
                line.sendall(answer)
                done.wait(hold)

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield f"http://{HOST}:{listener.getsockname()[1]}/github/callback", heard
        done.set()


def http(status: int, body: object = "") -> bytes:
    raw = json.dumps(body).encode()
    return f"HTTP/1.1 {status} x\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw


STEP = {"detail": "callback rejected: invalid state transition"}
HUD_SAYS = {"detail": "HUD rejected callback: HTTP 400"}


@pytest.mark.parametrize(
    ("answer", "resent", "delivery"),
    [
        (http(200, {"ok": True, "status": "in_progress"}), False, Delivery.DELIVERED),
        (http(200, {"ok": True, "status": "ignored"}), False, Delivery.IGNORED),
        (http(400, {"detail": "no matching dispatch record"}), False, Delivery.REFUSED),
        (http(400, {"detail": "no matching dispatch record"}), True, Delivery.REFUSED),
        (http(400, STEP), False, Delivery.REFUSED),
        (http(400, STEP), True, Delivery.STATE_TAKEN),
        (http(400, {"detail": "another wording"}), True, Delivery.STATE_TAKEN),
        (http(400, HUD_SAYS), False, Delivery.DASHBOARD_REFUSED),
        (http(422, HUD_SAYS), True, Delivery.DASHBOARD_REFUSED),
        (http(401), False, Delivery.REFUSED),
        (http(403), True, Delivery.REFUSED),
        (http(413), False, Delivery.REFUSED),
        (http(429, {"detail": "rate limit"}), False, Delivery.REFUSED),
        (http(500), False, Delivery.UNKNOWN),
        (http(502), True, Delivery.UNKNOWN),
        (http(503), False, Delivery.UNKNOWN),
        (http(302) + b"", False, Delivery.UNKNOWN),
        (b"", False, Delivery.UNKNOWN),
        (b"nonsense\r\n\r\n", False, Delivery.UNKNOWN),
        (b"HTTP/1.1 200 x\r\nContent-Length: 100\r\n\r\n{", False, Delivery.UNKNOWN),
        (http(200, "x" * 200_000), False, Delivery.DELIVERED),
        (http(400, [[1]]), False, Delivery.REFUSED),
    ],
)
def test_what_became_of_a_callback(answer: bytes, resent: bool, delivery: Delivery) -> None:
    with answering(answer) as (url, heard):
        sent = send(url, b"{}", "token", resent=resent, seconds=10)
    assert sent.delivery is delivery
    assert len(heard) == 1  # once, whatever came of it
    assert (sent.hint == "") == (delivery is Delivery.DELIVERED)


def test_no_answer_in_time_means_that_nobody_knows() -> None:
    with answering(b"", hold=5) as (url, _):
        sent = send(url, b"{}", "token", seconds=0.1)
    assert (sent.delivery, sent.status) == (Delivery.UNKNOWN, 0)
    assert "attempt + 1" in sent.hint


def test_an_answer_that_trickles_is_not_waited_for() -> None:
    stop = threading.Event()
    with socket.create_server((HOST, 0)) as listener:

        def trickle() -> None:
            line, _ = listener.accept()
            with line:
                line.recv(65536)
                line.sendall(b"HTTP/1.1 200 x\r\nContent-Length: 1000\r\n\r\n")
                while not stop.wait(0.05):
                    line.sendall(b" ")

        thread = threading.Thread(target=trickle)
        thread.start()
        sent = send(f"http://{HOST}:{listener.getsockname()[1]}/", b"{}", "t", seconds=0.3)
        stop.set()
        thread.join()
    assert sent.delivery is Delivery.UNKNOWN


def test_where_nobody_listens_nothing_was_taken() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
    sent = send(f"http://{HOST}:{port}/", b"{}", "token", seconds=5)
    assert sent.delivery is Delivery.UNREACHED


def test_a_redirection_does_not_take_the_token_along() -> None:
    with answering(http(200)) as (other, heard):
        moved = f"HTTP/1.1 307 x\r\nLocation: {other}\r\nContent-Length: 0\r\n\r\n".encode()
        with answering(moved) as (url, _):
            assert send(url, b"{}", "token", seconds=5).delivery is Delivery.UNKNOWN
        assert heard == []


@pytest.mark.parametrize("url", ["http://relay.example/x", "relay/x", "", "ftp://127.0.0.1/"])
def test_a_token_does_not_travel_in_the_clear(url: str) -> None:
    with pytest.raises(InvalidMessage, match="clear"):
        send(url, b"{}", "token")


@pytest.mark.parametrize(
    "url",
    [
        "http://[", "http://localhost:x/", "http://127.0.0.1:99999/", "https:///x", "https://a b/",
        "https://me:secret@relay.example/", "https://x.org/\x7f", f"https://{'a' * 70}.org/",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_told_before_anything_is_sent(url: str) -> None:
    for call in (lambda: send(url, b"{}", "token"), lambda: fetch_token(url, "password")):
        with pytest.raises(InvalidMessage, match="is none") as told:
            call()
        assert "secret" not in str(told.value)


def test_what_the_relay_says_cannot_command_the_runner() -> None:
    said = {"detail": "a\n::set-output name=x::y\u2028::stop"}
    with answering(http(400, said)) as (url, _):
        sent = send(url, b"{}", "token", seconds=10)
    assert "::" not in sent.why
    assert sent.why.isprintable()


# --- tokens -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("url", "password"), [("", ""), ("https://x.org", ""), ("", "x")])
def test_a_job_without_the_right_has_no_token(url: str, password: str) -> None:
    with pytest.raises(NoToken, match="id-token: write"):
        fetch_token(url, password)


@pytest.mark.parametrize("answer", [http(500), http(401), b"", http(200, {"value": 3}), http(200)])
def test_a_token_service_that_fails(answer: bytes) -> None:
    with answering(answer) as (url, _), pytest.raises((NoToken, InvalidMessage)):
        fetch_token(url, "password")


@pytest.mark.parametrize("password", ["p\n", " p", "\u00e9", "a\r\nb: c"])
def test_a_password_that_no_header_can_hold_is_told(password: str) -> None:
    with pytest.raises(NoToken, match="header"):
        fetch_token("https://127.0.0.1:9/", password)


def test_a_token_that_no_header_can_hold_is_told() -> None:
    answer = http(200, {"value": "a\r\nb: c"})
    with answering(answer) as (url, _), pytest.raises(InvalidMessage, match="header"):
        fetch_token(url, "password")


# --- the commands, through the stub -----------------------------------------------------------


@pytest.fixture
def made() -> World:
    return world()


@pytest.fixture
def address(made: World) -> Iterator[str]:
    with served(Service(made.relay, made.issuer, TWO, PASSWORD)) as address:
        yield address


class Commands:
    """Runs `report` as the jobs of a workflow do."""

    def __init__(self, address: str, folder: Path) -> None:
        self.folder, self.url = folder, f"{address}/github/callback"
        self.environment = {
            "GITHUB_EVENT_PATH": str(folder / "event.json"),
            "GITHUB_WORKFLOW": "upstream",
            "GITHUB_RUN_ID": "5",
            "GITHUB_RUN_ATTEMPT": "1",
            "GITHUB_REPOSITORY": TWO,
            "GITHUB_OUTPUT": str(folder / "output"),
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{address}/token?v=1",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": PASSWORD,
        }
        self.event({"client_payload": envelope(pull_request())})

    def event(self, message: object) -> None:
        (self.folder / "event.json").write_text(json.dumps(message))

    def __call__(self, *words: str, leg: str = "leg", **environment: str) -> Any:
        options = ["--upstream", UP, "--url", self.url, "--job-name", leg]
        variables = {**self.environment, **environment}
        ran = CliRunner().invoke(app, ["report", *words, *options], env=variables)
        assert PASSWORD not in ran.output
        assert "eyJ" not in ran.output  # how every token begins
        return ran

    def output(self) -> Mapping[str, str]:
        lines = (self.folder / "output").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)


@pytest.fixture
def report(address: str, tmp_path: Path) -> Commands:
    return Commands(address, tmp_path)


def summary(folder: Path, **buckets: int) -> str:
    path = folder / "summary.json"
    path.write_text(json.dumps({"buckets": buckets}))
    return str(path)


def test_announce_test_report(made: World, report: Commands, tmp_path: Path) -> None:
    assert made.hook(pull_request()).status == 200
    made.clock.time += 7
    first = report("announce")
    assert first.exit_code == 0, first.output
    assert first.stdout == "report announce: delivered (HTTP 200): in_progress\n"
    handed_on = report.output()
    assert handed_on == {
        "job_name": "leg",
        "check_run_id": "5-1",
        "run_attempt": "1",
        "report": "yes",
    }
    made.clock.time += 120
    last = report(
        "complete",
        *("--check-run-id", handed_on["check_run_id"], "--result", "success"),
        *("--summary", summary(tmp_path, passed=8, xfailed=2), "--json"),
        *("--artifact-url", "https://example.org/artifact"),
    )
    assert last.exit_code == 0, last.output
    said = json.loads(last.stdout)
    assert (said["delivery"], said["conclusion"]) == ("delivered", "success")
    (row,) = made.hud.rows.values()
    assert made.hud.seen[row.key] == 2  # both callbacks found the same row
    assert row.key == f"{TWO}/d-1/upstream/leg/5-1"
    assert row.url == f"https://github.com/{TWO}/actions/runs/5"
    assert (row.conclusion, row.queue_time, row.execution_time) == ("success", 7.0, 120.0)
    assert row.counts == {"passed": 8, "failed": 0, "skipped": 2, "total": 10}


@pytest.mark.parametrize(("name", "code"), [("no/output", 2), ("/dev/full", 5)])
def test_outputs_that_cannot_be_written_are_told(
    made: World, report: Commands, name: str, code: int
) -> None:
    made.hook(pull_request())
    ran = report("announce", GITHUB_OUTPUT=name)
    assert ran.exit_code == code
    assert "cannot be written" in ran.stderr
    assert bool(made.hud.rows) == (code == 5)  # a folder that is missing is seen before


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--periodic"], "a kind of --nightly"),
        (["--repository", "me"], "owner/name"),
        (["--result", "green"], "use success, failure"),
        (["--run-id", str(2**63)], "9223372036854775807"),
    ],
)
def test_a_wrong_option_is_told_before_anything_is_sent(
    made: World, report: Commands, words: list[str], why: str
) -> None:
    ran = report("complete", "--result", "success", *words)
    assert ran.exit_code == 2
    assert why in ran.stderr


def test_a_success_without_an_account_says_why_it_is_none(made: World, report: Commands) -> None:
    made.hook(pull_request())
    report("announce")
    ran = report("complete", "--result", "success")
    assert ran.stdout.endswith("; failure\n")
    assert "no --summary" in ran.stderr


def test_a_matrix_has_a_row_for_each_leg(made: World, report: Commands) -> None:
    made.hook(pull_request())
    for leg in ("a", "b (2/3)"):
        assert report("announce", leg=leg).exit_code == 0
    for leg in ("b (2/3)", "a"):
        assert report("complete", "--result", "cancelled", leg=leg).exit_code == 0
    assert sorted(row.job for row in made.hud.rows.values()) == ["a", "b (2/3)"]


@pytest.mark.parametrize(
    ("result", "files", "told"),
    [
        ("success", None, "failure"),
        ("failure", {"passed": 1}, "failure"),
        ("cancelled", {"passed": 1}, "cancelled"),
        ("success", {"passed": 1, "hung": 1}, "failure"),
        ("success", {"passed": -1}, "failure"),
    ],
)
def test_however_a_run_ends_it_is_reported(
    made: World, report: Commands, tmp_path: Path, result: str, files: Any, told: str
) -> None:
    made.hook(pull_request())
    report("announce")
    path = summary(tmp_path, **files) if files else str(tmp_path / "missing.json")
    ran = report("complete", "--result", result, "--summary", path)
    assert ran.exit_code == 0
    assert next(iter(made.hud.rows.values())).conclusion == told


@pytest.mark.parametrize("raw", [b"\xff", b"[" * 100_000, b'{"buckets": {"a": 1}}', b"", b"[]"])
def test_hostile_files_of_a_run_do_not_keep_it_from_being_reported(
    made: World, report: Commands, tmp_path: Path, raw: bytes
) -> None:
    made.hook(pull_request())
    report("announce")
    path = tmp_path / "hostile"
    path.write_bytes(raw)
    options = [
        word for name in ("summary", "verdict", "failed-tests") for word in (f"--{name}", str(path))
    ]
    ran = report("complete", "--result", "success", *options)
    assert ran.exit_code == 0
    assert ran.stderr.count("without") == (2 if raw == b"[]" else 3)
    (row,) = made.hud.rows.values()
    assert (row.conclusion, row.counts) == ("failure", {})


def test_a_verdict_and_failed_tests_go_along(made: World, report: Commands, tmp_path: Path) -> None:
    verdict, failed = tmp_path / "verdict.json", tmp_path / "failed.json"
    said = {"schema_version": 1, "category": "infra", "confidence": "low", "summary": "disk"}
    verdict.write_text(json.dumps(said))
    failed.write_text(json.dumps([{"name": "test_a"}]))
    options = ("--verdict", str(verdict), "--failed-tests", str(failed), "--dry-run")
    ran = report("complete", "--result", "failure", *options)
    assert ran.exit_code == 0
    body = json.loads(ran.stdout)
    assert body["workflow"]["triage_verdict"] == said
    assert body["workflow"][FAILED_TESTS_KEY] == [{"name": "test_a"}]
    assert made.hud.calls == 0


def test_a_run_that_was_overtaken_is_reported_as_cancelled(
    made: World, report: Commands, tmp_path: Path
) -> None:
    second = pull_request("synchronize", head={"sha": OTHER_SHA})
    made.hook(pull_request(), delivery="d-1")
    made.hook(second, delivery="d-2")
    for delivery, run, payload in (("d-1", "5", pull_request()), ("d-2", "6", second)):
        report.event(envelope(payload, delivery=delivery))
        assert report("announce", GITHUB_RUN_ID=run).exit_code == 0
    report.event(envelope(pull_request(), delivery="d-1"))
    assert report("complete", "--result", "cancelled", GITHUB_RUN_ID="5").exit_code == 0
    report.event(envelope(second, delivery="d-2"))
    good = ("--result", "success", "--summary", summary(tmp_path, passed=1))
    assert report("complete", *good, GITHUB_RUN_ID="6").exit_code == 0
    ended = {row.delivery_id: row.conclusion for row in made.hud.rows.values()}
    assert ended == {"d-1": "cancelled", "d-2": "success"}


@pytest.mark.parametrize(("fault", "code", "delivery"), [
    (Fault.REFUSES, 1, "dashboard refused"),
    (Fault.FAILS, 5, "unknown"),
    (Fault.HANGS, 5, "unknown"),
])  # fmt: skip
@pytest.mark.parametrize("step", ["announce", "complete"])
def test_a_dashboard_that_fails_at_either_step(
    made: World, report: Commands, fault: Fault, code: int, delivery: str, step: str
) -> None:
    made.hook(pull_request())
    words = [["announce"], ["complete", "--result", "cancelled"]]
    if step == "complete":
        assert report(*words.pop(0)).exit_code == 0
    made.hud.faults = [fault] * 4
    ran = report(*words[0], "--json")
    assert (ran.exit_code, json.loads(ran.stdout)["delivery"]) == (code, delivery)
    made.hud.faults = []
    again = report(*words[0], "--resend", "--json")
    assert again.exit_code == 5
    assert json.loads(again.stdout)["delivery"] == "state taken, dashboard unknown"
    if step == "announce":  # the job may still be reported, as what was handed on says
        assert report.output()["report"] == "yes"
        assert report("complete", "--result", "cancelled").exit_code == 0
    else:  # and a run's next attempt has states of its own
        assert report("announce", GITHUB_RUN_ATTEMPT="2").exit_code == 0
        assert report(*words[0], GITHUB_RUN_ATTEMPT="2").exit_code == 0


def test_without_a_dispatch_record_there_is_nothing_to_report(report: Commands) -> None:
    ran = report("announce")
    assert ran.exit_code == 1
    assert "no matching dispatch record" in ran.stdout
    assert report.output()["report"] == "no"


def test_an_announcement_that_is_repeated_is_told_apart(made: World, report: Commands) -> None:
    made.hook(pull_request())
    assert report("announce").exit_code == 0
    again = report("announce")
    assert again.exit_code == 1
    assert "taken before" in again.stderr


def test_over_the_rate_a_report_is_refused(made: World, report: Commands) -> None:
    made.hook(pull_request())
    for _ in range(100):
        made.call({})
    assert report("announce").exit_code == 1
    made.clock.time += 60
    assert report("announce").exit_code == 0


def test_below_level_two_a_report_is_ignored(made: World, tmp_path: Path) -> None:
    with served(Service(made.relay, made.issuer, ONE, PASSWORD)) as address:
        ran = Commands(address, tmp_path)("announce")
    assert ran.exit_code == 0
    assert ran.stdout == "report announce: ignored (HTTP 200): ignored\n"
    assert "allowlist" in ran.stderr


def test_a_job_without_the_right_to_a_token_reports_nothing(report: Commands) -> None:
    ran = report("announce", ACTIONS_ID_TOKEN_REQUEST_TOKEN="")
    assert ran.exit_code == 5
    assert "id-token: write" in ran.stderr


def test_a_hostile_dispatch_is_not_reported(made: World, report: Commands) -> None:
    report.event(envelope(pull_request(head={"sha": "$(id)"})))
    assert report("announce").exit_code == 2
    assert made.hud.calls == 0


@pytest.mark.parametrize("result", ["", "green", "success\n"])
def test_a_result_is_githubs(report: Commands, result: str) -> None:
    ran = report("complete", "--result", result)
    assert ran.exit_code == 2
    assert "is no result" in ran.stderr


@pytest.mark.parametrize(("flag", "kind"), [((), "nightly"), (("--periodic",), "periodic")])
def test_a_nightly_run_is_reported_by_its_commit(
    made: World, report: Commands, flag: tuple[str, ...], kind: str
) -> None:
    ran = report("complete", "--result", "cancelled", "--nightly", OTHER_SHA, *flag)
    assert ran.exit_code == 0, ran.output
    (row,) = made.hud.rows.values()
    assert row.delivery_id == OTHER_SHA
    shown = report("complete", "--result", "cancelled", "--nightly", OTHER_SHA, *flag, "--dry-run")
    assert json.loads(shown.stdout)["event_type"] == kind


@pytest.mark.parametrize("sha", ["main", SHA.upper(), SHA[:12]])
def test_a_nightly_run_names_a_commit(report: Commands, sha: str) -> None:
    assert report("complete", "--result", "cancelled", "--nightly", sha).exit_code == 2


def test_clocks_that_disagree_end_in_a_refusal_and_no_state(made: World, report: Commands) -> None:
    made.hook(pull_request())
    token = made.issuer.token(TWO)
    made.clock.time -= 30  # the relay's clock is behind the issuer's
    late = send(report.url, b"{}", token, seconds=10)
    assert (late.delivery, late.status) == (Delivery.REFUSED, 401)
    assert report("announce").exit_code == 0
