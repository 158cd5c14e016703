"""The check engine: right programs pass, every kind of wrong one is named."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from openspyre.card.native import Span
from openspyre.compiler.emit import emit
from openspyre.compiler.pipeline import compile_kernel
from openspyre.compiler.residency import place
from openspyre.errors import CardError
from openspyre.ir.kernel import Kernel
from openspyre.ir.ops import LOAD, TABLE
from openspyre.ir.program import (
    Axis,
    Bound,
    Calc,
    Copy,
    Given,
    Indirect,
    Origin,
    Place,
    Program,
    Section,
    Slot,
    SlotDef,
    Term,
    TileLoop,
    Vec,
    VecOp,
    VecOut,
)
from openspyre.ir.text import parse_kernel
from openspyre.runtime.check import checked_sizes, checked_spans
from openspyre.spec import SPYRE_CARD_V1
from tests.card.checking import Instr, edited, problem, with_buffer, with_section, without
from tests.card.hand_programs import (
    F32,
    I64,
    buffers,
    copies,
    copy_section,
    device,
    local,
    matmul,
    pointwise,
    program,
)
from tests.planned_kernels import ALL, SIZES, SYMBOLIC, TWO_STEPS, replanned
from tests.regions import NAMES, load_region

MATRIX = (0, 64 * 64 * 2)  # bytes of f16[64, 64]
TWO = [MATRIX, MATRIX]


def planned(kernel: Kernel) -> Program:
    return emit(kernel if kernel.residency else place(kernel, SPYRE_CARD_V1), SPYRE_CARD_V1)


# --- right programs -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_every_planned_kernel_passes(name: str) -> None:
    kernel = parse_kernel("kernel k\n" + ALL[name])
    for plan in (kernel, *(replanned(kernel, seed) for seed in range(4))):
        assert problem(planned(plan), checked_spans(plan, {})) == ""


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_a_variant_passes_at_all_sizes(n: int, k: int) -> None:
    kernel = parse_kernel("kernel k\n" + SYMBOLIC.format(n="0..16", k="0..40"))
    assert problem(planned(kernel), checked_spans(kernel, {"n": n, "k": k}), (n, k)) == ""


@pytest.mark.parametrize("name", [n for n in NAMES if "stock" not in n])
def test_real_regions_pass(name: str) -> None:
    kernel = load_region(name)
    compiled = compile_kernel(kernel, SPYRE_CARD_V1)
    for sizes in checked_sizes(kernel.limits):
        spans = checked_spans(kernel, sizes)
        assert problem(compiled, spans, list(sizes.values())) == ""


def test_hand_written_programs_pass() -> None:
    assert problem(copies(64, 64, 4), TWO) == ""
    assert problem(pointwise(64, 64, 3, ["exp", "mul"]), TWO) == ""
    spans = [(0, 64 * 128 * 2), (0, 128 * 128 * 2), (0, 64 * 128 * 2)]
    assert problem(matmul(64, 128, 128, (2, 4), (16, 32, 64)), spans) == ""


# --- LX -------------------------------------------------------------------------------------


def test_a_load_that_is_missing() -> None:
    wrong = replace(without(pointwise(64, 64, 4, ["exp"]), 0), sources=("model.py:3",))
    wrong = edited(wrong, lambda _, instr: replace(instr, origin=0))
    assert problem(wrong, TWO) == (
        "section pointwise, SFU instruction 1 (model.py:3) on core 0 reads byte 0 of LX "
        "buffer b0, which nothing has written"
    )


def test_a_load_of_too_few_columns() -> None:
    """Byte 124 of row 0: the last two columns of 64 are missing."""

    def with_columns(copy: Copy) -> Copy:
        target = replace(copy.target, terms=(copy.target.terms[0], Term(2, 2, Origin.TILE)))
        source = replace(copy.source, terms=(copy.source.terms[0], Term(2, 2, Origin.ABSOLUTE)))
        return replace(copy, axes=(0, 2), source=source, target=target)

    wrong = edited(
        copies(64, 64, 4),
        lambda n, i: with_columns(i) if n == 0 and isinstance(i, Copy) else i,
    )
    wrong = with_section(wrong, 0, lambda s: replace(s, axes=(*s.axes, Axis("few", 62))))
    found = problem(wrong, TWO)
    assert "STORE instruction 2 on core 0 reads byte 124 of LX buffer b0" in found


def test_two_buffers_over_the_same_bytes() -> None:
    """b1 (what exp gives) lies where b0 (x) does."""
    wrong = with_buffer(pointwise(64, 64, 4, ["exp"]), 1, lambda b: replace(b, offset=0))
    assert problem(wrong, TWO) == (
        "section pointwise, SFU instruction 2 on core 0 writes byte 0 of LX buffer b1 while it "
        "reads the same byte as another operand in buffer b0"
    )


def test_a_buffer_that_is_overwritten_before_it_is_read() -> None:
    """Weights loaded before the loop, under a tile that is loaded in it."""
    steps = ((0, 128), (1, 2))
    body = (
        Copy((1,), device(1, ((1, 2),)), local(1, ((1, 2),))),
        TileLoop(
            0,
            8,
            (
                Copy((0, 1), device(0, steps), local(0, steps)),
                Vec(
                    (0, 1),
                    (local(0, steps), local(1, ((1, 2),))),
                    (),
                    (VecOp(LOAD, F32, (0,)), VecOp(LOAD, F32, (1,)),
                     VecOp(TABLE["mul"].code, F32, (0, 1))),
                    (VecOut(2, local(2, steps)),),
                ),
                Copy((0, 1), local(2, steps), device(2, steps)),
            ),
        ),
    )  # fmt: skip
    section = Section("scale", (Axis("m", 64, 4), Axis("n", 64)), body)
    spans = [MATRIX, (0, 128), MATRIX]
    right = program(3, buffers((1024, 2), (128, 1), (1024, 1)), section)
    assert problem(right, spans) == ""
    wrong = with_buffer(right, 1, lambda b: replace(b, offset=896))
    found = problem(wrong, spans)
    assert found.startswith(
        "section scale, SFU instruction 3 on core 0 reads byte 0 of LX buffer b1, but section "
        "scale, LOAD instruction 2 wrote there last, through buffer b0"
    )


def test_a_buffer_that_is_too_small() -> None:
    wrong = with_buffer(copies(64, 64, 4), 0, lambda b: replace(b, bytes=896))
    found = problem(wrong, TWO)
    assert found.startswith(
        "section copy, LOAD instruction 1 on core 0 writes bytes 0 to 1024 of LX buffer b0, "
        "which has 896"
    )


@pytest.mark.parametrize(("base", "low", "high"), [(2, 2, 1026), (-4, -4, 1020)])
def test_a_shifted_operand(base: int, low: int, high: int) -> None:
    def shift(number: int, instr: Instr) -> Instr:
        if number != 1 or not isinstance(instr, Copy):
            return instr
        return replace(instr, source=replace(instr.source, base=base))

    found = problem(edited(copies(64, 64, 4), shift), TWO)
    assert found == (
        f"section copy, STORE instruction 2 on core 0 reads bytes {low} to {high} of LX "
        "buffer b0, which has 1024"
    )


def test_a_tile_left_from_the_trip_before_last() -> None:
    """A double buffer that is written in parts, one per trip, and read as a whole."""
    steps = ((0, 128), (1, 2))
    body = (
        TileLoop(0, 1, (Copy((0, 1), device(0, steps), of_core(local(0, steps))),)),
        Copy((0, 1), of_core(local(0, steps)), device(1, steps)),
    )
    section = Section("parts", (Axis("m", 8), Axis("n", 64)), body)
    spans = [(0, 1024), (0, 1024)]
    assert problem(program(2, buffers((1024, 1)), section), spans) == ""
    found = problem(program(2, buffers((1024, 2)), section), spans)
    assert found == (
        "section parts, STORE instruction 2 on core 0 reads byte 0 of LX buffer b0 in slot 1, "
        "but section parts, LOAD instruction 1 wrote it last in slot 0"
    )


def of_core(place: Place) -> Place:
    """The place counted from the start of the core's part."""
    terms = tuple(replace(t, origin=Origin.CORE) for t in place.terms)
    return replace(place, terms=terms)


