"""Commands that speak with upstream's relay."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from openspyre.ci.relay.conclusion import check_result
from openspyre.ci.relay.envelope import read_envelope
from openspyre.ci.relay.journal import Claim, Journal, Run
from openspyre.ci.relay.message import InvalidMessage, read_message
from openspyre.ci.relay.receive import Step, outputs, received
from openspyre.ci.relay.reconcile import Gaps, Seen, gaps, read_head, read_pulls
from openspyre.ci.relay.report_commands import report_commands
from openspyre.ci.relay.telling import (
    EVENT,
    FILE_LIMIT,
    JOURNAL,
    OUTPUT,
    RUN_ATTEMPT,
    RUN_ID,
    UPSTREAM,
    contents,
    handing_on,
    told,
)
from openspyre.ci.relay.wire import DELIVERY, REF
from openspyre.ci.telling import AS_JSON


def add_relay_commands(app: typer.Typer) -> None:
    """Gives an app the commands of this file."""
    app.command()(receive)
    app.command()(finish)
    app.add_typer(report_commands, name="report")
    app.command()(reconcile)
    app.command(name="relay-stub")(relay_stub)


def receive(
    event: Annotated[Path, EVENT],
    upstream: Annotated[str, UPSTREAM],
    journal: Annotated[Path, JOURNAL],
    run_id: Annotated[int, RUN_ID],
    run_attempt: Annotated[int, RUN_ATTEMPT] = 1,
    branch: Annotated[
        list[str] | None, typer.Option(help="To which pushes are tested; may repeat.")
    ] = None,
    output: Annotated[Path | None, OUTPUT] = None,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Take a dispatch of the relay: say what is to run, once for each delivery.

    Ends with 0 whatever is decided, 2 for a dispatch not as published, 5 without a journal.
    """
    with told("receive"), handing_on(output) as hand_on:
        envelope = read_envelope(contents(event), upstream)
        taken = Journal(journal)
        chosen = received(
            envelope, Run(run_id, run_attempt), taken, frozenset(branch or ()), time.time()
        )
        values = outputs(envelope.job, chosen)
        hand_on(values)
    if as_json:
        print(json.dumps({**values, "reason": chosen.reason}))
    else:
        what = f"pull request {values['pr']}" if values["pr"] else "a push"
        print(f"{chosen.step} ({what}, {values['sha'][:12]}): {chosen.reason}")


