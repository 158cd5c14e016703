"""Commands that speak with upstream's relay."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import Annotated

import typer

from openspyre.ci.relay.envelope import RECEIVED_LIMIT, read_envelope
from openspyre.ci.relay.journal import Journal, Run, Unwritable
from openspyre.ci.relay.message import InvalidMessage
from openspyre.ci.relay.receive import outputs, received
from openspyre.errors import SpyreError

AS_JSON = typer.Option("--json", help="Print a JSON object.")
UPSTREAM = typer.Option(help="Upstream's repository, owner/name.")
EVENT = typer.Argument(
    envvar="GITHUB_EVENT_PATH",
    help="File with the event or its client_payload; - reads standard input.",
)
JOURNAL = typer.Option(help="File that remembers deliveries; on a disk that stays.")


class Exit(IntEnum):
    """What the exit code of a command says."""

    GREEN = 0
    RED = 1
    CONFIG = 2
    INFRASTRUCTURE = 5


def add_relay_commands(app: typer.Typer) -> None:
    """Gives an app the commands of this file."""
    app.command()(receive)
    app.command(name="relay-stub")(relay_stub)


def receive(
    event: Annotated[Path, EVENT],
    upstream: Annotated[str, UPSTREAM],
    journal: Annotated[Path, JOURNAL],
    run_id: Annotated[
        int, typer.Option(envvar="GITHUB_RUN_ID", min=1, help="Of the workflow's run.")
    ],
    run_attempt: Annotated[
        int, typer.Option(envvar="GITHUB_RUN_ATTEMPT", min=1, help="At that run.")
    ] = 1,
    branch: Annotated[
        list[str] | None, typer.Option(help="To which pushes are tested; may repeat.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(envvar="GITHUB_OUTPUT", help="File to which name=value lines are added."),
    ] = None,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Take a dispatch of the relay: say what is to run, once for each delivery.

    Ends with 0 whatever is decided, 2 for a dispatch not as published, 5 without a journal.
    """
    with told("receive"):
        envelope = read_envelope(_contents(event), upstream)
        taken = Journal(journal)
        chosen = received(
            envelope, Run(run_id, run_attempt), taken, frozenset(branch or ()), time.time()
        )
        values = outputs(envelope.job, chosen)
        write_outputs(output, values)
    if as_json:
        print(json.dumps({**values, "reason": chosen.reason}))
    else:
        what = f"pull request {values['pr']}" if values["pr"] else "a push"
        print(f"{chosen.step} ({what}, {values['sha'][:12]}): {chosen.reason}")


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
            allowlist=_contents(allowlist).decode(errors="replace"),
            repository=repository,
            dispatches=dispatches,
            faults=hud_fault or (),
        )
    with stub.served(port) as facts:
        if as_json:
            print(json.dumps(facts), flush=True)
        else:
            print("\n".join(f"{name}={value}" for name, value in facts.items()), flush=True)
        with suppress(KeyboardInterrupt):
            stub.sweep_for(seconds)


@contextmanager
def told(command: str) -> Iterator[None]:
    """Turns an error into a message and an exit code."""
    try:
        yield
    except Unwritable as error:
        print(f"{command}: {error}", file=sys.stderr)
        raise typer.Exit(Exit.INFRASTRUCTURE) from None
    except SpyreError as error:
        print(f"{command}: {error}", file=sys.stderr)
        raise typer.Exit(Exit.CONFIG) from None


def write_outputs(path: Path | None, values: Mapping[str, str]) -> None:
    """Adds to GitHub's file of outputs; the values have known alphabets without line ends."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"{name}={value}\n" for name, value in values.items())


def _contents(path: Path) -> bytes:
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read(RECEIVED_LIMIT + 1)
        with path.open("rb") as file:
            return file.read(RECEIVED_LIMIT + 1)
    except OSError as error:
        raise InvalidMessage(f"{path.name} cannot be read", why=error.strerror or "") from None