def test_a_running_sum_needs_one_slot() -> None:
    right = matmul(32, 32, 128, (2, 2), (16, 16, 64), slots=2)
    spans = [(0, 32 * 128 * 2), (0, 128 * 32 * 2), (0, 32 * 32 * 2)]
    assert problem(right, spans) == ""
    wrong = with_buffer(right, 2, lambda b: replace(b, slots=2, offset=1 << 17))
    found = problem(wrong, spans)
    assert "PT instruction" in found
    assert "in slot 1, but" in found


def test_a_tensor_kept_across_sections() -> None:
    kernel = place(parse_kernel("kernel k\n" + TWO_STEPS.format(granule=1)), SPYRE_CARD_V1)
    right, spans = planned(kernel), checked_spans(kernel, {})
    assert problem(right, spans) == ""
    kept = next(n for n, b in enumerate(right.buffers) if b.name == "t")
    tile = next(n for n, b in enumerate(right.buffers) if b.name.startswith("s1."))
    where = right.buffers[kept].offset
    found = problem(with_buffer(right, tile, lambda b: replace(b, offset=where)), spans)
    assert "section s1" in found
    assert "wrote there last" in found
    swapped = replace(right, sections=right.sections[::-1])
    found = problem(swapped, spans)
    assert "LX buffer t, which nothing has written" in found


