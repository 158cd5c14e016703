"""How commands of spyre-ci speak: errors on stderr with exit code 2, a bar after two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from openspyre.errors import SpyreError

_AFTER_S = 2.0
AS_JSON = typer.Option("--json", help="Print a JSON object.")


@contextmanager
def told(command: str, code: int = 2) -> Iterator[None]:
    """Inside, what a user can do something about becomes lines on stderr and an exit code."""
    try:
        yield
    except (SpyreError, OSError) as error:
        print(f"spyre-ci {command}: {error}", file=sys.stderr)
        raise typer.Exit(code) from None


@contextmanager
def shown_progress() -> Iterator[Callable[[str, float], None]]:
    """Gives the function that says what was done last, and which share of all is done."""
    columns = (
        TextColumn("{task.description}", markup=False),  # names of tests have brackets
        BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("", total=1.0)
    begun = time.monotonic()

    def tell(what: str, share: float) -> None:
        bar.update(task, description=what[-60:], completed=share)
        if time.monotonic() - begun > _AFTER_S and not bar.live.is_started:
            bar.start()

    try:
        yield tell
    finally:
        bar.stop()
