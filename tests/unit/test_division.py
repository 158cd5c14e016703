"""Work division: cores used, uneven parts, what may not be split."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openspyre.compiler.cost import Work, splits
from openspyre.compiler.emit import emit
from openspyre.compiler.pipeline import plan_kernel
from openspyre.ir.kernel import Division, Kernel, Part, Space
from openspyre.ir.program import Copy, Node, TileLoop
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1


def planned(text: str) -> Kernel:
    return plan_kernel(parse_kernel(text), SPYRE_CARD_V1)


def only_division(kernel: Kernel) -> Division:
    (division,) = kernel.divisions.values()
    return division


ADD = """
kernel add
arguments x y
input x: f16[{0}, {1}]
output y: f16[{0}, {1}]
op add0 map i0:{0} i1:{1}
  y[i0, i1] <- f16(x[i0, i1] + 1.0)
"""


@pytest.mark.parametrize(
    ("rows", "columns", "cores"),
    [(4096, 512, 32), (1, 1, 1), (1, 16, 1), (1, 4096, 11), (7, 2048, 28), (0, 64, 1)],
)
def test_cores_follow_the_work(rows: int, columns: int, cores: int) -> None:
    kernel = planned(ADD.format(rows, columns))
    used = max((d.cores for d in kernel.divisions.values()), default=1)
    assert used >= cores if cores > 1 else used == 1


@pytest.mark.parametrize(("columns", "granule"), [(5000, 64), (1000, 16)])
def test_sticks_are_cut_only_where_cores_would_idle(columns: int, granule: int) -> None:
    division = only_division(planned(ADD.format(1, columns)))
    assert [p.granule for p in division.parts] == [granule]
    # Device memory takes as long for a request of one stick as for one of four, and from 5 cores
    # to 16 draw the same from it.
    assert division.cores >= 5


def test_rows_that_repeat_are_not_split() -> None:
    division = only_division(
        planned("""
kernel add
arguments x ids y
input x: f32[1000, 512]
input ids: i64[1000]
mutated y: f32[10, 512]
op put scatter i0:1000 i1:512
  lookup k = ids[i0] size 10
  y[k, i1] += x[i0, i1]
""")
    )
    assert [p.axis for p in division.parts] == ["i1"]
    # 32 would each add to half a stick of a row; 5 draw as much from device memory as 16
    assert division.cores >= 5


CACHE = """
kernel cache
arguments x first y
input x: f16[256, 1024]
mutated first: i64[]
mutated y: f16[8, {rows}, 128]
local at: i64[256]
op count map i0:256
  at[i0] <- {index}
op put scatter i0:8 i1:256 i2:2 i3:64
  lookup k = at[i1] size {rows} wrap
  y[i0, k, 64*i2 + i3] <- x[i1, 128*i0 + 64*i2 + i3]
"""


@pytest.mark.parametrize(
    ("index", "rows", "split"),
    [
        ("idx[i0] + first[]", 256, True),
        ("first[] - idx[2*i0]", 512, True),
        ("first[] - idx[2*i0]", 510, False),  # -1 and 509 are the same row
        ("idx[i0] + first[]", 255, False),
        ("min(idx[i0], first[])", 256, False),
        ("idx[0] + first[]", 256, False),
    ],
)
def test_rows_that_the_kernel_counts_are_split(index: str, rows: int, *, split: bool) -> None:
    kernel = planned(CACHE.format(index=index, rows=rows))
    step = next(s for s in kernel.steps if "put" in s.ops)
    assert ("i1" in step.binding["put"]) == split
    assert kernel.divisions[step.name].cores == 32 or not split
    stores = [n for s in emit(kernel, SPYRE_CARD_V1).sections for n in indirect_stores(s.body)]
    assert [i.distinct for copy in stores for i in copy.indirect] == [split]


def test_counted_rows_that_a_narrow_tensor_cannot_hold_are_not_split() -> None:
    text = CACHE.replace("at: i64", "at: i8").format(index="idx[i0] + first[]", rows=256)
    step = next(s for s in planned(text).steps if "put" in s.ops)
    assert "i1" not in step.binding["put"]


def indirect_stores(body: tuple[Node, ...]) -> Iterator[Copy]:
    for node in body:
        match node:
            case TileLoop(body=inner):
                yield from indirect_stores(inner)
            case Copy(indirect=found) if found and node.target.space is Space.DEVICE:
                yield node


def test_a_dim_that_is_stored_along_may_walk_the_indices() -> None:
    kernel = planned("""
kernel columns
arguments x at y
input x: f32[64, 512]
input at: i64[64, 512]
mutated y: f32[100, 512]
op put scatter i0:64 i1:512
  lookup k = at[i0, i1] size 100
  y[k, i1] <- x[i0, i1]
""")
    assert [p.axis for p in only_division(kernel).parts] == ["i1"]


def test_dims_that_meet_in_an_element_are_not_split() -> None:
    kernel = planned("""
kernel meeting
arguments x at y
input x: f32[16, 8, 512]
input at: i64[512]
mutated y: f32[100, 40]
op put scatter i0:16 i1:8 i2:512
  lookup k = at[i2] size 100
  y[k, 2*i0 + i1] <- x[i0, i1, i2]
""")
    assert [step.axes for step in kernel.steps] == [()]


def test_a_scanned_dim_is_not_split() -> None:
    kernel = planned("""
kernel scan
arguments x y
input x: f32[6, 1000]
output y: f32[6, 1000]
op run0 scan i0:6 | r0:1000
  y[i0, r0] <- sum: x[i0, r0]
""")
    assert [p.axis for p in only_division(kernel).parts] == ["i0"]


def points(extent: int, part: Part, core: int) -> range:
    """What a core holds of an axis, by the words of `kernel.Part`."""
    grains = -(-extent // part.granule)
    at = (core // part.stride) % part.parts
    low, high = at * grains // part.parts, (at + 1) * grains // part.parts
    return range(low * part.granule, min(high * part.granule, extent))


@given(st.lists(st.integers(1, 300), min_size=1, max_size=3), st.sampled_from([1, 64]))
@settings(max_examples=40, deadline=None)
def test_every_split_covers_every_point_once(extents: list[int], granule: int) -> None:
    work = Work(tuple(extents), (granule,) * len(extents))
    for split in splits(work, SPYRE_CARD_V1)[:5]:
        total = 1
        for parts in split:
            total *= parts
        assert total <= SPYRE_CARD_V1.cores
        for extent, parts in zip(extents, split, strict=True):
            part = Part("a", parts, 1, granule)
            held = [p for core in range(parts) for p in points(extent, part, core)]
            assert sorted(held) == list(range(extent))
