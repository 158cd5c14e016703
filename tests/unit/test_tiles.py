"""The LX buffers of steps: how they lie, how large they are, when they are live."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openspyre.compiler.addressing import lane_dim, pitches
from openspyre.compiler.bounds import highest, value_range
from openspyre.compiler.tiles import Buffering, Content, StepTiles, lx_peak, step_tiles
from openspyre.errors import BrokenInvariant
from openspyre.ir.index import parse
from openspyre.ir.kernel import Division, Kernel, Op, Step
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.card_runner import check_on_card
from tests.planned_kernels import ALL, CONTRACTIONS, FUSED, REDUCTIONS

LINEAR = next(text for name, text in FUSED.items() if name.startswith("linear"))


def plan(text: str, lx: int = SPYRE_CARD_V1.lx_usable) -> StepTiles:
    kernel = parse_kernel("kernel k\n" + text)
    step = kernel.steps[0]
    card = replace(SPYRE_CARD_V1, lx_usable=lx)
    return step_tiles(kernel, step, kernel.divisions.get(step.name, Division()), card)


@pytest.mark.parametrize(
    ("capacities", "element", "row", "steps", "total"),
    [
        ((7, 100), 2, 0, (256, 2), 7 * 256),  # rows of whole sticks
        ((7, 64), 2, 0, (128, 2), 7 * 128),
        ((7, 1), 4, 0, (4, 4), 128),  # row statistics: a row of 7
        ((9, 12, 32), 2, 0, (768, 64, 2), 9 * 768),  # 12 heads fill the row together
        ((9, 5, 3), 2, 0, (30, 6, 2), 384),
        ((20, 3), 2, 1, (128, 2), 20 * 128),  # a matmul's operand: the row is padded
        ((20, 12, 32), 2, 2, (768, 64, 2), 20 * 768),  # and dense inside
        ((20, 3, 40), 2, 2, (256, 80, 2), 20 * 256),
        ((), 2, 0, (), 128),
        ((0, 5), 2, 0, (10, 2), 128),
    ],
)
def test_rows_are_whole_sticks(
    capacities: tuple[int, ...], element: int, row: int, steps: tuple[int, ...], total: int
) -> None:
    assert pitches(capacities, element, row) == (steps, total)


def test_tiles_of_a_linear_with_bias_and_gelu() -> None:
    found = plan(LINEAR)
    described = [
        (t.content, t.tensor, t.depth, t.slots, t.first, t.last, [d.capacity for d in t.dims])
        for t in found.tiles
    ]
    assert described == [
        (Content.OPERAND, "x", 1, 2, 0, 1, [4, 64]),  # rows of this trip, double buffered
        (Content.OPERAND, "w", 2, 2, 0, 0, [64, 64]),  # k, then n as stick dim
        (Content.TENSOR, "t", 1, 1, 0, 1, []),
        (Content.OPERAND, "b", 0, 1, 0, 1, [96]),  # before the row loop, so live all along
        (Content.RESULT, "z", 1, 2, 0, 1, [4, 96]),
    ]
    assert found.tensors["t"].bytes == 4 * 256


def test_double_buffers_go_first_then_loads_move_in() -> None:
    all_doubled = plan(LINEAR)
    inner = plan(LINEAR, all_doubled.peak - 1)
    assert [t.slots for t in inner.tiles] == [1, 2, 1, 1, 1]
    single = plan(LINEAR, inner.peak - 1)
    assert {t.slots for t in single.tiles} == {1}
    assert all_doubled.peak > inner.peak > single.peak
    assert [t.depth for t in single.tiles] == [1, 2, 1, 0, 1]
    last = plan(LINEAR, single.peak - 1)
    assert [t.depth for t in last.tiles] == [1, 2, 1, 1, 1]


def test_ops_of_a_step_share_a_load() -> None:
    found = plan(FUSED["softmax"])
    operands = [t for t in found.tiles if t.content is Content.OPERAND]
    assert [(t.tensor, t.first, t.last) for t in operands] == [("x", 0, 2)]
    assert len(found.operands) == 3


def test_narrow_reductions_have_a_wide_accumulator() -> None:
    found = plan(REDUCTIONS["rows in tiles, narrow"])
    (wide,) = (t for t in found.tiles if t.content is Content.PARTIAL)
    assert (wide.dtype.value, wide.slots, wide.depth) == ("f32", 1, 1)
    outside = plan(CONTRACTIONS["k outside of n"])
    (wide,) = (t for t in outside.tiles if t.content is Content.PARTIAL)
    assert [d.capacity for d in wide.dims] == [5, 70]  # whole n: its loop is inside of k's


@pytest.mark.parametrize("name", ALL)
def test_the_peak_is_what_the_card_must_have(name: str) -> None:
    kernel = parse_kernel("kernel k\n" + ALL[name])
    for step in kernel.steps:
        division = kernel.divisions.get(step.name, Division())
        least = lx_peak(kernel, step, division, replace(SPYRE_CARD_V1, lx_usable=0))
        most = lx_peak(kernel, step, division, SPYRE_CARD_V1, Buffering.COPIES)
        assert 0 < least <= most
        assert least <= lx_peak(kernel, step, division, SPYRE_CARD_V1)


def test_capacities_use_the_upper_ends_of_limits() -> None:
    limits = {"n": (3, 100), "m": (1, 8)}
    assert highest(parse("n*m + 3 - m"), limits) == 802
    assert value_range(parse("n // 7 - n % 7"), limits) == (-6, 14)
    assert highest(parse("min(n, 10) - max(n, 20)"), limits) == 0
    with pytest.raises(BrokenInvariant, match="the size k has no limits"):
        highest(parse("k + 1"), limits)


def test_lanes_are_looked_up_once_for_an_op_of_many_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(kernel: Kernel, op: Op) -> str | None:
        asked.append(op.name)
        return lane_dim(kernel, op)

    monkeypatch.setattr("openspyre.compiler.tiles.lane_dim", counted)
    window = " + ".join(f"x?[i0 + {n}, i1 + {n}]" for n in range(25))
    kernel = parse_kernel(f"""
