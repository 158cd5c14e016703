"""What a command that takes long is doing: a bar on stderr, gone when it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

Step = Callable[[str], None]


@contextmanager
def progress() -> Iterator[Step]:
    """Gives the function that says what begins. Nothing is shown where stderr is no terminal."""
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=None)
        yield lambda text: bar.update(task, description=text)


def silent(_: str) -> None:
    """A Step that shows nothing."""


@contextmanager
def late_bar(console: Console, after: float = 2.0) -> Iterator[Callable[[str, float | None], None]]:
    """Gives the function that says what is being done and which share of it is done.

    The bar comes after so many seconds, and is gone at the end.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("", total=1.0)
    begun = time.monotonic()

    def tell(what: str, share: float | None) -> None:
        total = None if share is None else 1.0
        bar.update(task, description=what, completed=share or 0.0, total=total)
        if time.monotonic() - begun >= after and not bar.live.is_started:
            bar.start()

    try:
        yield tell
    finally:
        bar.stop()