# --- device memory --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        (
            [(0, MATRIX[1] - 2), MATRIX],
            "LOAD instruction 1 on core 3 moves bytes 6144 to 8192 of argument 0",
        ),
        (
            [MATRIX, (2, MATRIX[1])],
            "STORE instruction 2 on core 0 moves bytes 0 to 2048 of argument 1",
        ),
        ([MATRIX, (0, 0)], "which has bytes 0 to 0"),
    ],
)
def test_an_argument_that_is_too_small(spans: list[tuple[int, int]], message: str) -> None:
    found = problem(copies(64, 64, 4), spans)
    assert message in found


def test_every_core_stores_the_same() -> None:
    """The rows are split, the copy walks only the columns."""
    body = (
        Copy((1,), device(0, ((1, 2),)), local(0, ((1, 2),))),
        Copy((1,), local(0, ((1, 2),)), device(1, ((1, 2),))),
    )
    section = Section("row", (Axis("m", 8, 4), Axis("n", 64)), body)
    spans = [(0, 128), (0, 128)]
    alone = replace(section, axes=(Axis("m", 8), Axis("n", 64)))
    assert problem(program(2, buffers((128, 1)), alone), spans) == ""
    assert problem(program(2, buffers((128, 1)), section), spans) == (
        "section row, STORE instruction 1 and section row, STORE instruction 1 touch byte 0 of "
        "argument 1 on cores 0 and 1 in no order, and one of them writes"
    )


@pytest.mark.parametrize("parts", [1, 4])
def test_rows_that_overlap(parts: int) -> None:
    """Rows of 64 columns stored 63 apart: one core writes them in order, several race."""
    steps = ((0, 126), (1, 2))
    body = (
        Copy((0, 1), device(0, ((0, 128), (1, 2))), local(0, ((0, 128), (1, 2)))),
        Copy((0, 1), local(0, ((0, 128), (1, 2))), device(1, steps)),
    )
    section = Section("rows", (Axis("m", 8, parts), Axis("n", 64)), body)
    found = problem(program(2, buffers((1024, 1)), section), [(0, 1024), (0, 1024)])
    assert (found == "") == (parts == 1)
    assert parts == 1 or ("touch byte 252 of argument 1 on cores 0 and 1" in found)


def address_plus(offset: int) -> SlotDef:
    """The address of argument 0 (slot 0) plus bytes."""
    return SlotDef(Given.FORMULA, 0, ((Calc.CONST, offset), (Calc.SLOT, 0), (Calc.ADD, 0)))


def in_place(shift: int, *, tile: int, parts: int = 1) -> Program:
    """x[i + shift] <- x[i], by tiles."""
    body = (
        TileLoop(
            0,
            tile,
            (
                Copy((0,), device(0, ((0, 2),)), local(0, ((0, 2),))),
                Vec((0,), (local(0, ((0, 2),)),), (), (VecOp(LOAD, F32, (0,)),),
                    (VecOut(0, local(1, ((0, 2),))),)),
                Copy((0,), local(1, ((0, 2),)),
                     device(0, ((0, 2),), base=Slot(1))),
            ),
        ),
    )  # fmt: skip
    plus = address_plus(2 * shift)
    made = program(
        1, buffers((tile * 2, 2), (tile * 2, 2)), Section("x", (Axis("i", 256, parts),), body)
    )
    return replace(made, slots=(*made.slots, plus))