kernel window
arguments x y
input x: f32[40, 40]
output y: f32[32, 32]
op sum0 map i0:32 i1:32
  y[i0, i1] <- {window}
""")
    step = Step("s0", ("sum0",), kernel.ops[0].dims, {"sum0": {"i0": "i0", "i1": "i1"}})
    assert len(step_tiles(kernel, step, Division(), SPYRE_CARD_V1).operands) == 25
    assert asked == ["sum0"]


WHOLE = """
arguments x w y
input x: f16[70, 200]
input w: f16[300, 200]
output y: f16[70, 300]
op y contract i0:70 i1:300 | r0:200
  y[i0, i1] <- sum: x[i0, r0] * w[i1, r0]
step s0: y
  axes i0:70 i1:300
  bind y: i0=i0 i1=i1
  loops i1/64
  inner y: r0/64
division s0: i0 parts 3 stride 1 granule 1, i1 parts 2 stride 3 granule 64
"""


def test_an_operand_that_the_steps_loops_do_not_change_is_loaded_whole_before_them() -> None:
    found = {t.tensor: t for t in plan(WHOLE).tiles if t.content is Content.OPERAND}
    assert (found["x"].depth, found["x"].slots) == (0, 1)
    assert found["x"].bytes >= 24 * 200 * 2  # all of k, for a core's rows
    assert found["w"].depth == 2
    check_on_card(parse_kernel("kernel whole\n" + WHOLE))


def test_it_comes_in_parts_where_lx_is_too_small_for_the_whole() -> None:
    found = {t.tensor: t for t in plan(WHOLE, lx=8192).tiles if t.content is Content.OPERAND}
    assert found["x"].depth == 2
