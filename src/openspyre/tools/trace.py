"""A run as a trace for Perfetto and chrome://tracing.

One process per card holds what its engines did, in card time. One more per kernel holds one launch
of it, unit by unit: of the core with most work, or of every core.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openspyre.card.activity import TRAFFIC, busiest_core, busy_spans, instruction_names
from openspyre.card.native import UNITS, Events
from openspyre.ir.program import Program
from openspyre.runtime.saved import Run, SavedKernel, Use
from openspyre.runtime.traced import Tracer, card_of
from openspyre.spec import CardSpec

_ENGINES = ("compute", "to card", "to host")
_KERNELS = 1000  # the first process that shows a kernel
EVENTS = 50_000
"""Of one kernel: beyond it, only the core with most work is shown."""


def as_trace(run: Run) -> dict[str, Any]:
    """The trace as a JSON object, times in microseconds of card time.

    Raises:
        InvalidRun, InvalidProgram: another version wrote the run.
    """
    events = list(_engines(run))
    card = card_of(run.card)
    with Tracer(card) as tracer:
        for number, (kernel, use) in enumerate(_heaviest(run)):
            program, _, found = tracer.trace(kernel, use)
            events += _units(_KERNELS + number, kernel, program, found, card)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"command": run.command, **run.versions},
    }


def _heaviest(run: Run) -> list[tuple[SavedKernel, Use]]:
    """The use of every kernel that took most card time."""
    return [
        (kernel, max(kernel.uses, key=lambda use: use.launches * use.report.get("cycles", 0)))
        for kernel in run.kernels
        if kernel.uses
    ]


def _engines(run: Run) -> Iterator[dict[str, Any]]:
    for device in sorted({span.device for span in run.spans}):
        yield _named("process_name", device, 0, f"spyre:{device}")
        for thread, engine in enumerate(_ENGINES):
            yield _named("thread_name", device, thread, engine)
    for span in run.spans:
        yield {
            "ph": "X",
            "name": span.name,
            "cat": "kernel" if span.use else "copy",
            "pid": span.device,
            "tid": _ENGINES.index(span.engine),
            "ts": span.start / 1e6,
            "dur": (span.end - span.start) / 1e6,
            "args": {"stream": span.stream, "host us": (span.host_end - span.host_start) / 1e3},
        }


def _units(
    process: int, kernel: SavedKernel, program: Program, events: Events, card: CardSpec
) -> Iterator[dict[str, Any]]:
    shown = busy_spans(events, 0)
    title = f"one launch of {kernel.name}"
    if len(shown) > EVENTS:
        core = busiest_core(events)
        shown, title = shown[shown["core"] == core], f"{title}, core {core} only"
    yield _named("process_name", process, 0, title)
    for core in sorted(set(shown["core"].tolist())):
        for number, unit in enumerate(UNITS):
            yield _named("thread_name", process, core * len(UNITS) + number, f"core {core} {unit}")
    names = instruction_names(program)
    for event in shown:
        kind, source = names[int(event["section"]), int(event["node"])]
        begin, end = float(event["begin"]), float(event["end"])
        moved = {k: int(event[k]) for k in TRAFFIC if event[k]}
        yield {
            "ph": "X",
            "name": kind,
            "cat": UNITS[int(event["unit"])],
            "pid": process,
            "tid": int(event["core"]) * len(UNITS) + int(event["unit"]),
            "ts": card.microseconds(begin),
            "dur": card.microseconds(end - begin),
            "args": {"source": source, "section": int(event["section"]), **moved},
        }


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