def test_in_place_is_ordered_by_tokens() -> None:
    span = [(0, 1024)]
    assert problem(in_place(0, tile=16), span) == ""
    assert problem(in_place(0, tile=16, parts=4), span) == ""
    # A load may run ahead of the store of the trip before.
    found = problem(in_place(16, tile=16), span)
    assert "STORE instruction 3 and section x, LOAD instruction 1 touch byte 32" in found
    assert "on core 0" in found
    # What is loaded long before it is stored again is safe.
    assert problem(in_place(-16, tile=16), [(-32, 512)]) == ""
    found = problem(in_place(-16, tile=16, parts=4), [(-32, 512)])
    assert "on cores" in found


def indexed(
    size: int, *, store: bool, add: bool = False, parts: int = 1, distinct: bool = False
) -> Program:
    """Rows of 4 numbers gathered from, or scattered to, rows of argument 1 named by argument 0."""
    tile, index = local(1, ((0, 16), (1, 4)), F32), local(0, ((0, 8),), I64)
    table = device(1, ((1, 4),), F32)
    rows = device(2, ((0, 16), (1, 4)), F32)
    where = (Indirect(index, 16, size, wrap=False, clamp=False, distinct=distinct),)
    body = (
        Copy((0,), device(0, ((0, 8),), I64), index),
        Copy((0, 1), rows, tile) if store else Copy((0, 1), table, tile, where),
        Copy((0, 1), tile, table, where, add=add) if store else Copy((0, 1), tile, rows),
    )
    section = Section("rows", (Axis("i", 10, parts), Axis("j", 4)), body)
    return program(3, buffers((80, 1), (160, 1)), section)


def test_indices_reach_the_whole_table() -> None:
    spans = [(0, 80), (0, 7 * 16), (0, 160)]
    for parts in (1, 5):
        assert problem(indexed(7, store=False, parts=parts), spans) == ""
    found = problem(indexed(8, store=False), spans)
    assert "moves bytes 0 to 128 of argument 1" in found


def test_scattered_stores_of_several_cores() -> None:
    """Two cores may name one row; sums have no order."""
    spans = [(0, 80), (0, 7 * 16), (0, 160)]
    assert problem(indexed(7, store=True), spans) == ""
    assert problem(indexed(7, store=True, add=True, parts=5), spans) == ""
    found = problem(indexed(7, store=True, parts=5), spans)
    assert "STORE instruction 2 touch byte 0 of argument 1 on cores" in found


def test_indices_that_are_distinct_tell_cores_apart() -> None:
    spans = [(0, 80), (0, 7 * 16), (0, 160)]
    for parts in (2, 5):
        assert problem(indexed(7, store=True, parts=parts, distinct=True), spans) == ""
    # the columns of a row overlap those of the next
    apart = indexed(7, store=True, parts=5, distinct=True)
    (section,) = apart.sections
    load, rows, store = section.body
    (where,) = store.indirect
    narrow = replace(store, indirect=(replace(where, coefficient=8),))
    found = problem(replace(apart, sections=(replace(section, body=(load, rows, narrow)),)), spans)
    assert "STORE instruction 2 touch byte" in found
    # cores that share rows read the same indices
    shared = Section("rows", (Axis("i", 10), Axis("j", 4), Axis("again", 5, 5)), section.body)
    assert "on cores" in problem(replace(apart, sections=(shared,)), spans)


def bounded(bounds: tuple[Bound, ...], base: int) -> Program:
    """out[i, j] <- x[i + j - 2] where the bounds allow, else 0."""
    source = device(0, ((0, 4), (1, 4)), F32)
    place = replace(source, base=Slot(2))
    tile = local(0, ((0, 16), (1, 4)), F32)
    body = (
        Copy((0, 1), place, tile, bounds=bounds),
        Copy((0, 1), tile, device(1, ((0, 16), (1, 4)), F32)),
    )
    section = Section("window", (Axis("i", 10, 2), Axis("j", 4)), body)
    made = program(2, buffers((160, 1)), section)
    return replace(made, slots=(*made.slots, address_plus(base)))


