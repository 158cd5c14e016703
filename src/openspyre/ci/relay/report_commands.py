"""`report announce` and `report complete`: the two callbacks of a job, each sent once.

They run in jobs of their own, which may have a token and never see the code under test.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from openspyre.ci.relay.callback import (
    Report,
    Reporter,
    announcement,
    completion,
    encoded,
    nightly_envelope,
)
from openspyre.ci.relay.conclusion import RESULTS, check_result, conclusion, read_account
from openspyre.ci.relay.envelope import read_envelope
from openspyre.ci.relay.message import InvalidMessage, read_message
from openspyre.ci.relay.sending import Delivery, Sent, fetch_token, send
from openspyre.ci.relay.telling import (
    EVENT,
    OUTPUT,
    RUN_ATTEMPT,
    RUN_ID,
    UPSTREAM,
    Exit,
    contents,
    handing_on,
    told,
)
from openspyre.ci.relay.verdict import read_verdict
from openspyre.ci.relay.wire import CLIENT_SECONDS, REPOSITORY, SHA
from openspyre.ci.telling import AS_JSON

T = TypeVar("T")
report_commands = typer.Typer(help="Tell upstream's relay of a job.", no_args_is_help=True)
_EXITS: Mapping[Delivery, Exit] = {
    Delivery.DELIVERED: Exit.GREEN,
    Delivery.IGNORED: Exit.GREEN,
    Delivery.REFUSED: Exit.RED,
    Delivery.DASHBOARD_REFUSED: Exit.RED,
    Delivery.UNKNOWN: Exit.INFRASTRUCTURE,
    Delivery.STATE_TAKEN: Exit.INFRASTRUCTURE,
    Delivery.UNREACHED: Exit.INFRASTRUCTURE,
}
_FAILED_TESTS_LIMIT = 8 * 1024 * 1024

Url = Annotated[str, typer.Option(help="Of the relay's callback endpoint.")]
JobName = Annotated[str, typer.Option(help="Of this leg of the matrix; each has its own.")]
CheckRun = Annotated[
    str, typer.Option(help="The same in both callbacks. Default: RUN_ID-RUN_ATTEMPT.")
]
Workflow = Annotated[str, typer.Option(envvar="GITHUB_WORKFLOW", help="Its name.")]
RunId = Annotated[int, RUN_ID]
Attempt = Annotated[int, RUN_ATTEMPT]
Server = Annotated[str, typer.Option(envvar="GITHUB_SERVER_URL", help="Where the run is shown.")]
Downstream = Annotated[
    str, typer.Option(envvar="GITHUB_REPOSITORY", help="Whose run it is, owner/name.")
]
TokenUrl = Annotated[
    str, typer.Option(envvar="ACTIONS_ID_TOKEN_REQUEST_URL", help="Of the runner's tokens.")
]
TokenPassword = Annotated[
    str,
    typer.Option(envvar="ACTIONS_ID_TOKEN_REQUEST_TOKEN", help="For it.", show_default=False),
]
Resend = Annotated[
    bool, typer.Option("--resend", help="It was sent before, and the outcome is not known.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the callback, send nothing.")]
Seconds = Annotated[float, typer.Option(min=0.05, help="In which the answer must be there.")]


@report_commands.command()
def announce(
    event: Annotated[Path, EVENT],
    upstream: Annotated[str, UPSTREAM],
    url: Url,
    job_name: JobName,
    workflow: Workflow,
    run_id: RunId,
    repository: Downstream,
    check_run_id: CheckRun = "",
    run_attempt: Attempt = 1,
    server: Server = "https://github.com",
    token_url: TokenUrl = "",
    token_password: TokenPassword = "",
    resend: Resend = False,
    dry_run: DryRun = False,
    seconds: Seconds = CLIENT_SECONDS,
    output: Annotated[Path | None, OUTPUT] = None,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Tell the relay that a job begins; hand on what its end must repeat.

    Exit codes: 0 delivered, or ignored below level 2; 1 refused; 2 wrong input, nothing sent; 5 no
    token, no answer, or an outcome that is not known.
    """
    with told("report announce"), handing_on(output) as hand_on:
        envelope = read_envelope(contents(event), upstream).fields
        reporter = _reporter(
            workflow, server, repository, run_id, run_attempt, job_name, check_run_id
        )
        body = encoded(announcement(envelope, reporter, time.time()))
        if dry_run:
            return print(body.decode())
        sent = _sent(url, body, token_url, token_password, resend, seconds)
        open_end = sent.delivery not in (Delivery.REFUSED, Delivery.UNREACHED, Delivery.IGNORED)
        handed_on = {
            "job_name": job_name,
            "check_run_id": reporter.check_run_id,
            "run_attempt": str(run_attempt),  # the reporting job alone may be run again
            "report": "yes" if open_end else "no",
        }
        hand_on(handed_on)
    _end("report announce", sent, {}, as_json)


