"""Where locals live, and that nothing in LX overlaps while both are live."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from openspyre.compiler.emit import emit
from openspyre.compiler.packing import Span, best_fit, packed
from openspyre.compiler.pipeline import plan_kernel
from openspyre.compiler.residency import place
from openspyre.ir.kernel import Kernel, Space
from openspyre.ir.program import Copy, Node, Program, Ring, TileLoop
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.card_runner import check_interpreted, check_on_card
from tests.planned_kernels import ALL, TWO_STEPS, replanned


def kernel(text: str) -> Kernel:
    return parse_kernel("kernel k\n" + text)


SLOW_RING = replace(SPYRE_CARD_V1, lx_latency_cycles=1 << 20)
MORE_CORES = (
    TWO_STEPS.format(granule=1).replace("division s0: i0 parts 4", "division s0: i0 parts 2"),
    TWO_STEPS.format(granule=1)  # cores 4 to 7 of the reader have nothing of it
    .replace("axes i0:8\n      bind c: i0=i0", "axes i0:8 i1:40\n      bind c: i0=i0 i1=i1")
    .replace(
        "division s1: i0 parts 4 stride 1 granule 1",
        "division s1: i0 parts 4 stride 1 granule 1, i1 parts 2 stride 4 granule 1",
    ),
)


def count(program: Program, kind: type[Node]) -> int:
    return sum(isinstance(n, kind) for s in program.sections for n in instructions(s.body))


def fetched(text: str, local: str) -> Kernel:
    """A plan in which a step fetches parts of a local from other cores, or, if the ring is slow,
    from device memory.
    """
    by_memory = place(kernel(text), SLOW_RING)
    assert by_memory.residency[local].space is Space.DEVICE
    check_interpreted(by_memory)
    planned = place(kernel(text), SPYRE_CARD_V1)
    assert planned.residency[local].space is Space.LX
    assert count(emit(planned, SPYRE_CARD_V1), Ring) > 0
    check_interpreted(planned)
    check_on_card(planned)
    return planned


def test_a_local_stays_in_lx_when_its_steps_divide_alike() -> None:
    planned = place(kernel(TWO_STEPS.format(granule=1)), SPYRE_CARD_V1)
    assert {planned.residency[n].space for n in "tm"} == {Space.LX}
    check_interpreted(planned)
    program = emit(planned, SPYRE_CARD_V1)
    assert (count(program, Copy), count(program, Ring)) == (3, 0)


@pytest.mark.parametrize("granule", [2, 3])
def test_steps_that_divide_otherwise_fetch_it_on_the_ring(granule: int) -> None:
    planned = fetched(TWO_STEPS.format(granule=granule), "t")
    program = emit(planned, SPYRE_CARD_V1)
    assert (count(program, Copy), count(program, Ring)) == (3, 2)
    assert (
        count(emit(place(kernel(TWO_STEPS.format(granule=granule)), SLOW_RING), SLOW_RING), Copy)
        == 7
    )


@pytest.mark.parametrize("text", MORE_CORES, ids=["more parts", "a replicated reader"])
def test_more_cores_fetch_what_few_hold(text: str) -> None:
    fetched(text, "t")


def test_a_guarded_reader_goes_through_device_memory() -> None:
    text = TWO_STEPS.format(granule=1).replace("(t[i0, i1] - m[i0])", "(t?[i0, i1 - 1] - m[i0])")
    planned = place(kernel(text), SPYRE_CARD_V1)
    assert planned.residency["t"].space is Space.DEVICE
    assert planned.residency["m"].space is Space.LX
    check_interpreted(planned)


@pytest.mark.parametrize("index", ["39 - i0", "i0", "i0 + 1"])
def test_a_reader_that_walks_two_dims_at_once_does_not_read_at_home(index: str) -> None:
    """The core's part of one dim, any part of the other: no one start of i0 serves both."""
    text = TWO_STEPS.format(granule=1).replace("(t[i0, i1] - m[i0])", f"(t[i0, {index}] - m[i0])")
    planned = fetched(text, "t")
    assert planned.residency["m"].space is Space.LX


@pytest.mark.parametrize("index", ["7 - i0, i1", "3, i1", "i0 + 0, 39 - i1"])
def test_a_fetch_walks_any_plain_index(index: str) -> None:
    text = TWO_STEPS.format(granule=2).replace("(t[i0, i1] - m[i0])", f"(t[{index}] - m[i0])")
    fetched(text, "t")


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_an_operand_of_a_matmul_is_fetched(rows: int) -> None:
    fetched(
        f"""
        arguments x w z
        input x: f16[{rows}, 200]
        input w: f16[200, 96]
        output z: f16[{rows}, 96]
        local t: f16[{rows}, 200]
        op a map i0:{rows} i1:200
          t[i0, i1] <- f16(x[i0, i1] * 0.5)
        op b contract i0:{rows} i1:96 | r0:200
          z[i0, i1] <- sum: t[i0, r0] * w[r0, i1]
        step s0: a
          axes i0:{rows} i1:200
          bind a: i0=i0 i1=i1
        step s1: b
          axes i0:{rows} i1:96
          bind b: i0=i0 i1=i1
          inner b: r0/64
        division s0: i0 parts 2 stride 1 granule 1, i1 parts 3 stride 2 granule 64
        division s1: i0 parts 3 stride 2 granule 1, i1 parts 2 stride 1 granule 64
        """,
        "t",
    )