def finish(
    journal: Annotated[Path, JOURNAL],
    delivery_id: Annotated[str, typer.Option(help="As receive handed it on.")],
    result: Annotated[str, typer.Option(help="Of the run, a word of GitHub's.")],
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Note that what a delivery led to has ended, so that reconcile does not look for it.

    Exit codes: 0; 2 for a delivery that the journal does not know; 5 without a journal.
    """
    with told("finish"):
        check_result(result)
        known = DELIVERY.fullmatch(delivery_id)
        if not known or not Journal(journal).finish(delivery_id, result, time.time()):
            raise InvalidMessage(
                f"the journal {journal} does not know this delivery",
                hint="give the --journal and the delivery of receive",
            )
    ended = {"delivery_id": delivery_id, "result": result}
    print(json.dumps(ended) if as_json else f"finished: {result}")


def reconcile(
    upstream: Annotated[str, UPSTREAM],
    journal: Annotated[Path, JOURNAL],
    run_id: Annotated[int, RUN_ID],
    run_attempt: Annotated[int, RUN_ATTEMPT] = 1,
    pulls: Annotated[
        Path | None, typer.Option(help="GitHub's list of upstream's pull requests, JSON.")
    ] = None,
    commits: Annotated[
        list[str] | None,
        typer.Option(help="BRANCH=FILE: GitHub's list of its commits, latest first; may repeat."),
    ] = None,
    dispatches: Annotated[
        Path | None, typer.Option(help="Folder with dispatches, as relay-stub leaves them.")
    ] = None,
    hours: Annotated[float, typer.Option(min=0.0, help="How far to look back.")] = 48.0,
    patience: Annotated[
        float, typer.Option(min=0.0, help="Minutes in which a dispatch may still come.")
    ] = 60.0,
    most: Annotated[int, typer.Option(min=0, help="Commits to run again now.")] = 10,
    forget_days: Annotated[
        float, typer.Option(min=3.0, help="After which the journal forgets a delivery.")
    ] = 90.0,
    output: Annotated[Path | None, OUTPUT] = None,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """List what upstream shows and the journal lacks, and take the latest of it for this run.

    Hands on `again`, a JSON array of {sha} for a matrix: no dispatch named these commits, so
    they are reported with --nightly. Exit codes: 0; 2 wrong input; 5 without a journal.
    """
    if forget_days * 24 < hours:
        raise typer.BadParameter("what is forgotten would be missed: --forget-days is the longer")
    with told("reconcile"), handing_on(output) as hand_on:
        now, kept = time.time(), Journal(journal)
        seen = _seen(pulls, commits or ())
        sent = _sent(dispatches, upstream) if dispatches is not None else {}
        kept.prune(now - forget_days * 86_400)
        found = gaps(
            seen,
            sent,
            kept.entries(),
            now,
            window=hours * 3600,
            patience=patience * 60,
        )
        run = Run(run_id, run_attempt)
        again = [
            one
            for one in found.missed[:most]
            if kept.claim(one.job(), run, str(Step.RUN), now) is Claim.NEW
        ]
        hand_on({"again": json.dumps([{"sha": one.sha} for one in again])})
    _print_gaps(found, again, as_json)


def _seen(pulls: Path | None, commits: Sequence[str]) -> list[Seen]:
    found: list[Seen] = []
    if pulls is not None:
        found += read_pulls(read_message(contents(pulls), "the list of pulls", FILE_LIMIT))
    for word in commits:
        branch, _, name = word.partition("=")
        if not REF.fullmatch(branch) or not name:
            raise InvalidMessage("--commits names no branch and file", hint="use BRANCH=FILE")
        node = read_message(contents(Path(name)), "the list of commits", FILE_LIMIT)
        found += read_head(node, branch)
    return found


def _sent(folder: Path, upstream: str) -> dict[str, Path]:
    """The files of dispatches in a folder, by the id of the delivery."""
    if not folder.is_dir():
        raise InvalidMessage(f"{folder} is no folder", hint="give the --dispatches of relay-stub")
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[read_envelope(contents(path), upstream).job.delivery_id] = path
        except InvalidMessage as error:
            why = f"{error.what}; {error.why}" if error.why else error.what
            raise InvalidMessage(
                f"{path} is no dispatch", why=why, hint="move it out of the folder"
            ) from None
    return found


def _print_gaps(found: Gaps, again: Sequence[Seen], as_json: bool) -> None:
    if as_json:
        names = {seen.sha for seen in again}
        missed = [{**asdict(seen), "again": seen.sha in names} for seen in found.missed]
        unfinished = [asdict(entry) for entry in found.unfinished]
        unreceived = {delivery: path.name for delivery, path in found.unreceived.items()}
        return print(
            json.dumps({"missed": missed, "unfinished": unfinished, "unreceived": unreceived})
        )
    for seen in found.missed:
        what = f"pull request {seen.pr}" if seen.pr is not None else f"branch {seen.base_ref}"
        print(f"missed      {seen.sha[:12]} {what}{' (runs again)' if seen in again else ''}")
    for entry in found.unfinished:
        print(f"unfinished  {entry.sha[:12]} {entry.delivery_id} (run {entry.run.run_id})")
    for delivery in found.unreceived:
        print(f"unreceived  {delivery}: give its file to receive")
    print(
        f"{len(found.missed)} missed, {len(again)} run again;"
        f" {len(found.unfinished)} unfinished, {len(found.unreceived)} unreceived"
    )


def relay_stub(
    upstream: Annotated[str, UPSTREAM],
    allowlist: Annotated[Path, typer.Option(help="YAML with levels and repositories.")],
    repository: Annotated[str, typer.Option(help="Whose tokens it mints, owner/name.")],
    dispatches: Annotated[Path, typer.Option(help="Folder in which dispatches are left.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
    hud_fault: Annotated[
        list[str] | None,
        typer.Option(help="Of the dashboard's next call: 4xx, 5xx or hang; may repeat."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="After which it ends.")] = 3600.0,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Serve a relay and a dashboard on loopback, to rehearse against.

    Prints the addresses and the secrets, which it has made up. Pages: /crcr, /crcr/OWNER/NAME,
    /crcr/metrics. Ends by itself, or with Ctrl-C.
    """
    # The stub's libraries for tokens need not be where only reports are sent.
    from openspyre.ci.relay.stub.rehearsal import rehearsal

    with told("relay-stub"):
        stub = rehearsal(
            upstream=upstream,
            allowlist=contents(allowlist).decode(errors="replace"),
            repository=repository,
            dispatches=dispatches,
            faults=hud_fault or (),
        )
    with told("relay-stub"), stub.served(port) as facts:
        if as_json:
            print(json.dumps(facts), flush=True)
        else:
            print("\n".join(f"{name}={value}" for name, value in facts.items()), flush=True)
        with suppress(KeyboardInterrupt):
            stub.sweep_for(seconds)
