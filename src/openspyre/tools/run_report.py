"""What a run says to people, as one JSON object: every number on the page is here.

Counts of a kernel are sums over its launches. A kernel's timeline, LX and lines are those of the
sizes that took most card time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

from openspyre.card.activity import (
    TRAFFIC,
    LineCost,
    busiest_core,
    lines,
    lx_lifetimes,
    traffic_over_time,
    use_over_time,
)
from openspyre.card.native import UNITS, Events, Report
from openspyre.compiler.pipeline import plan_kernel
from openspyre.errors import SpyreError
from openspyre.ir.kernel import Kernel
from openspyre.ir.program import Program
from openspyre.ir.text import parse_kernel, print_kernel
from openspyre.ir.text_program import print_program
from openspyre.runtime.saved import Run, SavedKernel, Use
from openspyre.runtime.traced import Tracer, card_of
from openspyre.spec import CardSpec

FORMAT = 1
BINS = 120
SHOWN_TIMELINES = 12
"""Kernels with most card time get a timeline and LX; the others only numbers."""
SHOWN_SPANS = 4000
_SUMS = (
    *("cycles", "bound_p_cycles", "pt_busy", "sfu_busy", "load_busy", "store_busy"),
    *("device_read_bytes", "device_write_bytes", "ring_bytes", "flop", "sfu_ops", "instructions"),
)


@dataclass(frozen=True, slots=True)
class _Traced:
    """A use with what the time engine says about one launch of it."""

    kernel: SavedKernel
    use: Use
    program: Program
    report: Report
    costs: tuple[LineCost, ...]


def report_of(run: Run) -> dict[str, Any]:
    """The report of a run.

    Raises:
        InvalidRun, InvalidProgram: another version wrote the run.
    """
    card = card_of(run.card)
    kernels, notes = [], []
    everything: list[_Traced] = []
    with Tracer(card) as tracer:
        for kernel in run.kernels:
            traced = [_traced(tracer, kernel, use) for use in kernel.uses]
            everything += traced
            notes += [note for one in traced for note in _differences(one)]
            if traced:
                kernels.append(_kernel(traced, card))
        kernels.sort(key=lambda entry: -entry["cycles"])
        for entry in kernels[:SHOWN_TIMELINES]:
            entry["over_time"] = _over_time(tracer, entry, run, card)
    for entry in kernels:
        del entry["index"]
    if len(kernels) > SHOWN_TIMELINES:
        notes.append(f"timelines of the {SHOWN_TIMELINES} kernels with most card time only")
    notes += [f"kernel {k.name} did not compile" for k in run.kernels if k.refused]
    totals = _totals(kernels, run, card)
    spans = [asdict(span) for span in run.spans[:SHOWN_SPANS]]
    if len(run.spans) > SHOWN_SPANS:
        notes.append(f"the run's timeline has the first {SHOWN_SPANS} of {len(run.spans)} spans")
    return {
        "format": FORMAT,
        "command": run.command,
        "error": run.error,
        "versions": dict(run.versions),
        "settings": dict(run.settings),
        "card": dict(run.card),
        "totals": totals,
        "kernels": kernels,
        "lines": _user_lines(everything),
        "fallbacks": [asdict(f) for f in run.fallbacks],
        "spans": spans,
        "notes": notes,
    }


def _traced(tracer: Tracer, kernel: SavedKernel, use: Use) -> _Traced:
    program, report, events = tracer.trace(kernel, use)
    return _Traced(kernel, use, program, report, lines(program, events, report.cycles))


def _differences(traced: _Traced) -> Iterator[str]:
    recorded, now = traced.use.report.get("cycles"), traced.report.cycles
    if recorded != now:
        sizes = ", ".join(map(str, traced.use.sizes))
        yield (
            f"{traced.kernel.name} ({sizes}) took {recorded} cycles when it was recorded; this"
            f" version's card says {now}, and shows that"
        )


# --- kernels ------------------------------------------------------------------------------------


def _kernel(traced: Sequence[_Traced], card: CardSpec) -> dict[str, Any]:
    """All launches of a kernel. `index` is the position of its heaviest use."""
    first = traced[0].kernel
    heavy = max(range(len(traced)), key=lambda n: traced[n].report.cycles * traced[n].use.launches)
    sums = {name: sum(getattr(t.report, name) * t.use.launches for t in traced) for name in _SUMS}
    return {
        "name": first.name,
        "launches": sum(t.use.launches for t in traced),
        **sums,
        "lx_peak": max(t.report.lx_peak for t in traced),
        "cores": max(t.report.cores for t in traced),
        "host_seconds": sum(t.use.host_seconds for t in traced),
        **derived(sums, card),
        "sizes": [
            {"sizes": list(t.use.sizes), "launches": t.use.launches, "cycles": t.report.cycles}
            for t in traced
        ],
        "shown_sizes": list(traced[heavy].use.sizes),
        "lines": [_line_entry(cost, traced[heavy].use.launches) for cost in traced[heavy].costs],
        "kernel_text": first.text,
        "plan": plan_text(first, traced[heavy].use, card),
        "program": print_program(traced[heavy].program),
        "index": (first, traced[heavy].use),
    }


def derived(sums: Mapping[str, int], card: CardSpec) -> dict[str, Any]:
    """Ratios of what launches cost together: shares of the card's time by unit, and the roofline.

    `limiting` is what is busiest: a unit (load and store are the cores' copy units) or the
    device memory; `limiting_share` the share of the time that it is busy.
    """
    cycles = sums["cycles"]
    moved = sums["device_read_bytes"] + sums["device_write_bytes"]
    seconds = card.microseconds(cycles) * 1e-6
    shares = {unit: _share(sums[f"{unit}_busy"], cycles * card.cores) for unit in UNITS}
    shares["device memory"] = _share(moved / card.dram_oneway * card.clock_ghz, cycles)
    limiting = max(shares, key=shares.__getitem__)
    operations = sums["flop"] + sums["sfu_ops"]
    return {
        "microseconds": card.microseconds(cycles),
        "times_bound": _share(cycles, sums["bound_p_cycles"]),
        "shares": shares,
        "limiting": limiting,
        "limiting_share": shares[limiting],
        "operations_per_byte": _share(operations, moved),
        "teraops": _share(operations / 1e12, seconds),
        "gigabytes_per_second": _share(moved / 1e9, seconds),
    }


def plan_text(kernel: SavedKernel, use: Use, card: CardSpec) -> str:
    """The kernel with the plan of the program that served a use."""
    variant = kernel.variants[use.variant]
    region: Kernel = parse_kernel(kernel.text)
    limits = dict(zip(region.symbols, zip(variant.low, variant.high, strict=True), strict=True))
    try:
        return print_kernel(plan_kernel(replace(region, limits=limits), card))
    except SpyreError as error:  # a saved kernel that this version refuses
        return f"this version cannot plan it: {error}"


def _line_entry(cost: LineCost, launches: int) -> dict[str, Any]:
    return {
        "source": cost.source,
        "cycles": cost.cycles * launches,
        "read_bytes": cost.read_bytes * launches,
        "write_bytes": cost.write_bytes * launches,
        "ring_bytes": cost.ring_bytes * launches,
        "busy": {unit: busy * launches for unit, busy in cost.busy.items()},
        "limiting": cost.limiting,
    }


def _over_time(
    tracer: Tracer, entry: Mapping[str, Any], run: Run, card: CardSpec
) -> dict[str, Any]:
    """One launch over time, in bins: how busy units are, bytes, and the LX of one core."""
    kernel, use = entry["index"]
    program, report, events = tracer.trace(kernel, use)
    cycles = report.cycles
    used = use_over_time(events, cycles, card.cores, BINS)
    moved = traffic_over_time(events, cycles, BINS)
    core = busiest_core(events)
    return {
        "cycles": cycles,
        "bins": BINS,
        "use": {u: (used[n] * 100).round().astype(int).tolist() for n, u in enumerate(UNITS)},
        "bytes": {kind: moved[n].round().tolist() for n, kind in enumerate(TRAFFIC)},
        "lx_core": core,
        "lx": _lx(program, events, core, cycles),
    }


def _lx(program: Program, events: Events, core: int, cycles: int) -> list[dict[str, Any]]:
    found = lx_lifetimes(program, events, core, cycles / BINS)
    return [
        {**asdict(life), "begin": round(life.begin, 1), "end": round(life.end, 1)} for life in found
    ]


# --- the whole run --------------------------------------------------------------------------------


def _totals(kernels: Sequence[Mapping[str, Any]], run: Run, card: CardSpec) -> dict[str, Any]:
    sums = {name: sum(k[name] for k in kernels) for name in _SUMS}
    return {
        "launches": sum(k["launches"] for k in kernels),
        "kernels": len(kernels),
        **sums,
        "lx_peak": max((k["lx_peak"] for k in kernels), default=0),
        **derived(sums, card),
        "host_seconds": run.host_seconds,
        "emulation_seconds": sum(k["host_seconds"] for k in kernels),
        "fallback_calls": sum(f.calls for f in run.fallbacks),
    }


def _user_lines(traced: Sequence[_Traced]) -> list[dict[str, Any]]:
    """The heat map of the user's lines over all kernels, most cycles first."""
    entries = [
        (line_of(cost.source), one.kernel.name, _line_entry(cost, one.use.launches))
        for one in traced
        for cost in one.costs
    ]
    entries.sort(key=lambda item: item[0])
    found = [_joined(place, list(group)) for place, group in groupby(entries, lambda e: e[0])]
    total = sum(line["cycles"] for line in found)
    shared = [{**line, "share": _share(line["cycles"], total)} for line in found]
    return sorted(shared, key=lambda line: -float(line["cycles"]))


def _joined(place: tuple[str, str], group: list[tuple[Any, str, dict[str, Any]]]) -> dict[str, Any]:
    entries = [entry for _, _, entry in group]
    busy = {unit: sum(e["busy"][unit] for e in entries) for unit in UNITS}
    sums = {name: sum(e[name] for e in entries) for name in ("cycles", *TRAFFIC)}
    return {
        "place": place[0],
        "code": place[1],
        **sums,
        "busy": busy,
        "limiting": max(busy, key=busy.__getitem__),
        "kernels": sorted({name for _, name, _ in group}),
    }


def line_of(source: str) -> tuple[str, str]:
    """Place and code of a source: what stands before its ops.

    >>> line_of("model.py:5 return torch.softmax(x, -1) [_softmax]")
    ('model.py:5', 'return torch.softmax(x, -1)')
    >>> line_of("add, mul")
    ('', 'add, mul')
    """
    text = source[: source.rfind(" [")] if source.endswith("]") and " [" in source else source
    place, _, code = text.partition(" ")
    file, _, number = place.rpartition(":")
    return (place, code) if file and number.isdecimal() else ("", source)


def as_json(report: Mapping[str, Any]) -> str:
    """A report as JSON text: what `--json` prints and what is inside the page."""
    return json.dumps(report, allow_nan=False, separators=(",", ":"))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
