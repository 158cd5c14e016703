"""`spyre info` and `spyre doctor`: what is here, and whether it works."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import openspyre
from openspyre.card.native import isa
from openspyre.errors import SpyreError
from openspyre.ir.binary import VERSION
from openspyre.numerics import Numerics
from openspyre.runtime.cache import chosen_cache
from openspyre.settings import Settings, settings
from openspyre.spec import CALIBRATED, SPYRE_CARD_V1, CardSpec

AsObject = Annotated[bool, typer.Option("--json", help="Print a JSON object.")]
_GRADES = {
    "M": "measured", "D": "documented", "C": "compiler", "I": "inferred", "G": "guessed",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that `spyre doctor` looked at; `fix` says what to do where it is not ok."""

    what: str
    ok: bool
    detail: str
    fix: str = ""


# --- info ---------------------------------------------------------------------------------------


def info(as_object: AsObject = False) -> None:
    """Print the card's numbers, versions, settings and the cache of programs."""
    found = {
        "versions": _versions(),
        "settings": {f.name: _plain(getattr(settings(), f.name)) for f in fields(Settings)},
        "cache": asdict(chosen_cache().contents()) | {"folder": str(chosen_cache().folder)},
        "card": {f.name: _fact(f.name) for f in fields(CardSpec)},
    }
    if as_object:
        print(json.dumps(found, indent=1))
        return
    console = Console()
    for title in ("versions", "settings", "cache"):
        table = Table(title=title, title_justify="left", box=None, show_header=False)
        for name, value in found[title].items():
            table.add_row(name, escape(f"{value}"))
        console.print(table)
    columns = ("number", "value", "unit", "", "source")
    table = Table(*columns, title=CALIBRATED.version, title_justify="left", box=None)
    for name, fact in found["card"].items():
        table.add_row(name, f"{fact['value']:g}", fact["unit"], fact["grade"], fact["source"])
    console.print(table)


def _versions() -> dict[str, str]:
    return {
        "openspyre": openspyre.__version__,
        "torch": _torch_version(),
        "python": platform.python_version(),
        "program format": f"{VERSION}",
        "instruction set": _isa(),
    }


def _torch_version() -> str:
    try:
        import torch
    except ImportError as error:
        return f"not importable: {error}"
    return str(torch.__version__)


def _isa() -> str:
    try:
        return isa()
    except SpyreError as error:
        return error.what


def _fact(name: str) -> dict[str, Any]:
    field = next(f for f in fields(CardSpec) if f.name == name)
    grade = _GRADES[field.metadata["grade"]]
    return dict(field.metadata) | {"value": getattr(SPYRE_CARD_V1, name), "grade": grade}


def _plain(value: object) -> Any:
    match value:
        case Path():
            return str(value)
        case frozenset():
            return sorted(value)
        case Numerics():
            return str(value)
        case _:
            return value


# --- doctor -------------------------------------------------------------------------------------


def doctor(
    as_object: Annotated[
        bool, typer.Option("--json", help="Print a list of JSON objects.")
    ] = False,
) -> None:
    """Check that the device works here and say how to repair it; exit code 1 if it does not."""
    findings = list(_findings())
    if as_object:
        print(json.dumps([asdict(f) for f in findings], indent=1))
    else:
        table = Table("check", "", "detail")
        for f in findings:
            fix = f"\n[bold]fix:[/bold] {escape(f.fix)}" if f.fix and not f.ok else ""
            table.add_row(f.what, "[green]ok" if f.ok else "[red]no", escape(f.detail) + fix)
        Console().print(table)
    raise typer.Exit(0 if all(f.ok for f in findings) else 1)


def _findings() -> Iterator[Finding]:
    yield _folder("cache", settings().cache, "OPENSPYRE_CACHE")
    yield _folder("run folder", settings().run, "OPENSPYRE_RUN")
    yield _attempt("software card", isa, lambda name: f"kernels for {name}")
    version = _torch_version()
    right = version.startswith("2.13.")
    yield Finding("torch", right, f"{version}, needs 2.13.*", "pip install 'torch==2.13.*'")
    if right:
        yield from _device_findings()


def _device_findings() -> Iterator[Finding]:
    import torch

    name = torch._C._get_privateuse1_backend_name()
    yield Finding(
        "device name",
        name == "spyre",
        f"PrivateUse1 is called {name!r}",
        "a warning at 'import torch' says why autoload is off; TORCH_DEVICE_BACKEND_AUTOLOAD=0 "
        "and OPENSPYRE_AUTOLOAD=off also switch it off",
    )
    try:
        openspyre.require()
    except SpyreError as error:
        yield Finding("device", False, error.what, error.hint)
        return
    count = torch.accelerator.device_count()
    yield Finding("cards", count > 0, f"{count} software card(s)", "unset OPENSPYRE_DEVICES")
    x = torch.arange(5, device="spyre")
    arrived = torch.equal(x.cpu(), torch.arange(5))
    fix = "please report this with `spyre info`"
    yield Finding("copy", arrived, "values arrive and return", fix)
    yield _attempt("compute", lambda: (x + x).cpu().tolist() == [0, 2, 4, 6, 8], _right)
    free, total = torch.accelerator.get_memory_info()
    yield Finding(
        "memory",
        free > 1 << 28,
        f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free",
        "end other processes (`spyre smi` lists them), or set OPENSPYRE_MEMORY",
    )


def _right(result: bool) -> str:
    return "x + x is right" if result else "x + x is wrong"


def _attempt(what: str, act: Callable[[], Any], detail: Callable[[Any], str]) -> Finding:
    """Ok if `act` gives anything but False and does not fail."""
    try:
        result = act()
    except SpyreError as error:
        return Finding(what, False, error.what, error.hint)
    fix = "please report this with `spyre info`"
    return Finding(what, result is not False, detail(result), fix)


def _folder(what: str, folder: Path, variable: str) -> Finding:
    """Whether a folder is there or can be made, and can be written to."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    writable = False
    with suppress(OSError), TemporaryFile(dir=place):
        writable = True
    fix = f"{variable}=FOLDER chooses another one"
    return Finding(what, writable, f"{folder}" + ("" if writable else " is not writable"), fix)
