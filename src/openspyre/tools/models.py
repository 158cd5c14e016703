"""`spyre models`: which types of Hugging Face models run on the card, and what became of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from openspyre.errors import SpyreError
from openspyre.hf.coverage import Plan, code_version, surveyed
from openspyre.hf.outcomes import LANES, RAN, Lane, Outcome, State
from openspyre.hf.shares import shares, weighted_types
from openspyre.settings import settings
from openspyre.tools.models_page import page
from openspyre.tools.progress import late_bar
from openspyre.tools.scripts import told


def models(
    types: Annotated[
        list[str] | None, typer.Argument(help="Model types; none: those that people download.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every type of transformers.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at once.")] = 1,
    seconds: Annotated[float, typer.Option(min=1, help="That a type may take.")] = 600,
    only: Annotated[
        str, typer.Option(help="eager, compiled, or build (runs nothing); both runs if empty.")
    ] = "",
    resume: Annotated[
        bool, typer.Option("--resume", help="Take what this version has found before.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option("--page", help="Write the result as a Markdown page, too.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Try tiny random models: on the CPU, eagerly on the card and compiled."""
    with told("models"):
        if only not in ("", *LANES, "build"):
            raise SpyreError(f"there is no run {only}", hint="--only eager, compiled or build")
        chosen = _chosen(types or [], every)
        kept = settings().cache / "coverage" / code_version()
        plan = Plan(seconds, jobs, kept, resume, lanes=_lanes(only))
        found = list(_shown(chosen, plan, quiet=as_json))
        if write is not None:
            write.write_text(page(found))
    if as_json:
        print(json.dumps(report(found)))
    else:
        _print_totals(found)
    bad = any(one.state in (State.WRONG, State.RAISED) for one in found)
    raise typer.Exit(1 if bad else 0)


def report(found: Sequence[Outcome]) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "states": {name: dict(_states(found, name)) for name in LANES},
        "shares": [asdict(share) for share in shares(found)],
        "types": [one.as_dict() for one in found],
    }


def _lanes(only: str) -> tuple[str, ...]:
    if only == "build":
        return ()
    return (only,) if only else LANES


def _chosen(types: Sequence[str], every: bool) -> Sequence[str]:
    from openspyre.hf.tiny_model import model_types  # loads PyTorch and transformers

    known = model_types()
    if every:
        return known
    for name in types:
        if name not in known:
            raise SpyreError(
                f"there is no model type {name}", hint="`model_type` in a model's config.json"
            )
    return types or [name for name in weighted_types() if name in known]


def _shown(types: Sequence[str], plan: Plan, *, quiet: bool) -> Iterator[Outcome]:
    """The outcomes, printed as they come."""
    console = Console()
    with late_bar(Console(stderr=True)) as tell:
        for number, outcome in enumerate(surveyed(types, plan), 1):
            tell(f"{number} of {len(types)}: {outcome.type}", number / len(types))
            if not quiet:
                console.print(_line(outcome), highlight=False, soft_wrap=True)
            yield outcome


_COLOURS = {
    State.RIGHT: "green", State.FALLBACKS: "yellow", State.RAISED: "red", State.WRONG: "bold red",
    State.SKIPPED: "dim", State.BUILT: "dim",
}  # fmt: skip


def _line(one: Outcome) -> str:
    colour = _COLOURS[one.state]
    text = f"[{colour}]{one.state.value:21}[/] {one.type:26}"
    if one.state is State.SKIPPED:
        return f"{text} {escape(one.reason)}"
    told = [said for name in LANES if (said := _said(one, name))]
    return f"{text} {escape('; '.join(told) or f'{one.kind}, {one.dtype}')}"


def _said(one: Outcome, name: str) -> str:
    lane: Lane | None = getattr(one, name)
    if lane is None or lane.state is State.RIGHT:
        return ""
    if lane.state is State.FALLBACKS:
        return f"{name}: " + ", ".join(f"{op} x{n}" for op, n in lane.fallbacks.items())
    return lane.reason if lane.state is State.RAISED else f"{name}: {lane.reason}"


def _states(found: Sequence[Outcome], name: str) -> Iterator[tuple[str, int]]:
    lanes = [lane for one in found if (lane := getattr(one, name)) is not None]
    counts = Counter(lane.state for lane in lanes)
    yield from ((state.value, counts[state]) for state in State if counts[state])


def _print_totals(found: Sequence[Outcome]) -> None:
    console = Console()
    table = Table("", *(state.value for state in RAN))
    for name in LANES:
        counts = dict(_states(found, name))
        row = [str(counts.get(state.value, 0)) for state in RAN]
        table.add_row(name, *row)
    console.print(table)
    skipped = sum(one.state is State.SKIPPED for one in found)
    if skipped:
        console.print(f"{skipped} skipped: the CPU does not run them here")
    built = sum(one.state is State.BUILT for one in found)
    if built:
        console.print(f"{built} only built: tiny models of these types can be made")
    for share in shares(found):
        if share.tried:
            console.print(
                f"{share.use}: {share.right:g} % of downloads are right, {share.alone:g} % without"
                f" the CPU, of {share.tried:g} % tried (wanted {share.need:g} %)"
            )
