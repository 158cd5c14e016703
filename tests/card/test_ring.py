"""Moves between the LX of cores: values, hazards and time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from ring_moves import Regroup, regroup, shift

from openspyre.card.native import DebugMode, SoftwareCard, Span
from openspyre.errors import CardError, InvalidProgram
from openspyre.ir.interpret import interpret, symbol_block
from openspyre.ir.kernel import DType, Space
from openspyre.ir.program import (
    Axis,
    Buffer,
    Copy,
    Holding,
    Origin,
    Place,
    Program,
    Ring,
    Section,
    Slot,
    Term,
    TileLoop,
)
from openspyre.spec import SPYRE_CARD_V1
from tests.card.checking import problem
from tests.card.hand_programs import exchange
from tests.card.mutants import Mutant, mutants
from tests.card.test_decode import refusal
from tests.card.time_engine import card as timing_card
from tests.card.time_engine import timed
from tests.execute_programs import Array, buffers, device, lx, program, run

F16, I32 = DType.F16, DType.I32
MODES = (DebugMode(0), DebugMode.LATE, DebugMode.POISON, DebugMode.LATE | DebugMode.POISON)


def held(
    coordinate: Sequence[tuple[int, int]],
    extent: int | Slot,
    parts: int,
    stride: int = 1,
    *,
    step: int = 0,
    offset: int = 0,
    granule: int = 1,
) -> Holding:
    """The source is spread along offset + sum of (axis, coefficient)."""
    terms = tuple(Term(axis, by, Origin.ABSOLUTE) for axis, by in coordinate)
    return Holding(terms, offset, extent, parts, stride, granule, step)


def source(buffer: int, dtype: DType, **steps: int) -> Place:
    """An LX place of the core that holds it; `a0` is the step of axis 0."""
    terms = tuple(Term(int(a[1:]), by, Origin.ABSOLUTE) for a, by in steps.items())
    return Place(Space.LX, dtype, 0, terms, buffer)


def moved(
    spread: Sequence[Axis], axes: Sequence[Axis], move: Ring, out: dict[int, int],
    sizes: tuple[int, int], *, item: int = 4,
) -> Program:  # fmt: skip
    """i32[rows, columns] (argument 0), spread over cores, moved, stored in argument 1.

    Args:
        spread: rows and columns in the section that loads them, each core's part by itself.
        out: byte steps of the result by axis.
        sizes: bytes of the two buffers.
    """
    columns = spread[1].extent
    assert isinstance(columns, int)
    load = Copy(
        (0, 1), device(0, I32, {0: columns * item, 1: item}),
        lx(0, I32, {0: columns * item, 1: item}, Origin.CORE),
    )  # fmt: skip
    store = Copy(move.axes, move.target, device(1, I32, out))
    sections = (
        Section("load", tuple(spread), (load,)),
        Section("move", tuple(axes), (move,)),
        Section("store", tuple(axes), (store,)),
    )
    return program((), (), buffers(*sizes), 2, sections=sections)


def made(one: Program, arrays: Sequence[Array], sizes: Sequence[int] = ()) -> Array:
    """The last array after a launch, the same in every mode, by one thread and several."""
    found = []
    for threads, debug in [*((1, mode) for mode in MODES), (2, MODES[0])]:
        with SoftwareCard(memory=1 << 24, threads=threads, debug=debug) as card:
            found.append(run(card, one, arrays, sizes=sizes)[-1])
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    return found[0]


def interpreted(one: Program, arrays: Sequence[Array]) -> Array:
    memory = np.concatenate([a.ravel().view(np.uint8) for a in arrays])
    places = np.cumsum([0, *(a.nbytes for a in arrays)]).tolist()
    interpret(one, memory, symbol_block(one, places[:-1], [], [], 0))
    return memory[places[-2] :].view(arrays[-1].dtype).reshape(arrays[-1].shape)


def numbers(*shape: int) -> Array:
    return np.arange(1, 1 + int(np.prod(shape)), dtype=np.int32).reshape(shape)


def spans(*arrays: Array) -> list[tuple[int, int]]:
    return [(0, a.nbytes) for a in arrays]


# --- values ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "of",
    [Regroup(4096, 2, 2, 128), Regroup(16384, 8, 4, 64), Regroup(16384, 8, 8, 256),
     Regroup(32768, 32, 2, 128), Regroup(4096, 1, 1, 128)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("ops", [None, (("neg",), ("abs",))])
def test_a_regroup_moves_every_element(
    of: Regroup, ops: tuple[tuple[str], tuple[str]] | None
) -> None:
    x = (np.arange(of.bytes // 2) % 1000 - 500).astype(np.float16).reshape(of.rows, of.columns)
    one = regroup(of, ops)
    assert problem(one, [(0, of.bytes)] * 2) == ""
    right = np.abs(x) if ops else x
    np.testing.assert_array_equal(made(one, [x, np.zeros_like(x)]), right)


ROWS, COLUMNS = 13, 10
UNEVEN = (Axis("rows", ROWS, 5), Axis("columns", COLUMNS))


def test_uneven_parts_go_where_they_belong() -> None:
    axes = (Axis("rows", ROWS), Axis("columns", COLUMNS, 3))
    move = Ring(
        (0, 1), source(0, I32, a1=4), lx(1, I32, {0: 16, 1: 4}, Origin.CORE),
        (held([(0, 1)], ROWS, 5, step=COLUMNS * 4),), 5,
    )  # fmt: skip
    one = moved(UNEVEN, axes, move, {0: COLUMNS * 4, 1: 4}, (3 * COLUMNS * 4, ROWS * 16))
    x = numbers(ROWS, COLUMNS)
    assert problem(one, spans(x, x)) == ""
    np.testing.assert_array_equal(made(one, [x, np.zeros_like(x)]), x)


@pytest.mark.parametrize("own", [False, True])
def test_digits_without_a_holding_are_the_readers(own: bool) -> None:
    """[6, 8] lies on 3 x 2 cores, by rows and columns; 12 cores want rows, or all of it."""
    spread = (Axis("rows", 6, 3), Axis("columns", 8, 2, 3))
    load = Copy((0, 1), device(0, I32, {0: 32, 1: 4}), lx(0, I32, {0: 16, 1: 4}, Origin.CORE))
    axes = (Axis("rows", 6), Axis("columns", 8), Axis("reader", 12, 12))
    by_rows, by_columns = held([(0, 1)], 6, 3, step=16), held([(1, 1)], 8, 2, 3, step=4)
    walked = (0, 2) if own else (0, 1, 2)
    target = lx(1, I32, {0: 32} if own else {0: 32, 1: 4}, Origin.CORE)
    move = Ring(
        walked, Place(Space.LX, I32, 0, (), 0), target,
        (by_rows,) if own else (by_rows, by_columns), 6,
    )  # fmt: skip
    out_steps = {2: 6 * 32, 0: 32} if own else {2: 6 * 32, 0: 32, 1: 4}
    sections = (
        Section("load", spread, (load,)),
        Section("move", axes, (move,)),
        Section("store", axes, (Copy(walked, target, device(1, I32, out_steps)),)),
    )
    one = program((), (), buffers(32, 192), 2, sections=sections)
    x, out = numbers(6, 8), np.zeros((12, 6, 8), np.int32)
    right = np.broadcast_to(x, out.shape).copy()
    if own:  # the first column of the reader's own half
        right[:, :, 1:] = 0
        for reader in range(12):
            right[reader, :, 0] = x[:, reader % 6 // 3 * 4]
    assert problem(one, spans(x, out)) == ""
    np.testing.assert_array_equal(made(one, [x, out]), right)


def test_neighbours_read_across_the_border() -> None:
    """out[i] = (x[i], x[i + 1]): a coordinate with an offset."""
    axes = (Axis("i", ROWS - 1, 4), Axis("next", 2))
    move = Ring(
        (0, 1), Place(Space.LX, I32, 0, (), 0), lx(1, I32, {0: 8, 1: 4}, Origin.CORE),
        (held([(0, 1), (1, 1)], ROWS, 5, step=4),), 5,
    )  # fmt: skip
    spread = (Axis("rows", ROWS, 5), Axis("columns", 1))
    one = moved(spread, axes, move, {0: 8, 1: 4}, (12, 32))
    x = numbers(ROWS, 1)
    out = np.zeros((ROWS - 1, 2), np.int32)
    assert problem(one, spans(x, out)) == ""
    right = np.concatenate([x[:-1], x[1:]], axis=1)
    np.testing.assert_array_equal(made(one, [x, out]), right)


def test_a_coordinate_may_be_made_of_axes_and_run_down() -> None:
    """x[96] lies on 7 cores in granules of 3; a core reads some of it as [8][12] reversed."""
    spread = (Axis("x", 96, 7, 1, 3), Axis("one", 1))
    axes = (Axis("h", 8, 4), Axis("d", 12))
    move = Ring(
        (0, 1), Place(Space.LX, I32, 0, (), 0), lx(1, I32, {0: 48, 1: 4}, Origin.CORE),
        (held([(0, -12), (1, -1)], 96, 7, offset=95, granule=3, step=4),), 7,
    )  # fmt: skip
    one = moved(spread, axes, move, {0: 48, 1: 4}, (60, 96))
    x = numbers(96, 1)
    out = np.zeros((8, 12), np.int32)
    assert problem(one, spans(x, out)) == ""
    np.testing.assert_array_equal(made(one, [x, out]), x[::-1].reshape(8, 12))


def test_a_digit_may_be_fixed_and_sizes_may_be_symbols() -> None:
    """Only core 2 of 4 is read."""
    spread = (Axis("rows", 4, 4), Axis("columns", 8))
    axes = (Axis("core", 4, 4), Axis("columns", Slot(2)))
    move = Ring(
        (0, 1), source(0, I32, a1=4), lx(1, I32, {0: 32, 1: 4}, Origin.CORE),
        (held([], 4, 4, offset=2),), 4,
    )  # fmt: skip
    one = moved(spread, axes, move, {0: 32, 1: 4}, (32, 32))
    one = program((), (), one.buffers, 2, sizes=1, sections=one.sections)
    x, out = numbers(4, 8), np.zeros((4, 8), np.int32)
    for columns in (8, 5, 1, 0):
        assert problem(one, spans(x, out), [columns]) == ""
        right = out.copy()
        right[:, :columns] = x[2, :columns]
        np.testing.assert_array_equal(made(one, [x, out], [columns]), right)


def test_a_stream_of_moves_fills_a_double_buffer() -> None:
    axes = (Axis("rows", ROWS), Axis("columns", COLUMNS, 3))
    target = lx(1, I32, {0: 16, 1: 4})
    move = Ring(
        (0, 1), source(0, I32, a1=4), target, (held([(0, 1)], ROWS, 5, step=COLUMNS * 4),), 5
    )
    store = Copy((0, 1), target, device(1, I32, {0: COLUMNS * 4, 1: 4}))
    one = moved(UNEVEN, axes, move, {0: COLUMNS * 4, 1: 4}, (3 * COLUMNS * 4, 128))
    doubled = replace(one.buffers[1], slots=2)
    one = replace(
        one, buffers=(one.buffers[0], doubled),
        sections=(one.sections[0], Section("move", axes, (TileLoop(0, 2, (move, store)),))),
    )  # fmt: skip
    x = numbers(ROWS, COLUMNS)
    assert problem(one, spans(x, x)) == ""
    np.testing.assert_array_equal(made(one, [x, np.zeros_like(x)]), x)


def scattered(choice: random.Random) -> tuple[Program, list[Array]]:
    """A move between random divisions of random sizes."""
    rows, columns = choice.randint(1, 12), choice.randint(1, 9)

    def division() -> tuple[Axis, Axis]:
        a, b = choice.randint(1, 4), choice.randint(1, 3)
        first = choice.random() < 0.5
        strides = (1, a) if first else (b, 1)
        granules = choice.randint(1, 3), choice.randint(1, 3)
        return (
            Axis("rows", rows, a, strides[0] if a > 1 else 1, granules[0]),
            Axis("columns", columns, b, strides[1] if b > 1 else 1, granules[1]),
        )

    spread, axes = division(), division()
    move = Ring(
        (0, 1) if choice.random() < 0.5 else (1, 0),
        Place(Space.LX, I32, 0, (), 0),
        lx(1, I32, {0: 4, 1: 4 * rows}, Origin.CORE),
        tuple(
            Holding((Term(n, 1, Origin.ABSOLUTE),), 0, axis.extent, axis.parts, axis.stride,
                    axis.granule, step)
            for n, (axis, step) in enumerate(zip(spread, (columns * 4, 4), strict=True))
        ),
        spread[0].parts * spread[1].parts,
    )  # fmt: skip
    one = moved(spread, axes, move, {0: columns * 4, 1: 4}, (rows * columns * 4,) * 2)
    x = numbers(rows, columns)
    return one, [x, np.zeros_like(x)]


@pytest.mark.parametrize("seed", range(25))
def test_any_division_can_become_any_other(seed: int) -> None:
    one, arrays = scattered(random.Random(seed))
    assert problem(one, spans(*arrays)) == ""
    with SoftwareCard(memory=1 << 22, threads=1) as card:
        np.testing.assert_array_equal(run(card, one, arrays)[1], arrays[0])
    np.testing.assert_array_equal(interpreted(one, arrays), arrays[0])


# --- what is refused ------------------------------------------------------------------------

OF = Regroup(16384, 8, 4, 64)
GOOD = regroup(OF)
MOVE = GOOD.sections[1].body[0]
assert isinstance(MOVE, Ring)
SPANS = [(0, OF.bytes)] * 2


def with_move(move: Ring, *more: Copy, first: bool = True) -> Program:
    body = (move, *more) if first else (*more, move)
    section = replace(GOOD.sections[1], body=body)
    return replace(GOOD, sections=(GOOD.sections[0], section, GOOD.sections[2]))


def test_bytes_that_their_holder_never_wrote() -> None:
    only = replace(GOOD, sections=GOOD.sections[1:])
    assert problem(only, SPANS) == (
        "section move, RING instruction 0 on core 0 reads byte 0 of LX buffer held of core 0, which"
        " nothing has written in an earlier section"
    )
    few = replace(GOOD.sections[0].axes[0], extent=OF.rows - 1)
    short = replace(GOOD.sections[0], axes=(few, GOOD.sections[0].axes[1]))
    said = problem(replace(GOOD, sections=(short, *GOOD.sections[1:])), SPANS)
    assert "of LX buffer held of core" in said
    assert "which nothing has written in an earlier section" in said


def test_cores_that_never_work() -> None:
    axes = (replace(GOOD.sections[0].axes[0], parts=4), GOOD.sections[0].axes[1])
    loaded = replace(GOOD.sections[0], axes=axes)
    section = Section("move", axes, (MOVE,))
    wide = replace(GOOD, buffers=tuple(replace(b, bytes=1 << 16, offset=n << 16, slots=1)
                                       for n, b in enumerate(GOOD.buffers)))  # fmt: skip
    said = problem(replace(wide, sections=(loaded, section)), SPANS)
    assert "RING instruction 0 reads LX buffer held of core 4, which never works" in said


def test_bytes_that_somebody_writes_in_the_same_section() -> None:
    again = GOOD.sections[0].body[0]
    assert isinstance(again, Copy)
    held_again = replace(again, target=replace(again.target, terms=MOVE.target.terms))
    for first in (True, False):
        said = problem(with_move(MOVE, held_again, first=first), SPANS)
        numbers_of = (0, 1) if first else (1, 0)
        assert (
            f"section move, RING instruction {numbers_of[0]} on core 0 reads byte 0 of LX buffer"
            f" held of core 0, which section move, LOAD instruction {numbers_of[1]} writes in the"
            " same section, through buffer held: no core waits for another one there"
        ) in said


def test_a_move_over_its_own_source() -> None:
    over = replace(GOOD, buffers=(GOOD.buffers[0], replace(GOOD.buffers[1], offset=0),
                                  GOOD.buffers[2]))  # fmt: skip
    said = problem(over, SPANS)
    assert "which section move, RING instruction 0 writes in the same section" in said


def test_bytes_that_another_buffer_wrote_last() -> None:
    alias = (*GOOD.buffers, replace(GOOD.buffers[0], name="alias"))
    other = replace(MOVE, source=replace(MOVE.source, buffer=3))
    section = replace(GOOD.sections[1], body=(MOVE, other))
    sections = (GOOD.sections[0], section, GOOD.sections[2])
    said = problem(replace(GOOD, buffers=alias, sections=sections), SPANS)
    assert "but section load, LOAD instruction 0 wrote there last, through buffer held" in said


def test_bytes_outside_of_the_holders_buffer() -> None:
    for base in (-2, 128):
        out = replace(MOVE, source=replace(MOVE.source, base=base))
        said = problem(with_move(out), SPANS)
        assert "RING instruction 0 reads bytes" in said
        assert "of LX buffer held of core" in said
        with SoftwareCard(memory=1 << 22, threads=1) as card, pytest.raises(CardError) as wrong:
            run(card, with_move(out), [np.zeros(OF.bytes // 2, np.float16)] * 2)
        assert "of LX buffer held" in str(wrong.value)


def test_points_that_no_core_holds() -> None:
    for change in ({"offset": -1}, {"offset": 1}, {"extent": 3}, {"extent": -5}):
        wrong = with_move(replace(MOVE, held=(replace(MOVE.held[0], **change),)))  # type: ignore[arg-type]
        assert "what no core holds" in problem(wrong, SPANS)
        with pytest.raises(CardError, match="what no core holds"):
            timed(wrong)
        with (
            SoftwareCard(memory=1 << 22, threads=1) as card,
            pytest.raises(CardError, match="what no core holds"),
        ):
            run(card, wrong, [np.zeros(OF.bytes // 2, np.float16)] * 2)


def test_the_result_must_be_read_through_its_buffer_and_not_before() -> None:
    late = with_move(MOVE)
    store = GOOD.sections[2].body[0]
    assert isinstance(store, Copy)
    assert "which nothing has written" in problem(with_move(MOVE, store, first=False), SPANS)
    assert problem(late, SPANS) == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"source": replace(MOVE.source, space=Space.DEVICE, buffer=-1)}, "from LX to LX"),
        ({"target": replace(MOVE.target, space=Space.DEVICE, buffer=-1)}, "from LX to LX"),
        ({"target": replace(MOVE.target, dtype=DType.BF16)}, "changes no dtype"),
        ({"source": replace(MOVE.source, buffer=2)}, "reads a double buffer"),
        ({"axes": (0,)}, "uses an axis that is not walked"),
        ({"axes": (0, 0)}, "walks an axis twice"),
        ({"source": replace(MOVE.source, terms=(Term(1, 2, Origin.TILE),))}, "its axis' zero"),
        ({"held": (replace(MOVE.held[0], terms=(Term(0, 1, Origin.CORE),)),)}, "its axis' zero"),
        ({"held": (MOVE.held[0], MOVE.held[0])}, "the holdings of a ring move overlap"),
        ({"held": (replace(MOVE.held[0], stride=3),)}, "that does not hold its source"),
        ({"cores": 4}, "that does not hold its source"),
        ({"cores": 33}, "cores of a ring move's source 33"),
        ({"held": (replace(MOVE.held[0], parts=33),)}, "parts of a holding 33"),
        ({"held": (replace(MOVE.held[0], stride=0),)}, "stride of a holding"),
        ({"held": (replace(MOVE.held[0], granule=0),)}, "granule of a holding"),
        ({"held": (replace(MOVE.held[0], step=3),)}, "does not name whole elements"),
    ],
)
def test_malformed_moves_are_refused(change: dict[str, object], why: str) -> None:
    assert why in refusal(with_move(replace(MOVE, **change)))  # type: ignore[arg-type]


@pytest.mark.parametrize("one", [exchange(9, 20, 4), exchange(8, 8, 2)])
def test_what_is_accepted_means_the_same_in_every_mode(one: Program) -> None:
    """Of all ways to drop, weaken, move or alias something; what drops or weakens is refused."""
    rows, columns = one.sections[0].axes[0].extent, one.sections[0].axes[1].extent
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    x = np.arange(rows * columns, dtype=np.float16).reshape(rows, columns)
    needed = [Span(0, x.nbytes, -1), Span(0, x.nbytes, x.nbytes, fresh=True)]
    accepted: list[Program] = []
    for mutant in [*mutants(one), *holdings_changed(one)]:
        try:
            if problem(mutant.program, needed):
                continue
        except (InvalidProgram, CardError):
            continue
        assert mutant.kind not in ("drop", "weaken", "token"), mutant.what
        accepted.append(mutant.program)
    assert len(accepted) > 5
    for other in accepted:
        made(other, [x, np.zeros_like(x)])


def holdings_changed(one: Program) -> Iterator[Mutant]:
    move = one.sections[1].body[0]
    assert isinstance(move, Ring)
    first = move.held[0]
    extent = first.extent
    assert isinstance(extent, int)
    changes: list[dict[str, object]] = [
        {"offset": 1}, {"offset": -1}, {"parts": 1}, {"parts": 2}, {"granule": 2}, {"step": 0},
        {"step": 2}, {"extent": extent + 1}, {"extent": 2 * extent}, {"stride": 2}, {"terms": ()},
    ]  # fmt: skip
    for change in changes:
        held = replace(first, **change)  # type: ignore[arg-type]
        section = replace(one.sections[1], body=(replace(move, held=(held,)),))
        sections = (one.sections[0], section, one.sections[2])
        yield Mutant("holding", str(change), partial(replace, one, sections=sections))


# --- time -----------------------------------------------------------------------------------


def move_alone(one: Program) -> Program:
    return replace(one, sections=(next(s for s in one.sections if s.name == "move"),))


def law(of: Regroup) -> float:
    """us of the on-chip move law, card.md 1.2: a regression that scores, and is used nowhere."""
    each = of.bytes / of.cores
    per_run = -1.14 + 3.92 * np.log2(of.split)
    return float(each / of.run * per_run + each * of.split / 547) / 1000


def test_moves_take_what_the_measured_law_says() -> None:
    """Within 30 % for everything it was fitted on, with no constant of their own."""
    errors = []
    for size in (1 << 19, 1 << 21, 1 << 22):
        for cores in (4, 8, 32):
            for split in (2, 4, 8):
                for run_bytes in (128, 256, 1024, 4096):
                    of = Regroup(size, cores, split, run_bytes)
                    if split > cores or of.rows < cores or size // cores > 1 << 19:
                        continue
                    cycles = timed(move_alone(regroup(of))).cycles
                    errors.append(SPYRE_CARD_V1.microseconds(cycles) / law(of) - 1)
    assert len(errors) > 60
    assert max(map(abs, errors)) < 0.3
    assert np.mean(np.abs(errors)) < 0.2


def test_links_and_latency() -> None:
    """A message of n sticks holds a link for the latency of LX and a cycle per stick."""
    spec = SPYRE_CARD_V1
    for sticks in (1, 10, 100):
        # To the next core; then the token waits for LX and the hop.
        cycles = timed(shift(128 * sticks, 2)).cycles
        assert cycles == spec.lx_latency_cycles + sticks + spec.lx_latency_cycles + 1
        assert timed(shift(128 * sticks, 32)).cycles == cycles  # every link has its own message


def gathered(readers: int, *, shared: bool) -> Program:
    """Cores read 64 KiB of core 0: all of them the same bytes, or each its own."""
    size = (1 << 16) // (1 if shared else readers)
    axes = (Axis("core", readers, readers), Axis("columns", size // 2))
    steps = () if shared else (Term(0, size, Origin.ABSOLUTE),)
    place = Place(Space.LX, F16, 0, (*steps, Term(1, 2, Origin.ABSOLUTE)), 0)
    move = Ring((0, 1), place, lx(1, F16, {0: size, 1: 2}, Origin.CORE), (held([], 32, 32),), 32)
    held_by = Buffer("held", 0, 1 << 16), Buffer("got", 1 << 16, size)
    return program((), (), held_by, 0, sections=(Section("move", axes, (move,)),))


def test_those_who_read_the_same_share_a_message() -> None:
    one, eight, all_ = (timed(gathered(n, shared=True)) for n in (2, 8, 32))
    assert one.cycles == 512 + 8 + 8 + 1
    # The same links, up to 8 readers; then multicast slows down.
    assert eight.cycles == one.cycles - 1 + 7
    assert 2 < all_.cycles / one.cycles < 3
    assert (one.ring_bytes, eight.ring_bytes, all_.ring_bytes) == tuple(n << 16 for n in (1, 7, 31))


def test_messages_that_need_a_link_take_turns() -> None:
    """Core 0 sends 7 of 8 parts upwards: its first link carries all of them."""
    report = timed(gathered(8, shared=False))
    assert report.cycles == 7 * (64 + 8) + 8 + 7
    assert report.ring_bytes == 7 << 13


def test_a_move_goes_the_shorter_way() -> None:
    """31 others, each its own part: half of them lie the other way around."""
    report = timed(gathered(32, shared=False))
    assert report.cycles == 16 * (16 + 8) + 8 + 16


def test_a_transposing_move_is_as_slow_as_a_transposing_copy() -> None:
    plain = timed(move_alone(regroup(Regroup(1 << 16, 2, 2, 1024))))
    one = move_alone(regroup(Regroup(1 << 16, 2, 2, 1024)))
    ring = one.sections[0].body[0]
    assert isinstance(ring, Ring)
    turned = replace(ring.target, terms=(Term(0, 2, Origin.CORE), Term(1, 64, Origin.CORE)))
    section = replace(one.sections[0], body=(replace(ring, target=turned),))
    slow = timed(replace(one, sections=(section,)))
    least = (1 << 15) / SPYRE_CARD_V1.transpose_rate * SPYRE_CARD_V1.clock_ghz
    assert slow.cycles >= least > plain.cycles


def test_a_move_waits_for_its_target_and_the_next_one_for_the_move() -> None:
    axes = (Axis("rows", 64), Axis("columns", 64, 4))
    row = 128
    target = lx(1, F16, {0: 32, 1: 2})
    move = Ring((0, 1), source(0, F16, a1=2), target, (held([(0, 1)], 64, 4, step=row),), 4)
    store = Copy((0, 1), target, device(0, F16, {0: row, 1: 2}))
    held_by = (Buffer("held", 0, 16 * row), Buffer("got", 16 * row, 16 * 32))
    body = TileLoop(0, 16, (move, store))
    one = program((), (), held_by, 1, sections=(Section("move", axes, (body,)),))
    single = timed(one)
    doubled = replace(one, buffers=(held_by[0], replace(held_by[1], slots=2)))
    assert timed(doubled).cycles < single.cycles
    assert single.ring_busy > 0
    assert single.instructions == 4 * 2 * 4
    loaded = timing_card().load_program(one)
    try:
        report, events = timing_card().trace(loaded, timing_card().fill(loaded, [0]))
    finally:
        timing_card().unload(loaded)
    assert int(events["ring_bytes"].sum()) == report.ring_bytes == single.ring_bytes
    own = events[events["unit"] == 4]
    assert (own["end"] - own["begin"]).sum() == pytest.approx(report.ring_busy, abs=1)