def test_bounds_keep_loads_inside() -> None:
    sums = (Term(0, 1, Origin.ABSOLUTE), Term(1, 1, Origin.ABSOLUTE))
    spans = [(0, 40), (0, 160)]
    assert problem(bounded((Bound(sums, -2, 10),), -8), spans) == ""
    found = problem(bounded((), -8), spans)
    assert "on core 0 moves bytes -8 to 24 of argument 0" in found
    found = problem(bounded((Bound(sums, -1, 10),), -8), spans)
    assert "moves bytes -4 to" in found
    found = problem(bounded((Bound(sums, -2, 11),), -8), spans)
    assert "to 44 of argument 0" in found
    # One axis: i >= 2 is enough at the low end, and j <= 2 at the high end.
    rows, columns = (sums[0],), (sums[1],)
    assert problem(bounded((Bound(rows, -2, 8), Bound(columns, 0, 3)), -8), spans) == ""
    assert problem(bounded((Bound(rows, -1, 9), Bound(columns, 0, 3)), -8), spans) != ""


def pooled(*, stores: int = 64, reads: int = 64, parts: tuple[int, int] = (4, 2)) -> Program:
    """x to the pool in one section, from there to y in the next."""
    steps = ((0, 128), (1, 2))

    def section(name: str, source: int, target: int, rows: int, cores: int) -> Section:
        made = copy_section(rows, 64, cores)
        loop = made.body[0]
        assert isinstance(loop, TileLoop)
        tile = local(0, steps)
        places = [
            replace(device(0, steps, base=Slot(n)), argument=-1 if n == 2 else n)
            for n in (source, target)
        ]
        body = (Copy((0, 1), places[0], tile), Copy((0, 1), tile, places[1]))
        return replace(made, name=name, body=(replace(loop, body=body),))

    sections = (section("out", 0, 2, stores, parts[0]), section("back", 2, 1, reads, parts[1]))
    made = program(2, buffers((1024, 2)), *sections)
    return replace(made, slots=(*made.slots, SlotDef(Given.POOL)), pool_bytes=8192)


def test_the_pool_is_written_before_it_is_read() -> None:
    assert problem(pooled(), TWO) == ""
    assert problem(pooled(reads=50), TWO) == ""
    assert problem(pooled(stores=62), TWO) == (
        "section back, LOAD instruction 1 on core 1 reads byte 7936 of the pool, which nothing "
        "has written"
    )
    right = pooled()
    found = problem(replace(right, sections=right.sections[::-1]), TWO)
    assert "reads byte 0 of the pool" in found
    found = problem(replace(right, pool_bytes=8000), TWO)
    assert "on core 3 moves bytes 6144 to 8192 of the pool, which has bytes 0 to 8000" in found


def in_turns(*, second: bool = True, at: int = 0) -> Program:
    """x to t and back, then x to u, which has t's place in the pool (or lies behind), and back."""
    made = pooled()
    pool = len(made.slots) - 1
    slots = [
        SlotDef(Given.FORMULA, 0, ((Calc.SLOT, pool), (Calc.CONST, place), (Calc.ADD, 0)), name)
        for name, place in (("t", 0), ("u", at))
    ]

    def through(slot: Slot, origin: int, instr: Instr) -> Instr:
        assert isinstance(instr, Copy)
        places = [
            replace(p, base=slot) if p.buffer < 0 and p.argument < 0 else p
            for p in (instr.source, instr.target)
        ]
        return replace(instr, source=places[0], target=places[1], origin=origin)

    sections: list[Section] = []
    for number, name in enumerate("tu"):
        change = partial(through, Slot(pool + 1 + number), number)
        found = edited(made, lambda _, instr, change=change: change(instr)).sections
        sections += [replace(s, name=f"{s.name} {name}") for s in found]
    if not second:
        del sections[2]
    return replace(
        made,
        slots=(*made.slots, *slots),
        sections=tuple(sections),
        pool_bytes=8192 + at,
        sources=("model.py:1", "model.py:2"),
    )


def test_tensors_that_take_turns_in_the_pool_are_told_apart() -> None:
    """Without its store, u's load finds what t has left."""
    assert problem(in_turns(), TWO) == ""
    assert problem(in_turns(at=8192), TWO) == ""
    assert problem(in_turns(second=False), TWO) == (
        "section back u, LOAD instruction 1 (model.py:2) on core 0 reads byte 0 of the pool as a "
        "part of u, but section out t, STORE instruction 2 (model.py:1) wrote there last, as a "
        "part of t"
    )
    assert "byte 8192 of the pool, which nothing" in problem(in_turns(second=False, at=8192), TWO)
    over = problem(in_turns(at=4096), TWO)
    assert over == ""  # t is dead where u begins
    sections = in_turns(at=4096).sections
    late = replace(in_turns(at=4096), sections=(*sections, sections[1]))
    assert "reads byte 4096 of the pool as a part of t, but section out u" in problem(late, TWO)


