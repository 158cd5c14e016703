"""What a command that takes long is doing: a bar on stderr, gone when it has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

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
