"""`spyre report`, `spyre capture` and `spyre explain`: a run of the user's, looked at."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import openspyre
from openspyre.runtime.saved import Fallback, Run, is_run, read_run, write_run
from openspyre.runtime.traced import card_of
from openspyre.settings import byte_count
from openspyre.spec import SPYRE_CARD_V1
from openspyre.tools.explained import explained, show_kernels
from openspyre.tools.outlook_text import show_outlook
from openspyre.tools.page import page
from openspyre.tools.progress import progress
from openspyre.tools.run_report import as_json, report_of
from openspyre.tools.scripts import (
    Arguments,
    AsJson,
    AsModule,
    Ended,
    Recorded,
    Target,
    check_writable,
    record_script,
    told,
)
from openspyre.tools.trace import as_trace

if TYPE_CHECKING:  # needs torch
    from openspyre.tools.unlaunched import Outlook

_Output = Annotated[Path, typer.Option("--output", "-o", help="The file to write.")]
_SaveTo = Annotated[
    Path | None, typer.Option("--save", help="Keep the run in a file, for `spyre report FILE`.")
]
_TraceTo = Annotated[
    Path | None, typer.Option("--trace", help="Write a trace for Perfetto or chrome://tracing.")
]


def report(
    target: Target,
    arguments: Arguments = None,
    module: AsModule = False,
    output: _Output = Path("spyre-report.html"),
    save: _SaveTo = None,
    trace: _TraceTo = None,
    as_object: AsJson = False,
) -> None:
    """Run a script, or take a saved run, and write a page about what the card did.

    The exit code is the script's; 2 where there is nothing to report on.
    """
    with told("report"):
        check_writable(output, save, trace)
        recorded = _recorded(target, arguments, module=module, quiet=as_object)
        if save is not None:
            write_run(recorded.run, save)  # first: it needs nothing that could fail
        with progress() as step:
            found = report_of(recorded.run, step)
        output.write_bytes(page(found).encode(errors="replace"))
        if trace is not None:
            trace.write_text(json.dumps(as_trace(recorded.run)))
    if as_object:
        print(as_json(found))
    else:
        _print_summary(found, [output, *(path for path in (save, trace) if path is not None)])
    raise typer.Exit(recorded.ended.code)


def capture(
    target: Target,
    arguments: Arguments = None,
    module: AsModule = False,
    output: _Output = Path("capture.spyre"),
    kernel: Annotated[str, typer.Option(help="Only kernels with this in their name.")] = "",
    limit: Annotated[
        str, typer.Option(help="Memory to keep: each kernel's first launch while it fits.")
    ] = "1GiB",
    as_object: AsJson = False,
) -> None:
    """Run a script and keep its kernels with their inputs in one file, for a report of a bug.

    `spyre replay FILE` runs them again without torch. Tensors are in the file: share it with care.
    """
    with told("capture"):
        room = byte_count(limit)
        check_writable(output)
        recorded = record_script(
            target, arguments, module=module, quiet=as_object, inputs=room, wanted=kernel
        )
        written = write_run(recorded.run, output)
    summary = _captured(recorded.run, output, written)
    if as_object:
        print(json.dumps(summary))
    else:
        print(
            f"{output}: {written / 2**20:.1f} MiB, {summary['kernels']} kernels,"
            f" {summary['launches']} launches with their memory"
        )
        for text in summary["left_out"]:
            print(f"left out: {text}")
    raise typer.Exit(recorded.ended.code)


def explain(
    target: Target,
    arguments: Arguments = None,
    module: AsModule = False,
    as_object: AsJson = False,
) -> None:
    """Tell what the compiler decided for every kernel, and which ops ran on the CPU, and why.

    SCRIPT is run, or is a saved run, or a model: a config.json, a folder with one or a model type.
    Of a model it says, without its weights, whether it will run: its ops, dtypes, fallbacks, the
    memory that it needs, card time of a prompt and of a token after it. Exit code 1 if anything
    runs on the CPU, or the model does not run or does not fit in the card's memory.
    """
    seen: Outlook | None = None
    with told("explain"):
        if not module and is_model(target):
            seen = _outlook(target)
            kernels, fallbacks, card = seen.kernels, seen.fallbacks, SPYRE_CARD_V1
            code = 1 if seen.why or not seen.fits else 0
        else:
            recorded = _recorded(target, arguments, module=module, quiet=as_object)
            kernels, fallbacks = recorded.run.kernels, recorded.run.fallbacks
            card, code = card_of(recorded.run.card), recorded.ended.code
        with progress() as step:
            found = explained(kernels, card, step)
    if as_object:
        model = {} if seen is None else {"model": seen.as_dict()}
        printed = {"kernels": found, "fallbacks": [asdict(one) for one in fallbacks]}
        print(json.dumps(model | printed))
    else:
        if seen is not None:
            show_outlook(seen, Console(width=None if sys.stdout.isatty() else 120))
        _print_explained(found, fallbacks)
    raise typer.Exit(code or (1 if fallbacks else 0))


def is_model(target: str) -> bool:
    """Whether a command's target is a model rather than a program or a saved run."""
    path = Path(target)
    if path.is_dir():
        return (path / "config.json").is_file() and not (path / "__main__.py").exists()
    named = re.fullmatch(r"\w[\w-]+", target) is not None and not path.exists()
    return named or path.suffix == ".json"


