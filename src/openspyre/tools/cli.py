"""The `spyre` command."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from openspyre.runtime.cache import Contents, chosen_cache
from openspyre.settings import settings

app = typer.Typer(
    help="The IBM Spyre dataflow accelerator in software. Not affiliated with IBM.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


cache_commands = typer.Typer(help="Compiled programs on disk.", no_args_is_help=True)
app.add_typer(cache_commands, name="cache")
JSON_OBJECT = typer.Option("--json", help="Print a JSON object.")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that `spyre doctor` looked at."""

    what: str
    ok: bool
    detail: str


@app.callback()
def main_options() -> None:
    """The IBM Spyre dataflow accelerator in software. Not affiliated with IBM."""


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of JSON objects.")] = False,
) -> None:
    """Check that the device works here; exit code 1 if it does not."""
    findings = list(_findings())
    if as_json:
        print(json.dumps([asdict(f) for f in findings], indent=1))
    else:
        table = Table("check", "", "detail")
        for f in findings:
            table.add_row(f.what, "[green]ok" if f.ok else "[red]no", f.detail)
        Console().print(table)
    raise typer.Exit(0 if all(f.ok for f in findings) else 1)


def _findings() -> list[Finding]:
    import torch

    name = torch._C._get_privateuse1_backend_name()
    found = [
        Finding(
            "torch", torch.__version__.startswith("2.13."), f"{torch.__version__}, needs 2.13.*"
        ),
        Finding("device name", name == "spyre", f"PrivateUse1 is called {name!r}"),
    ]
    if name != "spyre" or not hasattr(torch, "spyre"):
        hint = "autoload is off: a warning at 'import torch' says why"
        return [*found, Finding("device", False, hint)]
    count = torch.spyre.device_count()
    found.append(Finding("cards", count > 0, f"{count} software card(s)"))
    if count:
        x = torch.arange(5, device="spyre")
        right = torch.equal(x.cpu(), torch.arange(5))
        free, total = torch.accelerator.get_memory_info()
        found.append(Finding("copy", right, "values arrive and return"))
        found.append(
            Finding("memory", total > 0, f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free")
        )
    return found


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
        f"{done}{contents.entries} programs, {contents.bytes / 2**20:.1f} MiB"
        f" of {limit / 2**20:.0f} MiB, in {folder}" + ("" if on else " (switched off)")
    )


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
