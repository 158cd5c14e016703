"""What the time engine writes down, and what is made of it: sums are the report's."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int64, c_uint64, cast, create_string_buffer
from dataclasses import fields

import numpy as np
import pytest

from openspyre.card.activity import (
    NO_SOURCE,
    TRAFFIC,
    busiest_core,
    busy_spans,
    instruction_names,
    lines,
    lx_lifetimes,
    traffic_over_time,
    use_over_time,
)
from openspyre.card.native import EVENT, UNITS, Events, Report, library
from openspyre.compiler.pipeline import compile_kernel
from openspyre.ir.program import Program
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.card.hand_programs import copies, matmul
from tests.card.time_engine import card, timed

SOFTMAX = """
kernel softmax
arguments x y
input x: f16[100, 384]
local m: f32[100, 1]
local s: f32[100, 1]
output y: f16[100, 384]
op top reduce i0:100 | r0:384
  at "model.py:5 m = x.max()"
  m[i0, 0] <- max: x[i0, r0]
op total reduce i0:100 | r0:384
  at "model.py:6 s = exp(x - m).sum()"
  s[i0, 0] <- sum: exp(x[i0, r0] - m[i0, 0])
op result map i0:100 i1:384
  at "model.py:7 return exp(x - m) / s"
  y[i0, i1] <- (exp(x[i0, i1] - m[i0, 0]) / s[i0, 0])
"""


def softmax() -> Program:
    return compile_kernel(parse_kernel(SOFTMAX), SPYRE_CARD_V1)


def traced(program: Program) -> tuple[Report, Events]:
    one = card()
    loaded = one.load_program(program)
    try:
        scalars = [0.0] * program.arguments[2]
        return one.trace(loaded, one.fill(loaded, [0] * program.arguments[0], (), scalars))
    finally:
        one.unload(loaded)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "softmax": softmax,
    "matmul": lambda: matmul(512, 1024, 512, (4, 8), (128, 128, 128)),
    "copies": lambda: copies(300, 64, 4),
    "nothing": lambda: copies(0, 64, 4),
}
every_program = pytest.mark.parametrize("program", [p() for p in PROGRAMS.values()], ids=PROGRAMS)


@every_program
def test_events_add_up_to_the_report(program: Program) -> None:
    report, events = traced(program)
    assert report == timed(program)
    assert len(events) == report.instructions
    read, write, ring = (int(events[kind].sum()) for kind in TRAFFIC)
    assert (read, write) == (report.device_read_bytes, report.device_write_bytes)
    assert ring == report.ring_bytes
    spent = events["end"] - events["begin"]
    for number, unit in enumerate(UNITS):
        busy = spent[events["unit"] == number].sum()
        # The report rounds up per section.
        assert busy == pytest.approx(getattr(report, f"{unit}_busy"), abs=len(program.sections))
    assert not len(events) or 0 <= events["begin"].min() <= events["end"].max() <= report.cycles


@every_program
def test_a_unit_does_one_thing_at_a_time(program: Program) -> None:
    _, events = traced(program)
    for unit in range(4):
        for core in np.unique(events["core"]):
            own = np.sort(events[(events["unit"] == unit) & (events["core"] == core)], order="end")
            assert (own["begin"][1:] >= own["end"][:-1]).all()


@every_program
def test_lines_share_the_cycles_and_the_bytes(program: Program) -> None:
    report, events = traced(program)
    costs = lines(program, events, report.cycles)
    assert sum(cost.cycles for cost in costs) == pytest.approx(report.cycles if len(events) else 0)
    assert sum(cost.read_bytes for cost in costs) == report.device_read_bytes
    assert sum(cost.write_bytes for cost in costs) == report.device_write_bytes
    assert sum(cost.ring_bytes for cost in costs) == report.ring_bytes


def test_lines_are_the_users() -> None:
    report, events = traced(softmax())
    costs = {c.source: c for c in lines(softmax(), events, report.cycles)}
    by_place = {source.split()[0]: cost for source, cost in costs.items()}
    assert set(by_place) == {"model.py:5", "model.py:6", "model.py:7"}
    assert by_place["model.py:7"].write_bytes == 100 * 384 * 2
    assert by_place["model.py:6"].limiting == "sfu"


def test_what_has_no_line_is_called_so() -> None:
    report, events = traced(copies(300, 64, 4))
    assert [cost.source for cost in lines(copies(300, 64, 4), events, report.cycles)] == [NO_SOURCE]


@every_program
@pytest.mark.parametrize("bins", [1, 7, 100])
def test_bins_add_up(program: Program, bins: int) -> None:
    report, events = traced(program)
    used = use_over_time(events, report.cycles, 32, bins)
    assert used.shape == (len(UNITS), 32, bins)
    assert used.min() >= 0
    assert used.max() <= 1 + 1e-9
    busy = used.sum(axis=(1, 2)) * report.cycles / bins
    spent = [report.load_busy, report.store_busy, report.pt_busy, report.sfu_busy,
             report.ring_busy]  # fmt: skip
    assert busy == pytest.approx(spent, abs=len(program.sections))
    moved = traffic_over_time(events, report.cycles, bins).sum(axis=1)
    totals = [report.device_read_bytes, report.device_write_bytes, report.ring_bytes]
    assert moved == pytest.approx(totals)


@every_program
def test_buffers_live_inside_lx_and_apart(program: Program) -> None:
    report, events = traced(program)
    found = lx_lifetimes(program, events, busiest_core(events), gap=0)
    assert (found != ()) == bool(len(events))
    for life in found:
        assert 0 <= life.begin <= life.end <= report.cycles
        assert life.offset + life.bytes <= report.lx_peak
        for other in found:
            together = life.begin < other.end and other.begin < life.end
            overlap = life.offset < other.offset + other.bytes and other.offset < (
                life.offset + life.bytes
            )
            assert other.buffer == life.buffer or not (together and overlap)


@every_program
def test_joined_spans_keep_the_bytes(program: Program) -> None:
    _, events = traced(program)
    joined = busy_spans(events, gap=50)
    assert len(joined) <= len(events)
    for kind in TRAFFIC:
        assert joined[kind].sum() == events[kind].sum()
    names = instruction_names(program)
    assert all((int(e["section"]), int(e["node"])) in names for e in joined)
    assert len(busy_spans(events, gap=-1)) == len(events)


def test_a_shared_request_is_read_once_and_handed_on() -> None:
    _, events = traced(matmul(512, 1024, 512, (4, 8), (128, 128, 128)))
    loads = events[events["unit"] == 0]
    assert ((loads["read_bytes"] > 0) != (loads["ring_bytes"] > 0)).all()
    assert (loads["ring_bytes"] > 0).any()


@pytest.mark.parametrize("room", [0, 1, 5])
def test_no_more_events_than_there_is_room(room: int) -> None:
    one, program = card(), copies(300, 64, 4)
    loaded = one.load_program(program)
    _, every = traced(program)
    words = (c_int64 * loaded.slots).from_buffer_copy(one.fill(loaded, [0] * 2))
    events = np.full((room + 1) * EVENT.itemsize, 0xEE, np.uint8)
    report, error = (c_uint64 * len(fields(Report)))(), create_string_buffer(1024)
    call = library().spyre_program_trace
    code = call(
        loaded.handle, words, events.ctypes.data, room, cast(report, call.argtypes[4]),
        cast(error, call.argtypes[5]),
    )  # fmt: skip
    one.unload(loaded)
    assert code == 0
    assert (events[: room * EVENT.itemsize].view(EVENT) == every[:room]).all()
    assert (events[room * EVENT.itemsize :] == 0xEE).all()
