"""How the relay's commands speak: options they share, errors, exit codes, outputs for GitHub."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

import typer

from openspyre.ci.relay.journal import Unwritable
from openspyre.ci.relay.message import InvalidMessage
from openspyre.ci.relay.sending import NoToken
from openspyre.errors import SpyreError

FILE_LIMIT = 16 * 1024 * 1024  # bytes of any file
_LARGEST = 2**63 - 1  # that the journal can hold
UPSTREAM = typer.Option(help="Upstream's repository, owner/name.")
EVENT = typer.Argument(
    envvar="GITHUB_EVENT_PATH",
    help="File with the event or its client_payload; - reads standard input.",
)
OUTPUT = typer.Option(envvar="GITHUB_OUTPUT", help="File to which name=value lines are added.")
RUN_ID = typer.Option(envvar="GITHUB_RUN_ID", min=1, max=_LARGEST, help="Of the run.")
RUN_ATTEMPT = typer.Option(envvar="GITHUB_RUN_ATTEMPT", min=1, max=_LARGEST, help="At that run.")
JOURNAL = typer.Option(help="File that remembers deliveries; on a disk that stays.")


class NotHandedOn(SpyreError):
    """What a command has done is done, and the next jobs cannot be told."""


class Exit(IntEnum):
    """What the exit code of a command says."""

    GREEN = 0
    RED = 1
    CONFIG = 2
    INFRASTRUCTURE = 5


@contextmanager
def told(command: str) -> Iterator[None]:
    """Turns an error into a message and an exit code."""
    try:
        yield
    except (Unwritable, NoToken, NotHandedOn) as error:
        print(f"spyre-ci {command}: {error}", file=sys.stderr)
        raise typer.Exit(Exit.INFRASTRUCTURE) from None
    except SpyreError as error:
        print(f"spyre-ci {command}: {error}", file=sys.stderr)
        raise typer.Exit(Exit.CONFIG) from None


@contextmanager
def handing_on(path: Path | None) -> Iterator[Callable[[Mapping[str, str]], None]]:
    """Gives what adds to GitHub's file of outputs, opened before anything is taken or sent.

    The values have known alphabets without line ends.

    Raises:
        InvalidMessage: the file cannot be opened.
        NotHandedOn: it cannot be written.
    """
    if path is None:
        yield lambda values: None
        return
    try:
        file = path.open("ab", buffering=0)
    except OSError as error:
        raise InvalidMessage(
            f"{path} cannot be written", why=error.strerror or "", hint="name another --output"
        ) from None

    def hand_on(values: Mapping[str, str]) -> None:
        try:
            file.write("".join(f"{name}={value}\n" for name, value in values.items()).encode())
        except OSError as error:
            raise NotHandedOn(
                f"{path} cannot be written, so the next jobs do not run",
                why=error.strerror or "",
                hint="re-run all jobs of the workflow (attempt + 1)",
            ) from None

    with file:
        yield hand_on


def contents(path: Path) -> bytes:
    """A file, or of one that is longer than any may be a byte too much.

    Raises:
        InvalidMessage: it cannot be read.
    """
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read(FILE_LIMIT + 1)
        with path.open("rb") as file:
            return file.read(FILE_LIMIT + 1)
    except OSError as error:
        raise InvalidMessage(f"{path} cannot be read", why=error.strerror or "") from None
