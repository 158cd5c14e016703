"""The `spyre` command."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

import openspyre
from openspyre.runtime.cache import Contents, chosen_cache
from openspyre.settings import settings
from openspyre.tools.adapt import adapt_commands
from openspyre.tools.diagnose import diagnose
from openspyre.tools.estimate import estimate
from openspyre.tools.machine import doctor, info
from openspyre.tools.models import models
from openspyre.tools.replay import replay
from openspyre.tools.report import capture, explain, report
from openspyre.tools.scripts import SCRIPT, told
from openspyre.tools.smi import smi
from openspyre.tools.weights import weights_commands

app = typer.Typer(
    help="The IBM Spyre dataflow accelerator in software. Not affiliated with IBM.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
cache_commands = typer.Typer(help="Compiled programs on disk.", no_args_is_help=True)
JSON_OBJECT = typer.Option("--json", help="Print a JSON object.")

for command in (report, capture, explain, diagnose):
    app.command(context_settings=SCRIPT)(command)
for other in (replay, estimate, info, smi, doctor, models):
    app.command()(other)
app.add_typer(cache_commands, name="cache")
app.add_typer(weights_commands, name="weights")
app.add_typer(adapt_commands, name="adapt")


@app.command()
def accuracy(
    model: Annotated[str, typer.Argument(help="Folder of a model, type, script, or minilm.")],
    dtype: Annotated[str, typer.Option(help="float16 or bfloat16, on the card.")] = "float16",
    batch: Annotated[int, typer.Option(min=1, help="Rows of the random inputs.")] = 2,
    length: Annotated[int, typer.Option(min=1, help="Tokens of each.")] = 64,
    seed: Annotated[int, typer.Option(help="Of inputs, and of weights that are missing.")] = 0,
    switch: Annotated[
        list[str] | None, typer.Option(help="Of numerics card, e.g. acc_chunk=8; may repeat.")
    ] = None,
    depth: Annotated[int, typer.Option(min=0, help="Names of modules shown; 0: all.")] = 3,
    as_json: Annotated[bool, JSON_OBJECT] = False,
) -> None:
    """Tell how far a model is from float32 under numerics ieee and card, per layer and output.

    A script defines `model` (a torch.nn.Module) and `inputs` (a tensor, tuple or dict).
    """
    with told("accuracy"):
        openspyre.require()
    from openspyre.tools.accuracy_command import report

    switches = ["card", *(switch or ())]
    raise typer.Exit(report(model, dtype, batch, length, seed, ",".join(switches), depth, as_json))


@cache_commands.command()
def show(as_json: Annotated[bool, JSON_OBJECT] = False) -> None:
    """Print where compiled programs are, how many, and what they take."""
    _print_contents(chosen_cache().contents(), "", as_json)


@cache_commands.command()
def clear(as_json: Annotated[bool, JSON_OBJECT] = False) -> None:
    """Remove every compiled program."""
    try:
        _print_contents(chosen_cache().clear(), "removed ", as_json)
    except OSError as error:
        raise SystemExit(f"spyre cache clear: {error}") from None


def _print_contents(contents: Contents, done: str, as_json: bool) -> None:
    folder, limit = chosen_cache().folder, chosen_cache().limit
    on = settings().cache_programs
    if as_json:
        print(json.dumps(asdict(contents) | {"folder": str(folder), "limit": limit, "on": on}))
        return
    print(
        f"{done}{contents.programs} programs and {contents.patterns} eager patterns,"
        f" {contents.bytes / 2**20:.1f} MiB of {limit / 2**20:.0f} MiB, in {folder}"
        + ("" if on else " (switched off)")
    )


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
