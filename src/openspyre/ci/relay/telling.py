"""How the relay's commands speak: options they share, errors, exit codes, outputs for GitHub."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

import typer

from openspyre.ci.relay.journal import Unwritable
from openspyre.ci.relay.message import InvalidMessage
from openspyre.ci.relay.sending import NoToken
from openspyre.errors import SpyreError

READ_LIMIT = 16 * 1024 * 1024 + 1
UPSTREAM = typer.Option(help="Upstream's repository, owner/name.")
EVENT = typer.Argument(
    envvar="GITHUB_EVENT_PATH",
    help="File with the event or its client_payload; - reads standard input.",
)
OUTPUT = typer.Option(envvar="GITHUB_OUTPUT", help="File to which name=value lines are added.")
JOURNAL = typer.Option(help="File that remembers deliveries; on a disk that stays.")


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
    except (Unwritable, NoToken) as error:
        print(f"spyre-ci {command}: {error}", file=sys.stderr)
        raise typer.Exit(Exit.INFRASTRUCTURE) from None
    except SpyreError as error:
        print(f"spyre-ci {command}: {error}", file=sys.stderr)
        raise typer.Exit(Exit.CONFIG) from None


def write_outputs(path: Path | None, values: Mapping[str, str]) -> None:
    """Adds to GitHub's file of outputs; the values have known alphabets without line ends."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"{name}={value}\n" for name, value in values.items())


def contents(path: Path) -> bytes:
    """The start of a file, a little more than may be read of any.

    Raises:
        InvalidMessage: it cannot be read.
    """
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read(READ_LIMIT)
        with path.open("rb") as file:
            return file.read(READ_LIMIT)
    except OSError as error:
        raise InvalidMessage(f"{path.name} cannot be read", why=error.strerror or "") from None
