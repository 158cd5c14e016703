"""`spyre replay`: what a capture holds, again, without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from openspyre.card.native import DebugMode, debug_mode
from openspyre.errors import InvalidSetting, SpyreError
from openspyre.runtime.replay import Outcome, as_dict, replayed
from openspyre.runtime.saved import Run, SavedKernel, read_run
from openspyre.runtime.traced import card_of
from openspyre.settings import DEBUG_MODES
from openspyre.spec import CardSpec
from openspyre.tools.progress import Step, progress
from openspyre.tools.scripts import told

AsObjects = Annotated[bool, typer.Option("--json", help="Print a list of JSON objects.")]


def replay(
    file: Annotated[Path, typer.Argument(help="What `spyre capture` wrote.")],
    kernel: Annotated[str, typer.Option(help="Only kernels with this in their name.")] = "",
    again: Annotated[
        bool, typer.Option("--compile", help="Compile with this version instead.")
    ] = False,
    debug: Annotated[str, typer.Option(help="Modes of the card: poison, late, or both.")] = "",
    as_object: AsObjects = False,
) -> None:
    """Check, time and run the kernels of a capture, and compare with what they gave then.

    Exit code 1 if a program is wrong or gives other values, 2 if the file cannot be read.
    """
    with told("replay"):
        run = read_run(file)
        card = card_of(run.card)
        words = [word.strip() for word in debug.split(",") if word.strip()]
        if not set(words) <= set(DEBUG_MODES):
            raise InvalidSetting(f"--debug {debug} means nothing", hint=", ".join(DEBUG_MODES))
        chosen = _chosen(run, kernel)
        with progress() as step:
            outcomes = list(_outcomes(chosen, card, again, debug_mode(words), step))
    if as_object:
        print(json.dumps([as_dict(outcome) for outcome in outcomes], indent=1))
    else:
        made = ", ".join(f"{k} {v}" for k, v in run.versions.items() if k in ("openspyre", "torch"))
        print(f"{run.command} ({made})" + (f": {run.error}" if run.error else ""))
        _print(outcomes)
    raise typer.Exit(0 if all(outcome.ok for outcome in outcomes) else 1)


def _chosen(run: Run, part: str) -> list[SavedKernel]:
    """The kernels with a part in their name."""
    if chosen := [kernel for kernel in run.kernels if part in kernel.name]:
        return chosen
    if not run.kernels:
        raise SpyreError(f"no kernel was launched in the run of {run.command}", why=run.error)
    names = ", ".join(sorted({kernel.name for kernel in run.kernels}))
    raise SpyreError(f"no kernel has {part} in its name", hint=f"there are {names}")


def _outcomes(
    kernels: Sequence[SavedKernel], card: CardSpec, again: bool, modes: DebugMode, step: Step
) -> Iterator[Outcome]:
    for number, kernel in enumerate(kernels, 1):
        step(f"kernel {number} of {len(kernels)}")
        yield from replayed(kernel, card, again=again, debug=modes)


def _print(outcomes: Sequence[Outcome]) -> None:
    table = Table("kernel", "sizes", "", "cycles", "values", box=None)
    for outcome in outcomes:
        table.add_row(
            escape(outcome.kernel),
            " ".join(map(str, outcome.sizes)),
            "[green]ok" if outcome.ok else "[red]no",
            _cycles(outcome),
            escape(_values(outcome)),
        )
    console = Console()
    console.print(table)
    for outcome in outcomes:
        if outcome.problem:
            console.print(f"[red]{escape(outcome.kernel)}[/red]: {escape(outcome.problem)}")
    equal = sum(outcome.ran and outcome.ok for outcome in outcomes)
    console.print(f"{equal} of {len(outcomes)} gave the values that they gave then", markup=False)


def _cycles(outcome: Outcome) -> str:
    if outcome.cycles is None:
        return "-"
    same = outcome.cycles == outcome.recorded_cycles
    return f"{outcome.cycles:,}" + ("" if same else f" (then {outcome.recorded_cycles:,})")


def _values(outcome: Outcome) -> str:
    if outcome.differing:
        return f"{outcome.differing} bytes differ, first {outcome.first}"
    return "equal" if outcome.ran else outcome.why_not
