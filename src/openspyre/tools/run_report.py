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
from openspyre.runtime.clock import card_timer
from openspyre.runtime.places import split_place
from openspyre.runtime.saved import Run, SavedKernel, Span, Use
from openspyre.runtime.traced import Tracer, card_of
from openspyre.spec import CardSpec
from openspyre.tools.progress import Step, silent

FORMAT = 1
BINS = 120
SHOWN_TIMELINES = 12
"""Kernels with most card time get a timeline and LX; the others only numbers."""
SHOWN_SPANS = 4000
_SUMS = (
    *("cycles", "bound_p_cycles", "pt_busy", "sfu_busy", "load_busy", "store_busy", "ring_busy"),
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
    kept: Report  # of a launch that found its weights in LX

    def total(self, field: str) -> int:
        """A number of the report, over all launches."""
        whole, kept = getattr(self.report, field), getattr(self.kept, field)
        return int(whole * (self.use.launches - self.use.kept) + kept * self.use.kept)


def report_of(run: Run, step: Step = silent) -> dict[str, Any]:
    """The report of a run.

    Args:
        step: is told what begins.

    Raises:
        InvalidRun, InvalidProgram: another version wrote the run.
    """
    card = card_of(run.card)
    kernels, notes = [], []
    everything: list[_Traced] = []
    with Tracer(card) as tracer:
        for number, kernel in enumerate(run.kernels, 1):
            step(f"timing kernel {number} of {len(run.kernels)}")
            traced = [_traced(tracer, kernel, use) for use in kernel.uses]
            everything += traced
            notes += [note for one in traced for note in _differences(one)]
            notes += [note for one in traced for note in _kept(one)]
            if traced:
                kernels.append(_kernel(traced, card))
        kernels.sort(key=lambda entry: -entry["cycles"])
        for entry in kernels[:SHOWN_TIMELINES]:
            entry["over_time"] = _over_time(tracer, entry, run, card)
    step("adding up")
    for entry in kernels:
        del entry["index"]
    if len(kernels) > SHOWN_TIMELINES:
        notes.append(f"timelines of the {SHOWN_TIMELINES} kernels with most card time only")
    notes += [f"kernel {k.name} did not compile" for k in run.kernels if k.refused]
    totals = _totals(kernels, run, card)
    spans = shown_spans(run.spans)
    if len(spans) < len(run.spans):
        notes.append(
            f"the timeline shows {len(run.spans)} launches and copies as {len(spans)} spans:"
            " those close to each other are joined"
        )
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
        "spans": [asdict(span) for span in spans],
        "notes": notes,
    }


def _traced(tracer: Tracer, kernel: SavedKernel, use: Use) -> _Traced:
    program, report, events = tracer.trace(kernel, use)
    kept = tracer.kept_report(kernel, use) if use.kept else report
    return _Traced(kernel, use, program, report, lines(program, events, report.cycles), kept)


def _differences(traced: _Traced) -> Iterator[str]:
    recorded, now = traced.use.report.get("cycles"), traced.report.cycles
    if recorded != now:
        sizes = ", ".join(map(str, traced.use.sizes))
        yield (
            f"{traced.kernel.name} ({sizes}) took {recorded} cycles when it was recorded; this"
            f" version's card says {now}, and shows that"
        )


def _kept(traced: _Traced) -> Iterator[str]:
    if traced.use.kept:
        yield (
            f"{traced.use.kept} of {traced.use.launches} launches of {traced.kernel.name} found"
            f" their weights in LX and took {traced.kept.cycles} cycles instead of"
            f" {traced.report.cycles}; lines and the timeline are of one that loads them"
        )


# --- kernels ------------------------------------------------------------------------------------


def _kernel(traced: Sequence[_Traced], card: CardSpec) -> dict[str, Any]:
    """All launches of a kernel. `index` is the position of its heaviest use."""
    first = traced[0].kernel
    heavy = max(range(len(traced)), key=lambda n: traced[n].report.cycles * traced[n].use.launches)
    sums = {name: sum(t.total(name) for t in traced) for name in _SUMS}
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
        limited = replace(region, limits=limits)
        return print_kernel(plan_kernel(limited, card, timer=card_timer(card)))
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


def shown_spans(spans: Sequence[Span], most: int = SHOWN_SPANS) -> list[Span]:
    """At most so many spans that look as all do: neighbours on an engine are joined.

    What is joined is named by what took longest of it, and is `use` 0 unless all are one use's.
    """
    if len(spans) <= most:
        return list(spans)
    begin, end = min(s.start for s in spans), max(s.end for s in spans)
    rows: dict[tuple[int, str], list[Span]] = {}
    for span in sorted(spans, key=lambda s: s.start):
        rows.setdefault((span.device, span.engine), []).append(span)
    slots = max(1, most // len(rows))
    width = (end - begin) / slots or 1
    found = []
    for row in rows.values():
        for _, group in groupby(row, lambda span: min(slots - 1, (span.start - begin) // width)):
            found.append(_one_span(list(group)))
    return sorted(found, key=lambda span: span.start)


def _one_span(group: Sequence[Span]) -> Span:
    longest = max(group, key=lambda span: span.end - span.start)
    uses = {span.use for span in group}
    return replace(
        longest,
        use=uses.pop() if len(uses) == 1 else 0,
        start=min(span.start for span in group),
        end=max(span.end for span in group),
        host_start=min(span.host_start for span in group),
        host_end=max(span.host_end for span in group),
    )


def _user_lines(traced: Sequence[_Traced]) -> list[dict[str, Any]]:
    """The heat map of the user's lines over all kernels, most cycles first."""
    entries = [
        (place, one.kernel.name, _line_entry(cost, launches))
        for one in traced
        for cost in one.costs
        for place, launches in _places_of(cost.source, one.use)
    ]
    entries.sort(key=lambda item: item[0])
    found = [_joined(place, list(group)) for place, group in groupby(entries, lambda e: e[0])]
    total = sum(line["cycles"] for line in found)
    shared = [{**line, "share": _share(line["cycles"], total)} for line in found]
    return sorted(shared, key=lambda line: -float(line["cycles"]))


def _places_of(source: str, use: Use) -> Iterator[tuple[tuple[str, str], int]]:
    """The lines that launches of a use belong to, with how many: that of the source, where it
    names one, else those that launched the kernel (eager ops)."""
    place, code = line_of(source)
    counted = sum(use.places.values()) if not place else 0
    for text, launches in use.places.items() if counted else ():
        yield split_place(text) if text else ("", code), launches
    if counted < use.launches:
        yield (place, code), use.launches - counted


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
    place, code = split_place(text)
    return (place, code) if place else ("", source)


def as_json(report: Mapping[str, Any]) -> str:
    """A report as JSON text: what `--json` prints and what is inside the page."""
    return json.dumps(report, allow_nan=False, separators=(",", ":"))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
