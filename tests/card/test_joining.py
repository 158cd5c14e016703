"""Sections that join the one before: what the card makes of them, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from openspyre.card.native import NO_DEBUG, UNITS, DebugMode, SoftwareCard, Span
from openspyre.ir.binary import decode, encode
from openspyre.ir.program import (
    Buffer,
    Calc,
    Copy,
    Given,
    Node,
    Place,
    Program,
    Section,
    Slot,
    SlotDef,
    TileLoop,
)
from tests.card.checking import problem
from tests.card.hand_programs import (
    added,
    device,
    exchange,
    kept_and_ahead,
    loads_ahead,
    local,
)
from tests.card.test_decode import refusal
from tests.card.test_ring import interpreted, made
from tests.card.time_engine import card, timed

ROWS, COLUMNS = 64, 128
STEPS = ((0, COLUMNS * 2), (1, 2))
SIZE = ROWS * COLUMNS * 2
ADD = added(local(2, STEPS), local(3, STEPS))


def copy(node: Node) -> Copy:
    assert isinstance(node, Copy)
    return node


def ahead(
    cores: int = 4,
    later: int = 4,
    *,
    joins: bool = True,
    early: Place | None = None,
    second: Buffer | None = None,
) -> Program:
    one = loads_ahead(ROWS, COLUMNS, cores, later)
    work, loads, then = one.sections
    load = copy(loads.body[0])
    loads = replace(loads, body=(replace(load, source=early or load.source),), joins=joins)
    held = (*one.buffers[:2], second or one.buffers[2], one.buffers[3])
    return replace(one, sections=(work, loads, then), buffers=held)


def spans() -> list[Span]:
    return [Span(0, SIZE, -1)] * 2 + [Span(0, SIZE, SIZE, fresh=True)] * 2


@pytest.mark.parametrize(("cores", "later"), [(4, 4), (4, 32), (32, 2), (1, 7)])
def test_values_and_checks(cores: int, later: int) -> None:
    one = ahead(cores, later)
    assert problem(one, spans()) == ""
    x, y = (np.random.default_rng(n).random((ROWS, COLUMNS)).astype(np.float16) for n in (0, 1))
    nothing = np.zeros_like(x)
    got = made(one, [x, y, nothing, nothing])
    np.testing.assert_array_equal(got, (y.astype(np.float32) + 1).astype(np.float16))
    np.testing.assert_array_equal(interpreted(one, [x, y, nothing, nothing]), got)


@pytest.mark.parametrize("later", [4, 32])
def test_its_loads_run_beside_the_work(later: int) -> None:
    apart, together = timed(ahead(4, later, joins=False)), timed(ahead(4, later))
    assert together.cycles < apart.cycles
    assert together.device_read_bytes == apart.device_read_bytes
    assert together.instructions == apart.instructions


def test_its_loads_stand_behind_those_of_the_section() -> None:
    one = ahead()
    machine = card()
    loaded = machine.load_program(one)
    try:
        block = machine.fill(loaded, [0] * 4, (), (), 0)
        _, events = machine.trace(loaded, block)
    finally:
        machine.unload(loaded)
    by_section = {n: events[events["section"] == n] for n in range(3)}
    assert {UNITS[u] for u in by_section[1]["unit"]} == {"load"}
    assert set(by_section[1]["node"]) == {0}
    first = by_section[0]
    own = first[first["unit"] == UNITS.index("load")]
    assert by_section[1]["begin"].min() >= own["end"].min()
    assert by_section[1]["end"].max() < first["end"].max() <= by_section[2]["begin"].min()


def test_what_the_section_stores_is_not_loaded() -> None:
    said = problem(ahead(early=device(2, STEPS)), spans())
    assert "loads byte 0 of argument 2" in said
    assert "no barrier stands between them" in said
    assert problem(ahead(early=device(2, STEPS), joins=False), spans()) == ""


@pytest.mark.parametrize("apart", [1, 0])
def test_other_bytes_of_what_it_stores_are(apart: int) -> None:
    """It stores every other row; those between, or the same ones, are loaded."""
    every_other = ((0, COLUMNS * 4), (1, 2))
    one = ahead(early=device(2, every_other, base=Slot(4)))
    steps = ((Calc.SLOT, 2), (Calc.CONST, apart * COLUMNS * 2), (Calc.ADD, 0))
    one = replace(one, slots=(*one.slots, SlotDef(Given.FORMULA, 0, steps)))
    work = one.sections[0]
    store = replace(copy(work.body[2]), target=device(2, every_other))
    sections = (replace(work, body=(*work.body[:2], store)), *one.sections[1:])
    wanted = [*spans()[:2], Span(0, 2 * SIZE, SIZE), spans()[3]]
    said = problem(replace(one, sections=sections), wanted)
    assert said == "" if apart else "loads byte 0 of argument 2" in said


def test_a_pool_tensor_must_be_whole_before_the_barrier() -> None:
    """What the section itself stores in the pool is not there yet."""
    one = ahead()
    work, early, then = one.sections
    pool = replace(device(0, STEPS), argument=-1, base=Slot(4))
    store = replace(copy(work.body[2]), target=pool)
    load = replace(copy(early.body[0]), source=pool)
    one = replace(one, pool_bytes=SIZE, slots=(*one.slots, SlotDef(Given.POOL, 0)))
    work, early = replace(work, body=(*work.body[:2], store)), replace(early, body=(load,))
    wanted = [*spans()[:2], Span(0, SIZE), spans()[3]]
    assert "which nothing has written" in problem(
        replace(one, sections=(work, early, then)), wanted
    )
    apart = replace(early, joins=False)
    assert problem(replace(one, sections=(work, apart, then)), wanted) == ""


def test_it_must_not_take_the_bytes_of_what_is_read_later() -> None:
    """b2 over b3: written before the load; over what the next section has from this one: wrong."""
    one = ahead()
    part = one.buffers[0].bytes
    kept = replace(ADD, inputs=(local(1, STEPS),))
    sections = (*one.sections[:2], replace(one.sections[2], body=(kept, one.sections[2].body[1])))
    reads = replace(one, sections=sections)
    assert problem(reads, spans()) == ""
    over = replace(reads.buffers[2], offset=part)
    planted = replace(reads, buffers=(*reads.buffers[:2], over, reads.buffers[3]))
    said = problem(planted, spans())
    assert "wrote there last, through buffer b2" in said


def test_it_waits_for_the_bytes_of_a_tile_that_is_in_use() -> None:
    """Legal, but late: the load begins when the work is done with its tile."""
    one = ahead()
    shared = ahead(second=replace(one.buffers[2], offset=one.buffers[1].offset))
    assert problem(shared, spans()) == ""
    assert timed(shared).cycles > timed(one).cycles


def test_bytes_that_others_fetch_in_the_section() -> None:
    one = exchange(8, 16, 4)
    load, move, store = one.sections
    joining = Section("early", load.axes, load.body, joins=True)
    fresh = Buffer("early", 4096, one.buffers[0].bytes, 1)
    wanted = [Span(0, 256, -1), Span(0, 256, 256, fresh=True)]
    moved = replace(copy(load.body[0]), target=replace(copy(load.body[0]).target, buffer=2))
    elsewhere = replace(joining, body=(moved,))
    good = replace(one, buffers=(*one.buffers, fresh), sections=(load, move, elsewhere, store))
    assert problem(good, wanted) == ""
    bad = replace(one, sections=(load, move, joining, store))
    assert "no core waits for another one there" in problem(bad, wanted)


def moves_ahead(*, joins: bool = True, work: Place | None = None) -> Program:
    """Rows that are exchanged while every core works with its own, and writes `work`."""
    one = exchange(ROWS, COLUMNS, 8)
    load, move, store = one.sections
    steps = ((0, COLUMNS * 2), (1, 2))
    rows = local(0, steps)
    busy = Section("work", load.axes, (added(rows, work or local(2, steps), ["tanh"] * 10),))
    own = Buffer("b2", 1 << 16, one.buffers[0].bytes, 1)
    sections = (load, busy, replace(move, joins=joins), store)
    return replace(one, buffers=(*one.buffers, own), sections=sections)


def test_moves_on_the_ring_join() -> None:
    one = moves_ahead()
    assert problem(one, [Span(0, SIZE, -1), Span(0, SIZE, SIZE, fresh=True)]) == ""
    x = np.random.default_rng(2).random((ROWS, COLUMNS)).astype(np.float16)
    given = [x, np.zeros_like(x)]
    np.testing.assert_array_equal(made(one, given), x)
    np.testing.assert_array_equal(interpreted(one, given), x)
    together, apart = timed(one), timed(moves_ahead(joins=False))
    assert together.cycles < apart.cycles
    assert together.ring_bytes == apart.ring_bytes
    assert decode(encode(one)) == one


def test_what_the_section_writes_is_not_fetched() -> None:
    wanted = [Span(0, SIZE, -1), Span(0, SIZE, SIZE, fresh=True)]
    rows = local(0, ((0, COLUMNS * 2), (1, 2)))
    said = problem(moves_ahead(work=rows), wanted)
    assert "in the same round" in said
    assert "no core waits for another one there" in said
    assert problem(moves_ahead(work=rows, joins=False), wanted) == ""


COPY = ahead().sections[1].body[0]
THEN = ahead().sections[2].body


@pytest.mark.parametrize(
    "body", [(THEN[0],), (THEN[1],), (TileLoop(0, 8, (COPY,)),), (COPY, THEN[0])]
)
def test_only_loads_join(body: tuple[Node, ...]) -> None:
    one = ahead()
    wrong = replace(one.sections[1], body=body)
    sections = (one.sections[0], wrong, one.sections[2])
    assert "holds more than loads" in refusal(replace(one, sections=sections))


def test_the_first_section_joins_nothing() -> None:
    one = ahead()
    sections = (replace(one.sections[1]), *one.sections)
    assert "the first section joins another one" in refusal(replace(one, sections=sections))


# --- behind a prologue ---------------------------------------------------------------------------

KEPT = kept_and_ahead(ROWS, COLUMNS, 4, 8)


@pytest.mark.parametrize("debug", [NO_DEBUG, DebugMode.LATE | DebugMode.POISON])
def test_launches_that_find_what_lx_keeps(debug: DebugMode) -> None:
    made = np.random.default_rng(0).random((3, ROWS, COLUMNS)).astype(np.float16)
    x, y, weight = made
    assert problem(KEPT, [*spans(), Span(0, SIZE, -1), Span(0, SIZE, SIZE, fresh=True)]) == ""
    with SoftwareCard(memory=1 << 24, threads=2, debug=debug) as machine:
        given = [machine.store(a.tobytes()) for a in (x, y, np.zeros_like(x), np.zeros_like(x))]
        kept, result = machine.store(weight.tobytes()), machine.allocate(SIZE)
        loaded = machine.load_program(KEPT)
        for launch in range(3):
            new = y + np.float16(launch)
            machine.write(given[1], new.tobytes())
            machine.launch(loaded, [*given, kept, result])
            got = np.frombuffer(machine.read(given[3], SIZE), np.float16).reshape(y.shape)
            np.testing.assert_array_equal(got, (new.astype(np.float32) + 1).astype(np.float16))
            assert machine.read(result, SIZE) == weight.tobytes()
            assert [(one.loads, one.hits) for one in machine.kept()] == [(1, launch)]


def test_loads_run_beside_the_work_when_the_prologue_is_left_out() -> None:
    cycles = []
    for joins in (True, False):
        work, early, *then = KEPT.sections[1:]
        sections = (KEPT.sections[0], work, replace(early, joins=joins), *then)
        machine = card()
        loaded = machine.load_program(replace(KEPT, sections=sections))
        block = machine.fill(loaded, [0] * 6, (), (), 0)
        cycles.append([machine.time(loaded, block, kept=kept).cycles for kept in (False, True)])
        machine.unload(loaded)
    (whole, warm), (whole_apart, warm_apart) = cycles
    assert whole_apart - whole == warm_apart - warm > 0


@pytest.mark.parametrize("prologue", [1, 2])
def test_nothing_joins_a_prologue(prologue: int) -> None:
    """The second section is the first one behind the prologue, or its last."""
    keep, _, early, *_ = KEPT.sections
    sections = (keep, early, *KEPT.sections[1:])
    wrong = replace(KEPT, sections=sections, prologue=prologue)
    assert "of the prologue, or the first behind it, joins another one" in refusal(wrong)
