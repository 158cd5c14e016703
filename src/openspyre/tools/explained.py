"""What the compiler decided for kernels, what else there was, and what bounds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from openspyre.card.activity import lines
from openspyre.compiler.alternatives import Choice, Place, StepChoices, places, step_choices
from openspyre.compiler.pipeline import Planned, planned
from openspyre.errors import SpyreError
from openspyre.ir.text import parse_kernel
from openspyre.runtime.clock import card_timer
from openspyre.runtime.saved import SavedKernel, Use
from openspyre.runtime.traced import Tracer
from openspyre.spec import CardSpec
from openspyre.tools.progress import Step, silent
from openspyre.tools.run_report import derived, line_of

_LINES = 3  # of a kernel


def explained(
    kernels: Sequence[SavedKernel], card: CardSpec, step: Step = silent
) -> list[dict[str, Any]]:
    """For every kernel that ran the plan of its heaviest sizes, most card time first."""
    found = []
    with Tracer(card) as tracer:
        for number, kernel in enumerate(kernels, 1):
            step(f"planning kernel {number} of {len(kernels)}")
            if kernel.uses:
                use = max(kernel.uses, key=lambda u: u.report.get("cycles", 0) * u.launches)
                found.append(_kernel(kernel, use, tracer, card))
    return sorted(found, key=lambda entry: -entry["cycles"] * entry["launches"])


def _kernel(kernel: SavedKernel, use: Use, tracer: Tracer, card: CardSpec) -> dict[str, Any]:
    program, report, events = tracer.trace(kernel, use)
    sums = {
        name: getattr(report, name) for name in report.__dataclass_fields__
    }  # one launch, as the clock has it
    cost = derived(sums, card)
    by_line = sorted(lines(program, events, report.cycles), key=lambda c: -c.cycles)
    region = parse_kernel(kernel.text)
    entry = {
        "name": kernel.name,
        "sizes": dict(zip(region.symbols, use.sizes, strict=True)),
        "launches": sum(u.launches for u in kernel.uses),
        "cycles": report.cycles,
        "microseconds": cost["microseconds"],
        "times_bound": cost["times_bound"],
        "limiting": cost["limiting"],
        "limiting_share": cost["limiting_share"],
        "lines": [_line(c.source, c.cycles, c.limiting) for c in by_line[:_LINES]],
        "hints": [str(hint) for hint in region.hints],
    }
    variant = kernel.variants[use.variant]
    limits = dict(zip(region.symbols, zip(variant.low, variant.high, strict=True), strict=True))
    try:
        plan = planned(replace(region, limits=limits), card, timer=card_timer(card))
    except SpyreError as error:  # a saved kernel that this version refuses
        nothing: dict[str, Any] = {"layouts": {}, "ways": [], "steps": [], "residency": []}
        return entry | {"problem": str(error)} | nothing
    return entry | {"problem": ""} | _plan(plan, card)


def _line(source: str, cycles: float, limiting: str) -> dict[str, Any]:
    place, code = line_of(source)
    return {"place": place, "code": code, "cycles": round(cycles, 1), "limiting": limiting}


def _plan(found: Planned, card: CardSpec) -> dict[str, Any]:
    plan = found.kernel
    return {
        "ways": [
            {
                "way": tried.way,
                "cycles": tried.cycles,
                "problem": tried.problem,
                "taken": tried.way == found.way,
            }
            for tried in found.tried
        ],
        "layouts": {name: list(layout.order) for name, layout in plan.layouts.items()},
        "steps": [_step(choices) for choices in step_choices(plan, card, ring=found.ring)],
        "residency": [_place(place) for place in places(plan, card)],
    }


def _step(found: StepChoices) -> dict[str, Any]:
    step = found.step
    return {
        "name": step.name,
        "like": list(found.like),
        "ops": list(step.ops),
        "axes": {axis.name: str(axis.extent) for axis in step.axes},
        "cores": found.cores,
        "division": _choice(found.division),
        "other_divisions": [_choice(choice) for choice in found.divisions],
        "tiling": _choice(found.tiling),
        "other_tilings": [_choice(choice) for choice in found.tilings],
        "early": dict(found.early),
    }


def _choice(choice: Choice) -> dict[str, Any]:
    return {"choice": choice.text, "estimated_cycles": round(choice.cycles)}


def _place(place: Place) -> dict[str, Any]:
    row = place.row
    return {
        "tensor": place.tensor,
        "space": row.space.value,
        "bytes": row.bytes,
        "steps": [row.first, row.last],
        "why": place.why,
    }


# --- as text --------------------------------------------------------------------------------------


def show_kernels(found: Sequence[dict[str, Any]], console: Console) -> None:
    """Prints what `explained` gives."""
    for kernel in found:
        for line in _head(kernel):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        if kernel["steps"]:
            console.print(_table(kernel["steps"]))
        for line in (*_early(kernel["steps"]), *_places(kernel)):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        console.print()


def _head(kernel: dict[str, Any]) -> Iterator[str]:
    sizes = ", ".join(f"{name} = {size}" for name, size in kernel["sizes"].items())
    yield (
        f"{kernel['name']}{f' ({sizes})' if sizes else ''}: {kernel['launches']} launches,"
        f" {kernel['cycles']:,} cycles ({kernel['microseconds']:,.1f} us),"
        f" {kernel['times_bound']:.1f} x bound P; {kernel['limiting']} is busy"
        f" {kernel['limiting_share']:.0%} of it"
    )
    for line in kernel["lines"]:
        where = f"{line['place']} {line['code']}".strip()
        yield f"  {where}: {line['cycles']:,.0f} cycles, limited by {line['limiting']}"
    if kernel["hints"]:
        yield f"  you fixed {', '.join(kernel['hints'])}"
    if len(kernel["ways"]) > 1:
        yield f"  planned {'; '.join(map(_way, kernel['ways']))}"
    if kernel["problem"]:
        yield f"  this version cannot plan it: {kernel['problem']}"
    if kernel["layouts"]:
        orders = (f"{n} {'-'.join(map(str, order))}" for n, order in kernel["layouts"].items())
        yield f"  layouts (dims from outer to stick): {', '.join(orders)}"


def _way(tried: dict[str, Any]) -> str:
    took = tried["problem"] or f"{tried['cycles']:,.0f} cycles"
    return f"{tried['way']}: {took}{' (taken)' if tried['taken'] else ''}"


def _places(kernel: dict[str, Any]) -> Iterator[str]:
    """The tensors that leave the steps of the table; those of steps like them go the same way."""
    steps = [step["name"] for step in kernel["steps"]]
    shown = [p for p in kernel["residency"] if f"s{p['steps'][0]}" in steps]
    for place in shown:
        where = "stays in LX" if place["space"] == "lx" else "goes through device memory"
        why = f": {place['why']}" if place["why"] else ""
        yield f"  {place['tensor']} {where} ({place['bytes']:,} bytes){why}"
    if more := len(kernel["residency"]) - len(shown):
        yield f"  and {more} more that leave steps like these"


def _early(steps: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What steps find in LX because others have loaded it."""
    for step in steps:
        during: dict[str, list[str]] = {}
        for tensor, other in step["early"].items():
            during.setdefault(other, []).append(tensor)
        for other, tensors in during.items():
            yield f"  {', '.join(tensors)} of {step['name']}: loaded during {other}"


def _table(steps: Sequence[dict[str, Any]]) -> Table:
    table = Table("step", "ops", "division", "estimate", "instead", "tiles", "instead", box=None)
    for step in steps:
        like = f" (and {len(step['like'])} like it)" if step["like"] else ""
        axes = ", ".join(f"{name} {extent}" for name, extent in step["axes"].items())
        taken = step["division"]["estimated_cycles"]
        table.add_row(
            escape(f"{step['name']}{like}\n{axes}"),
            escape(_shortened(step["ops"])),
            escape(f"{step['division']['choice']}\n{step['cores']} cores"),
            f"{taken:,}",
            escape(_others(step["other_divisions"], taken)),
            escape(step["tiling"]["choice"]),
            escape(_others(step["other_tilings"], taken)),
        )
    return table


def _shortened(ops: Sequence[str], most: int = 6) -> str:
    more = f" and {len(ops) - most} more" if len(ops) > most else ""
    return " ".join(ops[:most]) + more


def _others(choices: Sequence[dict[str, Any]], taken: float) -> str:
    return "\n".join(
        f"{c['choice']}: {c['estimated_cycles'] / max(taken, 1) - 1:+.0%}" for c in choices
    )
