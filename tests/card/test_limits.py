"""Launches without end: refused where their sizes tell, ended where the host wants it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from openspyre.card.native import SoftwareCard
from openspyre.errors import CardError
from openspyre.ir.ops import LOAD
from openspyre.ir.program import (
    Axis,
    Bound,
    Buffer,
    Copy,
    Given,
    Indirect,
    Node,
    Program,
    Pt,
    Ring,
    Section,
    Slot,
    SlotDef,
    TileLoop,
    Value,
    Vec,
    VecOp,
    VecOut,
)
from tests.card.hand_programs import F32, I64, buffers, device, local, program

pytestmark = pytest.mark.timeout(60)
HELD = buffers(*[(256, 1)] * 4)
LONG = 1 << 40


@pytest.fixture
def card() -> Iterator[SoftwareCard]:
    with SoftwareCard(memory=1 << 24, threads=2) as opened:
        yield opened


def endless(
    *body: Node, extents: Sequence[Value] = (LONG,), held: tuple[Buffer, ...] = HELD
) -> Program:
    axes = tuple(Axis(f"a{n}", extent) for n, extent in enumerate(extents))
    return program(1, held, Section("s", axes, body))


def run(card: SoftwareCard, prog: Program, sizes: Sequence[int] = ()) -> None:
    loaded = card.load_program(prog)
    try:
        card.launch(loaded, [card.allocate(4096)], sizes)
    finally:
        card.unload(loaded)


def works(card: SoftwareCard) -> bool:
    run(card, endless(Copy((0,), device(0, ((0, 2),)), local(0, ((0, 2),))), extents=(8,)))
    return True


def vec(axes: tuple[int, ...]) -> Vec:
    """Writes one place over and over."""
    return Vec(axes, (local(0, ()),), (), (VecOp(LOAD, F32, (0,)),), (VecOut(0, local(1, ())),))


# --- refused before anything runs -------------------------------------------------------------


def test_too_many_points_are_refused(card: SoftwareCard) -> None:
    with pytest.raises(CardError, match=r"asks for 1.2e\+18 scalar operations, the card takes"):
        run(card, endless(vec((0, 1)), extents=(1 << 30, 1 << 30)))
    assert works(card)


def test_symbolic_sizes_count(card: SoftwareCard) -> None:
    prog = endless(vec((0, 1)), extents=(Slot(1), Slot(2)))
    sizes = (SlotDef(Given.SIZE, 0), SlotDef(Given.SIZE, 1))
    prog = replace(prog, slots=(*prog.slots, *sizes), arguments=(1, 2, 0))
    run(card, prog, [3, 5])
    with pytest.raises(CardError, match="scalar operations"):
        run(card, prog, [1 << 30, 1 << 30])


@pytest.mark.parametrize("tile", [1, 7])
def test_too_many_trips_are_refused(card: SoftwareCard, tile: int) -> None:
    """Loops around an instruction that walks nothing, or whose other axis is empty."""
    for inside in (vec(()), vec((2,))):
        body = TileLoop(0, tile, (TileLoop(1, tile, (inside,)),))
        with pytest.raises(CardError, match="instructions, the card takes"):
            run(card, endless(body, extents=(1 << 24, 1 << 24, 0)))


def test_work_over_all_sections_counts(card: SoftwareCard) -> None:
    """Each of 2^12 sections is within the limits."""
    one = Section("s", (Axis("a", 1 << 39),), (vec((0,)),))
    with pytest.raises(CardError, match="scalar operations"):
        run(card, program(1, HELD, *[one] * (1 << 12)))


def test_a_tile_that_needs_more_scratch_than_its_operand_holds(card: SoftwareCard) -> None:
    """Rows of k that share places would be widened into gigabytes of host memory."""
    a, b = local(0, ((0, 2), (1, 0), (2, 2))), local(1, ((1, 0), (2, 0), (3, 2)))
    matmul = Pt((), (0,), (3,), (1, 2), a, b, local(2, ((0, 64), (3, 4)), F32))
    with pytest.raises(CardError, match="share places"):
        run(card, endless(matmul, extents=(2, 1 << 30, 1, 8)))


# --- ended ------------------------------------------------------------------------------------

_TO_LX = local(0, ((0, 0),))
_ENDLESS: dict[str, tuple[Node, ...]] = {
    "instructions": (TileLoop(0, 1, (vec((0,)),)),),
    "vector": (vec((0,)),),
    "vector rows": (replace(vec((0, 1)), inputs=(local(0, ((1, 2),)),)),),
    "load": (Copy((0,), device(0, ()), _TO_LX),),
    "load of rows": (Copy((0, 1), device(0, ()), local(0, ((0, 0), (1, 6)))),),
    "store": (Copy((0,), local(0, ()), device(0, ((0, 0),))),),
    "guarded load": (Copy((0,), device(0, ()), _TO_LX, bounds=(Bound((), 0, 1),)),),
    "load of nothing": (Copy((0,), device(0, ()), _TO_LX, bounds=(Bound((), 0, 0),)),),
    "gather": (
        Copy((0,), device(0, ()), _TO_LX, (Indirect(local(1, ((0, 0),), I64), 0, 9, True, True),)),
    ),
    "sum": (Copy((0,), local(0, ()), device(0, ((0, 0),)), add=True),),
    "ring move": (Ring((0,), local(3, ()), local(2, ((0, 0),)), (), 1),),
    "ring move within a buffer": (Ring((0,), local(2, ()), local(2, ((0, 0),)), (), 1),),
    "matmul": (
        Pt(
            (0,), (2,), (1,), (), local(0, ((2, 2),)), local(1, ((1, 2),)),
            local(2, ((1, 4),), F32),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", _ENDLESS)
def test_a_launch_is_interrupted(card: SoftwareCard, case: str) -> None:
    prog = endless(*_ENDLESS[case], extents=(1 << 39, 8, 2))
    done = threading.Event()

    def stop() -> None:
        while not done.wait(0.02):
            card.interrupt()

    helper = threading.Thread(target=stop)
    helper.start()
    try:
        with pytest.raises(CardError, match="interrupted"):
            run(card, prog)
    finally:
        done.set()
        helper.join()
    assert works(card)


def test_an_interrupt_of_nothing_changes_nothing(card: SoftwareCard) -> None:
    card.interrupt()
    assert works(card)


# --- the engines that walk instructions ---------------------------------------------------------


def test_many_sections_are_not_timed_one_by_one(card: SoftwareCard) -> None:
    """Each is short enough; all of them would take minutes."""
    one = Section("s", (Axis("a", 1 << 21),), (TileLoop(0, 1, (vec((0,)),)),))
    loaded = card.load_program(program(1, HELD, *[one] * 100))
    block = card.fill(loaded, [card.memory_base])
    with pytest.raises(CardError, match="too many instructions to time"):
        card.time(loaded, block)
    card.unload(loaded)