@report_commands.command()
def complete(
    url: Url,
    upstream: Annotated[str, UPSTREAM],
    job_name: JobName,
    workflow: Workflow,
    run_id: RunId,
    repository: Downstream,
    result: Annotated[
        str, typer.Option(help=f"Of the job that ran the tests: {', '.join(RESULTS)}.")
    ],
    event: Annotated[
        Path | None,
        typer.Argument(envvar="GITHUB_EVENT_PATH", help="As for announce; not with --nightly."),
    ] = None,
    summary: Annotated[
        Path | None, typer.Option(help="summary.json of the run; it may be missing.")
    ] = None,
    artifact_url: Annotated[str, typer.Option(help="Where the results lie.")] = "",
    verdict: Annotated[
        Path | None, typer.Option(help="JSON saying why it failed; a wrong one is left out.")
    ] = None,
    failed_tests: Annotated[
        Path | None, typer.Option(help="JSON array of failed tests; sent only if given.")
    ] = None,
    nightly: Annotated[
        str, typer.Option(help="Report this commit of upstream, which no dispatch named.")
    ] = "",
    periodic: Annotated[bool, typer.Option("--periodic", help="With --nightly.")] = False,
    check_run_id: CheckRun = "",
    run_attempt: Attempt = 1,
    server: Server = "https://github.com",
    token_url: TokenUrl = "",
    token_password: TokenPassword = "",
    resend: Resend = False,
    dry_run: DryRun = False,
    seconds: Seconds = CLIENT_SECONDS,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Tell the relay how a job ended: its conclusion, counts of tests, and why it failed.

    What the tests left is read as a stranger's: a summary that is missing or wrong is a failure,
    a wrong verdict is left out. Exit codes as for announce: they say whether the relay was told.
    """
    with told("report complete"):
        check_result(result)
        if periodic and not nightly:
            raise InvalidMessage("--periodic is a kind of --nightly", hint="name the commit too")
        envelope = _envelope(event, upstream, nightly, "periodic" if periodic else "nightly")
        account = _lenient("summary", summary, read_account)
        if summary is None and result == "success":
            print("spyre-ci report complete: no --summary, so it is a failure", file=sys.stderr)
        said = Report(
            conclusion=conclusion(account, result),
            results=account.results() if account is not None else None,
            artifact_url=artifact_url,
            verdict=_lenient("verdict", verdict, read_verdict),
            failed_tests=_lenient("failed tests", failed_tests, _read_failed) or (),
        )
        reporter = _reporter(
            workflow, server, repository, run_id, run_attempt, job_name, check_run_id
        )
        body = encoded(completion(envelope, reporter, said, time.time()))
        if dry_run:
            return print(body.decode())
        sent = _sent(url, body, token_url, token_password, resend, seconds)
    more = {"conclusion": said.conclusion, "test_results": said.results}
    _end("report complete", sent, more, as_json)


def _reporter(
    workflow: str, server: str, repository: str, run_id: int, attempt: int, job: str, check: str
) -> Reporter:
    if not REPOSITORY.fullmatch(repository):
        raise InvalidMessage("--repository is none", hint="write it as owner/name")
    address = f"{server}/{repository}/actions/runs/{run_id}"
    return Reporter(workflow, address, run_id, attempt, job, check or f"{run_id}-{attempt}")


def _envelope(event: Path | None, upstream: str, nightly: str, kind: str) -> Mapping[str, object]:
    if nightly:
        if not SHA.fullmatch(nightly):
            raise InvalidMessage("--nightly is no commit", why="it is not 40 hex digits")
        return nightly_envelope(upstream, nightly, kind)
    if event is None:
        raise InvalidMessage("there is no dispatch", hint="name its file, or use --nightly")
    return read_envelope(contents(event), upstream).fields


def _sent(
    url: str, body: bytes, token_url: str, token_password: str, resend: bool, seconds: float
) -> Sent:
    """Sends with a token made for it; says on a terminal that it waits."""
    with Console(stderr=True).status("waiting for the relay"):
        token = fetch_token(token_url, token_password)
        return send(url, body, token, resent=resend, seconds=seconds)


def _lenient(what: str, path: Path | None, read: Callable[[bytes], T]) -> T | None:
    """What a file of the run holds; None with a word on stderr where it cannot be used."""
    if path is None:
        return None
    try:
        return read(contents(path))
    except InvalidMessage as error:
        print(f"spyre-ci report complete: without {what}: {error}", file=sys.stderr)
        return None


def _read_failed(raw: bytes) -> list[Mapping[str, object]]:
    node = read_message(raw, "the failed tests", _FAILED_TESTS_LIMIT)
    return [test.mapping() for test in node.items(100_000)]


def _end(command: str, sent: Sent, more: Mapping[str, object], as_json: bool) -> None:
    if as_json:
        print(json.dumps({**asdict(sent), **more}))
    else:
        code = f" (HTTP {sent.status})" if sent.status else ""
        why = f": {sent.why}" if sent.why else ""
        ended = "".join(f"; {value}" for value in (more.get("conclusion"),) if value)
        print(f"{command}: {sent.delivery}{code}{why}{ended}")
        if sent.hint:
            print(f"  try: {sent.hint}", file=sys.stderr)
    raise typer.Exit(_EXITS[sent.delivery])