def test_units_are_ordered_by_buffers_alone() -> None:
    """Both sections as one: a load of what the core has stored, through this or another buffer."""
    right = pooled(parts=(4, 4))
    bodies = right.sections[0].body + right.sections[1].body
    merged = replace(right, sections=(replace(right.sections[0], body=bodies),))
    assert problem(merged, TWO) == ""

    def through_b1(number: int, instr: Instr) -> Instr:
        assert isinstance(instr, Copy)
        if number == 2:
            return replace(instr, target=replace(instr.target, buffer=1))
        return replace(instr, source=replace(instr.source, buffer=1)) if number == 3 else instr

    wrong = replace(edited(merged, through_b1), buffers=buffers((1024, 2), (1024, 2)))
    assert problem(wrong, TWO) == (
        "section out, STORE instruction 2 and section out, LOAD instruction 4 touch byte 0 of the "
        "pool on core 0 in no order, and one of them writes"
    )


def test_many_problems_are_counted() -> None:
    spans: list[tuple[int, int]] = [(0, 0)] * 5
    body = tuple(Copy((0,), device(n, ((0, 2),)), local(n, ((0, 2),))) for n in range(5))
    made = program(5, buffers(*[(128, 1)] * 5), Section("s", (Axis("i", 8),), body))
    found = problem(made, spans)
    assert found.count("\n") == 3
    assert found.endswith("and 2 more")


def test_too_much_work_is_said() -> None:
    """Half a billion trips: not proved, and not called wrong."""
    with pytest.raises(CardError, match="section copy has too many instructions to check"):
        problem(copies(1 << 29, 1, 1, tile=1), [(0, 1 << 30)] * 2)


def test_absurd_numbers_do_no_harm() -> None:
    huge = (1 << 62) + 1
    body = (Copy((0, 1), device(0, ((0, huge), (1, -huge))), local(0, ((0, huge - 1), (1, 2)))),)
    made = program(1, buffers((128, 1)), Section("s", (Axis("i", 1 << 40), Axis("j", 9)), body))
    found = problem(made, [(0, 128)])
    assert "LX buffer b0" in found
    assert "argument 0" in found


# --- results ----------------------------------------------------------------------------------


def test_results_that_are_not_stored() -> None:
    right = copies(64, 64, 4)
    spans = [Span(0, 8192, -1), Span(0, 8192, 8192, fresh=True)]
    assert problem(right, spans) == ""
    assert problem(without(right, 1), spans) == (
        "0 bytes of argument 1 are stored, the ops of the user write 8192"
    )
    few = with_section(right, 0, lambda s: replace(s, axes=(Axis("m", 63, 4), s.axes[1])))
    assert problem(few, spans).startswith("8064 bytes of argument 1 are stored")


def test_a_store_to_what_is_only_read() -> None:
    assert problem(copies(64, 64, 4), [Span(0, 8192), Span(0, 8192, -1)]) == (
        "section copy, STORE instruction 2 stores to argument 1, which is only read"
    )


def test_a_fresh_argument_is_read_behind_its_stores_only() -> None:
    once = copies(64, 64, 4)
    back = edited(
        once,
        lambda _, i: (
            replace(i, source=replace(i.source, argument=1, base=Slot(1)))
            if isinstance(i, Copy) and i.target.buffer >= 0
            else i
        ),
    )
    spans = [Span(0, 8192, -1), Span(0, 8192, 8192, fresh=True)]
    assert "reads byte 0 of argument 1, which nothing has written" in problem(back, spans)
    both = replace(once, sections=(*once.sections, *back.sections))
    assert problem(both, spans) == ""


def test_parts_of_a_result_are_told_apart_from_one_part_twice() -> None:
    """Half of the rows twice are as many bytes as all rows."""
    half = with_section(
        copies(64, 64, 4), 0, lambda s: replace(s, axes=(Axis("m", 32, 4), s.axes[1]))
    )
    twice = replace(half, sections=half.sections * 2)
    spans = [Span(0, 8192, -1), Span(0, 8192, 8192)]
    assert problem(twice, spans) == (
        "4096 bytes of argument 1 are stored, the ops of the user write 8192"
    )
