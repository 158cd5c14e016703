"""`spyre diagnose`: the first kernel of a run that is wrong, its op, and what kind of wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import openspyre
from openspyre.errors import SpyreError
from openspyre.ir.text import parse_kernel
from openspyre.runtime.diagnosis import Fault, Finding, Found, Judge, Meaning, Meanings, diagnosed
from openspyre.runtime.saved import Run, is_run, read_run, write_run
from openspyre.runtime.traced import card_of
from openspyre.settings import byte_count
from openspyre.tools.diagnosis_report import report_text, reproducer, summary
from openspyre.tools.estimate import overrides
from openspyre.tools.progress import progress
from openspyre.tools.report import is_model
from openspyre.tools.scripts import Arguments, AsJson, AsModule, on_stderr, record_script, told

_Target = Annotated[
    str,
    typer.Argument(
        metavar="SCRIPT|MODEL|FILE",
        help="A Python file (or with -m a module), a model's folder, config.json or type, or what"
        " `spyre capture` wrote.",
    ),
]
_Seen = tuple[Run, Meanings]


def diagnose(
    target: _Target,
    arguments: Arguments = None,
    module: AsModule = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the reproducer and the report.")
    ] = Path("diagnosis"),
    kernel: Annotated[str, typer.Option(help="Only kernels with this in their name.")] = "",
    limit: Annotated[str, typer.Option(help="Memory of launches to keep.")] = "4GiB",
    launches: Annotated[
        int, typer.Option(min=1, help="Launches to look at of a kernel with the same sizes.")
    ] = 2,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Relative error from which on precision is lost; by default by dtype."),
    ] = None,
    eager: Annotated[bool, typer.Option("--eager", help="Run a model without a compiler.")] = False,
    dtype: Annotated[str, typer.Option(help="Of a model: float16, bfloat16, float32.")] = "float16",
    batch: Annotated[int, typer.Option(min=1, help="Rows of a model's random inputs.")] = 2,
    length: Annotated[int, typer.Option(min=1, help="Tokens of each.")] = 16,
    override: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE in a model's config; may repeat.")
    ] = None,
    as_object: AsJson = False,
) -> None:
    """Find the first kernel of a run that is wrong, the op to blame, and what kind of wrong it is.

    Every kept launch is judged again with the values that the card found: against the kernel's
    reference, rounded and exact, and against torch on the CPU in float64. What is wrong is a fault
    of the compiler or the card, a wrong reference, or a loss of precision. The folder gets the
    capture of that launch, a script that needs no model, and the text of a report.

    Exit code 0: nothing is wrong; 1: something is; 2: there is nothing to look at.
    """
    asked = _Asked(
        module, as_object, byte_count(limit), kernel, launches, eager, dtype, batch, length,
        tuple(override or ()),
    )  # fmt: skip
    with told("diagnose"), _seen(target, arguments, asked) as (run, meanings):
        with progress() as step:
            judge = Judge(card_of(run.card), meanings, step, tolerance)
            found, worst = diagnosed(run, judge)
        if not found:
            raise SpyreError("no launch was kept", why=run.error, hint="raise --limit")
        files = {}
        if worst is not None:
            meaning = meanings(parse_kernel(worst[0].text))
            files = _write(output, run, worst, meaning)
    first = None if worst is None else worst[2]
    if as_object:
        print(json.dumps(as_dict(run, found, first, files), indent=1))
    else:
        _print(found, first, files)
    raise typer.Exit(0 if worst is None else 1)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The options that say what to run and what to keep of it."""

    module: bool
    quiet: bool
    room: int
    kernel: str
    launches: int
    eager: bool
    dtype: str
    batch: int
    length: int
    override: tuple[str, ...]

    def of_model(self, target: str) -> bool:
        """Whether the target is a model."""
        return not self.module and is_model(target)


@contextmanager
def _seen(target: str, arguments: Sequence[str] | None, asked: _Asked) -> Iterator[_Seen]:
    """The run of what the user named, and what torch says of its kernels."""
    path = Path(target)
    if not asked.module and path.is_file() and is_run(path):
        yield read_run(path), _nothing
        return
    openspyre.require()
    # Loads torch, which a capture must not need.
    from openspyre.frontend.torch_meaning import graphs_kept, meaning_of

    with graphs_kept():
        if asked.of_model(target):
            if arguments:
                raise SpyreError(
                    f"a model takes no arguments: {' '.join(arguments)}",
                    hint="options of the command stand before MODEL",
                )
            yield _model_run(target, asked), meaning_of
            return
        recorded = record_script(
            target, arguments, module=asked.module, quiet=asked.quiet, inputs=asked.room,
            wanted=asked.kernel, launches=asked.launches,
        )  # fmt: skip
        yield recorded.run, meaning_of


def _model_run(target: str, asked: _Asked) -> Run:
    from openspyre.tools.model_run import Called, model_run  # loads transformers

    called = Called(
        target, dtype=asked.dtype, batch=asked.batch, length=asked.length, eager=asked.eager,
        overrides=overrides(asked.override),
    )  # fmt: skip
    with on_stderr() if asked.quiet else nullcontext():
        return model_run(called, asked.room, asked.kernel, asked.launches)


def _nothing(_: object) -> Meaning | None:
    return None


def _write(folder: Path, run: Run, worst: Found, meaning: Meaning | None) -> dict[str, str]:
    """Writes the capture of a launch, a script that repeats it, and a report."""
    folder.mkdir(parents=True, exist_ok=True)
    kernel, launch, finding = worst
    capture = folder / "capture.spyre"
    alone = replace(kernel, launches=(launch,), refused=())
    write_run(replace(run, kernels=(alone,), spans=(), fallbacks=()), capture)
    script, report = folder / "reproduce.py", folder / "report.md"
    script.write_text(reproducer(kernel, finding, meaning), encoding="utf-8")
    report.write_text(report_text(run, kernel, finding), encoding="utf-8")
    return {"capture": str(capture), "script": str(script), "report": str(report)}


def as_dict(
    run: Run, found: Sequence[Finding], worst: Finding | None, files: dict[str, str]
) -> dict[str, Any]:
    """What `--json` prints."""
    counts = {fault.value: sum(f.fault is fault for f in found) for fault in Fault}
    return {
        "command": run.command,
        "error": run.error,
        "launches": counts,
        "first": None if worst is None else _plain(worst),
        "findings": [_plain(f) for f in found],
        "files": files,
    }


def _plain(finding: Finding) -> dict[str, Any]:
    return asdict(finding) | {"fault": finding.fault.value}


def _print(found: Sequence[Finding], worst: Finding | None, files: dict[str, str]) -> None:
    console = Console()
    table = Table("launch", "kernel", "", "error", "rounding explains", "torch", box=None)
    for one in found:
        error, allowed = max(((d.error, d.allowed) for d in one.wrong), default=(0.0, 0.0))
        shown = (f"{error:.2g}", f"{allowed:.2g}") if one.wrong else ("", "")
        colour = "green" if one.fault is Fault.NONE else "red"
        kind = f"[{colour}]{one.fault.value}"
        table.add_row(str(one.number), escape(one.kernel), kind, *shown, escape(one.torch))
    console.print(table)
    if worst is None:
        console.print(f"all {len(found)} launches are right")
        return
    for line in summary(worst):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for path in files.values():
        console.print(path, markup=False, highlight=False, soft_wrap=True)
