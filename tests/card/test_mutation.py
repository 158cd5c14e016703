"""Whatever is dropped from a program or weakened in it: it is refused, or it means the same.

`--long` takes all mutants of all programs and leaves `results/mutation.json`.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from openspyre.ir.program import (
    Axis,
    Calc,
    Copy,
    Given,
    Indirect,
    Program,
    Section,
    Slot,
    SlotDef,
    TileLoop,
)
from openspyre.ir.text import parse_kernel
from tests.card.checking import edited, with_buffer, with_section, without
from tests.card.hand_programs import (
    F32,
    I64,
    buffers,
    copies,
    device,
    exchange,
    local,
    pointwise,
    program,
)
from tests.card.meaning import Original, hazard, meaning
from tests.card.mutants import mutants
from tests.card.mutation import (
    REGIONS,
    WHOLE,
    Job,
    Score,
    case_named,
    planned_names,
    region_jobs,
    scored,
    scores,
)
from tests.card.order import NotEqual
from tests.results import write_result

LEAST = 0.99
# What `copies(8, 64, cores)` is for.
COPY = parse_kernel(
    """kernel k
    arguments x y
    input x: f16[8, 64]
    output y: f16[8, 64]
    op a map i0:8 i1:64
      y[i0, i1] <- x[i0, i1]
    """
)


@pytest.mark.timeout(7200)
def test_every_mutant_is_refused_or_means_the_same(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    by_program: dict[str, Score] = {}
    begun = time.monotonic()

    def tell(text: str) -> None:
        with capsys.disabled():
            print(f"{time.monotonic() - begun:6.0f} s  {text}", flush=True)

    if request.config.getoption("--long"):
        jobs = [job for name in REGIONS for job in region_jobs(name)]
        jobs += [Job(name) for name in planned_names(2)]
        for job, score in scores(jobs, tell):
            by_program[job.case] = by_program.get(job.case, Score()) + score
        write_result("mutation", _report(by_program, jobs, time.monotonic() - begun))
    else:
        for name in planned_names(0):
            by_program[name] = scored(Job(name, 0.15, 0.04))
        by_program["vit_captured"] = scored(Job("vit_captured"))
        by_program["whisper_captured"] = scored(Job("whisper_captured", 0.15, 0.04))
    total = sum(by_program.values(), Score())
    missed = [str(miss) for miss in total.missed]
    assert total.rate(WHOLE) >= LEAST, missed
    assert not [miss for miss in total.missed if miss.hazard], missed
    assert min(total.refused[kind] for kind in total.mutants) > 0
    assert total.accepted.total() > 0


def _report(scores: dict[str, Score], jobs: list[Job], seconds: float) -> dict[str, object]:
    total = sum(scores.values(), Score())
    sampled = {job.case: job.moved for job in jobs if job.moved < 1}
    return {
        "seconds": round(seconds),
        "caught": round(total.rate(WHOLE), 5),
        "caught of those that move": round(total.rate(total.mutants.keys() - set(WHOLE)), 5),
        "share of those that move": sampled,
        "kinds": total.as_dict(),
        "programs": {name: score.as_dict() for name, score in scores.items()},
        "missed": sorted(map(str, total.missed)),
    }


# --- the criterion itself ---------------------------------------------------------------------


def means(program: Program) -> bytes:
    return meaning(program, COPY, {})


def test_meaning_does_not_depend_on_tiles_cores_or_slots() -> None:
    wanted = means(copies(8, 64, 1, tile=8, slots=1))
    for cores, tile, slots in ((2, 2, 2), (4, 1, 1), (1, 3, 2)):
        assert means(copies(8, 64, cores, tile=tile, slots=slots)) == wanted


def test_meaning_tells_other_data_apart() -> None:
    right = copies(8, 64, 1, tile=4)
    loads = [m for m in mutants(right) if m.kind == "weaken" and m.what.startswith("Copy 0")]
    assert loads
    for mutant in loads:
        assert means(mutant.program) != means(right)
    assert means(without(right, 1)) != means(right)


def test_meaning_finds_what_no_token_orders() -> None:
    """Two buffers on the same bytes: the second load overtakes nobody, it waits. A store that reads
    through an alias does not wait for the load."""
    right = copies(8, 64, 1, tile=4)
    found = [m for m in mutants(right) if m.kind == "token"]
    assert len(found) == 2
    for mutant in found:
        with pytest.raises(NotEqual, match="overtakes"):
            means(mutant.program)


def test_meaning_finds_races_between_cores_and_bad_addresses() -> None:
    whole = copies(8, 64, 1)
    twice = with_section(
        whole, 0, lambda s: replace(s, axes=(*s.axes, replace(s.axes[0], parts=2)))
    )
    with pytest.raises(NotEqual, match="between cores"):
        means(twice)
    with pytest.raises(NotEqual, match="outside of buffer"):
        means(with_buffer(whole, 0, lambda b: replace(b, bytes=b.bytes - 128)))


def test_meaning_needs_no_order_within_a_unit() -> None:
    """Body order of two loads of different tiles is nobody's business."""
    right = copies(8, 64, 1, tile=4)
    loop = right.sections[0].body[0]
    assert isinstance(loop, TileLoop)
    doubled = with_section(
        right, 0, lambda s: replace(s, body=(replace(loop, body=(loop.body[0], *loop.body)),))
    )
    assert means(edited(doubled, lambda _, instr: instr)) == means(right)


