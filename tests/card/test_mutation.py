"""Whatever is dropped from a program or weakened in it: it is refused, or it means the same.

`--long` takes all mutants of all programs and leaves `results/mutation.json`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from openspyre.ir.program import Program, TileLoop
from openspyre.ir.text import parse_kernel
from tests.card.checking import edited, with_buffer, with_section, without
from tests.card.hand_programs import copies
from tests.card.meaning import NotEqual, meaning
from tests.card.mutants import mutants
from tests.card.mutation import Score, compiled_cases, planned_cases, score
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
def test_every_mutant_is_refused_or_means_the_same(request: pytest.FixtureRequest) -> None:
    long = bool(request.config.getoption("--long"))
    total = Score()
    for case in planned_cases(2 if long else 0):
        total += score(case, 1.0 if long else 0.15, prove_all=True)
    if long:
        for case in compiled_cases():
            total += score(case, 1.0 if len(case.program.buffers) < 30 else 0.25)
        write_result("mutation", total.as_dict())
    assert total.rate >= LEAST, total.missed
    assert min(total.refused[kind] for kind in total.mutants) > 0
    assert total.excluded.total() > 0


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
