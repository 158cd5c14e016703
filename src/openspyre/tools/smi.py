"""`spyre smi`: the cards of the processes on this machine that use some."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from openspyre.runtime.shown import CardUse, read_states
from openspyre.settings import settings

AsObjects = Annotated[bool, typer.Option("--json", help="Print a list of JSON objects.")]
_SAMPLE = 0.25  # seconds between two looks


def smi(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again every second.")] = False,
    as_object: AsObjects = False,
) -> None:
    """Show the cards that processes of this user have open: memory and how busy they are."""
    if watch and not as_object:
        _watch(Console())
        return
    looks = iter(_looks(1.0))
    while True:
        found = _sampled() if not watch else next(looks)
        if as_object:
            print(
                json.dumps([asdict(use) for use in found], indent=None if watch else 1), flush=True
            )
        else:
            Console().print(_table(found))
        if not watch:
            return


def _watch(console: Console) -> None:
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
        for found in _looks(1.0):
            live.update(_table(found), refresh=True)


def _looks(interval: float) -> Iterator[list[CardUse]]:
    """What there is every `interval` seconds, with the utilisation since the look before."""
    before, then = read_states(settings().run), time.monotonic()
    while True:
        time.sleep(interval)
        now = time.monotonic()
        after = read_states(settings().run)
        yield with_utilisation(before, after, now - then)
        before, then = after, now


def _sampled() -> list[CardUse]:
    before, then = read_states(settings().run), time.monotonic()
    if not before:
        return []
    time.sleep(_SAMPLE)
    return with_utilisation(before, read_states(settings().run), time.monotonic() - then)


def with_utilisation(before: list[CardUse], after: list[CardUse], seconds: float) -> list[CardUse]:
    """The later look with the share of the seconds in which every card was busy."""
    spent = {(use.process, use.device): use.busy_seconds for use in before}
    return [
        replace(use, utilisation=min(1.0, max(0.0, (use.busy_seconds - earlier) / seconds)))
        for use in after
        for earlier in (spent.get((use.process, use.device), use.busy_seconds),)
    ]


def _table(found: list[CardUse]) -> Table:
    table = Table("process", "card", "memory", "busy", "launches", "command", box=None)
    for use in found:
        table.add_row(
            f"{use.process}",
            f"spyre:{use.device}",
            f"{use.allocated / 2**20:,.0f} of {use.memory / 2**20:,.0f} MiB",
            f"{use.utilisation:.0%}",
            f"{use.launches:,}",
            escape(use.command[:80]),
        )
    if not found:
        table.add_row("-", "no process uses a card", "", "", "", "")
    return table