@pytest.mark.parametrize("name", ALL)
def test_live_tiles_never_overlap(name: str) -> None:
    for seed in range(3):
        planned = place(replanned(kernel(ALL[name]), seed), SPYRE_CARD_V1)
        rows = list(planned.residency.items())
        lx = [(n, r) for n, r in rows if r.space is Space.LX]
        assert all(r.offset % 128 == 0 for _, r in rows)
        assert all(r.offset + r.bytes <= SPYRE_CARD_V1.lx_usable for _, r in lx)
        # LX is so large that no two tiles of these kernels share bytes, live or not.
        for number, (_, a) in enumerate(lx):
            for _, b in lx[:number]:
                apart = a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
                assert apart or a.last < b.first or b.last < a.first


def test_locals_of_the_pool_share_bytes_when_they_never_meet() -> None:
    text = """
        arguments x z
        input x: f16[64]
        output z: f16[64]
        local a: f16[64]
        local b: f16[64]
        local c: f16[64]
        op o0 map i0:64
          a[i0] <- f16(x[i0] + 1.0)
        op o1 map i0:64
          b[i0] <- f16(a[i0] + 1.0)
        op o2 map i0:64
          c[i0] <- f16(b[i0] + 1.0)
        op o3 map i0:64
          z[i0] <- f16(c[i0] + 1.0)
        """
    for number in range(4):
        text += f"""
        step s{number}: o{number}
          axes i0:64
          bind o{number}: i0=i0
        division s{number}: i0 parts {number + 1} stride 1 granule 1"""
    planned = place(kernel(text), SLOW_RING)
    assert {planned.residency[n].space for n in "abc"} == {Space.DEVICE}
    assert planned.residency["a"].offset == planned.residency["c"].offset
    assert emit(planned, SPYRE_CARD_V1).pool_bytes == 256
    check_interpreted(planned)


def test_best_fit_takes_the_smallest_gap() -> None:
    taken = [Span(0, 128, 0, 9), Span(512, 128, 0, 9), Span(896, 128, 0, 9), Span(256, 64, 7, 9)]
    assert best_fit(200, 0, 3, taken, 128) == 640
    assert best_fit(300, 0, 3, taken, 128) == 128
    assert best_fit(400, 0, 3, taken, 128) == 1024
    assert best_fit(64, 8, 8, taken, 128) == 128


def test_lifetimes_that_do_not_meet_share_bytes() -> None:
    assert packed([(128, 0, 1), (256, 2, 3), (128, 1, 2)], 128) == ([0, 0, 256], 384)


def test_a_plan_of_a_smaller_lx_keeps_less() -> None:
    whole = kernel(TWO_STEPS.format(granule=1))
    for usable in range(1024, 3200, 128):
        card = replace(SPYRE_CARD_V1, lx_usable=usable)
        check_interpreted(place(whole, card), card=card)


def instructions(body: tuple[Node, ...]) -> Iterator[Node]:
    for node in body:
        if isinstance(node, TileLoop):
            yield from instructions(node.body)
        else:
            yield node


def test_operands_have_bytes_of_their_own_before_they_are_used() -> None:
    chain = "\n".join(
        f"op n{k} map i0:64\n  t{k}[i0] <- {f't{k - 1}' if k else 'x'}[i0] + w{k}[i0]"
        for k in range(6)
    )
    names = [f"w{k}" for k in range(6)]
    declared = [f"input {n}: f32[64]" for n in ("x", *names)]
    declared += [f"local t{k}: f32[64]" for k in range(5)]
    text = "\n".join([f"kernel k\narguments x {' '.join(names)} t5", *declared])
    card = replace(SPYRE_CARD_V1, lx_usable=11 * 128)  # not enough for all tensors side by side
    planned = plan_kernel(parse_kernel(f"{text}\noutput t5: f32[64]\n{chain}"), card)
    (step,) = planned.steps
    tiles = [t for t in emit(planned, card).buffers if t.name.split(".")[-1] in names]
    assert len(tiles) == 6
    assert len(step.ops) == 6
    spans = sorted((t.offset, t.offset + t.bytes * t.slots) for t in tiles)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))


GROWING = """
    symbols n
    limits n:0..70
    arguments x z
    input x: f16[n, 40] strides [40, 1]
    output z: f16[n, 40]
    local t: f16[n, 40]
    op a map i0:n i1:40
      t[i0, i1] <- f16(x[i0, i1] * 0.5)
    op b map i0:n i1:40
      z[i0, i1] <- f16(t[n - 1 - i0, i1] + 1.0)
    step s0: a
      axes i0:n
      bind a: i0=i0
      loops i0/2
    step s1: b
      axes i0:n
      bind b: i0=i0
      loops i0/3
    division s0: i0 parts 4 stride 1 granule 1
    division s1: i0 parts 3 stride 1 granule 2
    """


@pytest.mark.parametrize("size", [0, 1, 2, 3, 9, 69, 70])
def test_a_fetch_at_sizes_that_are_symbols(size: int) -> None:
    planned = place(kernel(GROWING), SPYRE_CARD_V1)
    assert count(emit(planned, SPYRE_CARD_V1), Ring) == 1
    check_interpreted(planned, {"n": size})
    check_on_card(planned, {"n": size})