def test_only_sections_that_differ_are_looked_at_again() -> None:
    """With the same result as from the first section on."""
    case = case_named("whisper_captured")
    original = Original(case.program, case.kernel, {})
    wanted = meaning(case.program, case.kernel, {})
    found = set()
    for mutant in list(mutants(case.program))[::17]:
        try:
            whole = meaning(mutant.program, case.kernel, {}) == wanted
        except NotEqual:
            whole = False
        assert original.means(mutant.program) == whole, mutant
        found.add(whole)
    assert found == {True, False}


def test_hazards_are_told_from_other_values() -> None:
    right = copies(8, 64, 1, tile=4)
    assert hazard(right, COPY, {}) == ""
    assert hazard(without(right, 1), COPY, {}) == ""  # nothing is stored
    assert hazard(without(right, 0), COPY, {}) == "reads what nothing has written"
    token = next(m for m in mutants(right) if m.kind == "token")
    assert "overtakes" in hazard(token.program, COPY, {})


def test_an_instruction_may_not_overtake_itself() -> None:
    """It may store every point where it read it; further on, the order of points decides."""
    right = pointwise(8, 64, 1, ["exp"])
    for by, wanted in ((0, ""), (4, "an instruction overtakes itself")):
        at = right.buffers[0].offset + by
        moved = with_buffer(right, 1, partial(replace, offset=at))
        assert hazard(moved, COPY, {}) == wanted


@pytest.mark.parametrize("add", [False, True])
def test_sums_have_no_order_and_scattered_stores_have_one(add: bool) -> None:
    rows = device(2, ((0, 16), (1, 4)), F32)
    tiles = [local(n, ((0, 16), (1, 4)), F32) for n in (1, 2)]
    index = local(0, ((0, 8),), I64)
    where = (Indirect(index, 16, 8, wrap=False, clamp=False),)
    table = device(1, ((1, 4),), F32)
    stores = [Copy((0, 1), tile, table, where, add=add) for tile in tiles]
    loads = [
        Copy((0,), device(0, ((0, 8),), I64), index),
        Copy((0, 1), rows, tiles[0]),
        Copy((0, 1), replace(rows, base=Slot(3)), tiles[1]),
    ]
    kernel = parse_kernel(
        """kernel k
        arguments i t x
        input i: i64[8]
        mutated t: f32[8, 4]
        input x: f32[16, 4]
        op a map i0:8 i1:4
          t[i0, i1] <- x[i0, i1]
        """
    )

    def means(*body: Copy) -> bytes:
        section = Section("rows", (Axis("i", 8), Axis("j", 4)), body)
        made = program(3, buffers((64, 1), (128, 1), (128, 1)), section)
        formula = ((Calc.SLOT, 2), (Calc.CONST, 128), (Calc.ADD, 0))
        slots = (*made.slots, SlotDef(Given.FORMULA, 0, formula))
        return meaning(replace(made, slots=slots), kernel, {})

    assert (means(*loads, *stores) == means(*loads, *stores[::-1])) == add


def test_ring_moves_read_what_the_section_found() -> None:
    """Everything that was there comes with its names; writes in the same section race."""
    kernel = parse_kernel(
        """kernel k
        arguments x y
        input x: f16[8, 6]
        output y: f16[8, 6]
        op a map i0:8 i1:6
          y[i0, i1] <- x[i0, i1]
        """
    )
    right = exchange(8, 6, 2)
    assert hazard(right, kernel, {}) == ""
    assert hazard(without(right, 0), kernel, {}) == "reads what nothing has written"
    load, move, store = right.sections
    merged = replace(move, axes=load.axes, body=(*load.body, *move.body))
    assert "between cores" in hazard(replace(right, sections=(merged, store)), kernel, {})
    original = Original(right, kernel, {})
    other = edited(right, lambda n, i: replace(i, origin=-1) if n == 1 else i)
    assert original.means(other)
    for mutant in mutants(right):
        whole = "another"
        with suppress(NotEqual):
            same = meaning(mutant.program, kernel, {}) == meaning(right, kernel, {})
            whole = "the same" if same else "another"
        assert original.means(mutant.program) == (whole == "the same"), mutant