def _outlook(model: str) -> Outlook:
    openspyre.require()
    from openspyre.tools.layered import configured  # loads transformers
    from openspyre.tools.unlaunched import outlook

    with progress() as step:
        step("reading the config")
        return outlook(configured(model, {}), SPYRE_CARD_V1, step)


def _print_explained(found: Sequence[dict[str, Any]], fallbacks: Sequence[Fallback]) -> None:
    console = Console()
    show_kernels(found, console)
    if not fallbacks:
        print("every op ran on the card")
        return
    table = Table("op", "calls", "why it ran on the CPU", box=None)
    for fallback in fallbacks:
        table.add_row(escape(fallback.op), f"{fallback.calls}", escape(fallback.reason))
    console.print(table)


def _recorded(
    target: str, arguments: Sequence[str] | None, *, module: bool, quiet: bool
) -> Recorded:
    if not module and Path(target).is_file() and is_run(Path(target)):
        return Recorded(read_run(Path(target)), Ended())
    return record_script(target, arguments, module=module, quiet=quiet)


def _captured(run: Run, output: Path, written: int) -> dict[str, Any]:
    launches = [(k.name, launch) for k in run.kernels for launch in k.launches]
    return {
        "file": str(output),
        "bytes": written,
        "kernels": len(run.kernels),
        "launches": sum(1 for _, launch in launches if not launch.why_not),
        "left_out": [f"{name}: {one.why_not}" for name, one in launches if one.why_not],
        "error": run.error,
    }


def _print_summary(found: dict[str, Any], files: Sequence[Path]) -> None:
    console = Console(file=sys.stderr)
    totals = found["totals"]
    table = Table("kernel", "launches", "cycles", "us", "limiting", box=None)
    for kernel in found["kernels"][:12]:
        table.add_row(
            escape(kernel["name"]),
            f"{kernel['launches']}",
            f"{kernel['cycles']:,}",
            f"{kernel['microseconds']:,.1f}",
            f"{kernel['limiting']} {kernel['limiting_share']:.0%}",
        )
    if found["kernels"]:
        console.print(table)
    console.print(
        f"{totals['launches']} launches, {totals['microseconds']:,.1f} us of card time, "
        f"{totals['fallback_calls']} calls on the CPU"
    )
    for note in found["notes"]:
        console.print(f"note: {note}", markup=False)
    for path in files:
        print(path)
