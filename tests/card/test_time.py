"""Laws of the time engine: what card.md measures or fixes must come out of the mechanisms."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from openspyre.card.native import Report
from openspyre.card.report import times_bound
from openspyre.errors import BrokenInvariant, CardError
from openspyre.ir.kernel import DType
from openspyre.ir.ops import LOAD, TABLE
from openspyre.ir.program import (
    Axis,
    Bound,
    Copy,
    Given,
    Indirect,
    Origin,
    Program,
    Pt,
    Section,
    Slot,
    SlotDef,
    Term,
    TileLoop,
    Vec,
    VecOp,
    VecOut,
)
from openspyre.spec import SPYRE_CARD_V1
from tests.card.hand_programs import (
    F32,
    I64,
    buffers,
    copies,
    copy_section,
    device,
    loads,
    local,
    matmul,
    multiplications,
    pointwise,
    program,
)
from tests.card.time_engine import timed

SPEC = SPYRE_CARD_V1


def nanoseconds(report: Report) -> float:
    return SPEC.microseconds(report.cycles) * 1000


# --- device memory --------------------------------------------------------------------------


def test_a_big_read_reaches_the_one_way_rate() -> None:
    report = timed(loads(4096, 4096, 32))
    assert report.device_read_bytes == 4096 * 4096 * 2
    rate = report.device_read_bytes / nanoseconds(report)
    assert 0.95 * SPEC.dram_oneway <= rate <= SPEC.dram_oneway


MEASURED_RATES = {1: 16.5, 2: 33, 4: 64.5, 8: 81, 16: 81, 22: 103.2, 25: 117.3, 32: 150}  # B/ns


def rate_of(cores: int) -> float:
    """Law of device memory's rate by cores (card.md 1.3: g(c), and partitioned reads)."""
    many = max(SPEC.dram_few_cores, SPEC.dram_partitioned_per_core * cores)
    return min(SPEC.dram_oneway, SPEC.dram_per_core * cores, many)


@pytest.mark.parametrize("cores", MEASURED_RATES)
def test_partitioned_reads_scale_with_cores(cores: int) -> None:
    assert rate_of(cores) == pytest.approx(MEASURED_RATES[cores], rel=0.03)
    report = timed(loads(4400, 4096, cores))
    rate = report.device_read_bytes / nanoseconds(report)
    assert 0.93 * rate_of(cores) <= rate <= rate_of(cores)


def test_a_core_that_reads_alone_keeps_to_its_port() -> None:
    """Of 32 cores one has much more to read: the others are done early."""
    axes = (Axis("m", 2048 * 31 + 1, 32, 1, 2048), Axis("n", 64))
    steps = ((0, 128), (1, 2))
    body = (TileLoop(0, 64, (Copy((0, 1), device(0, steps), local(0, steps)),)),)
    most = timed(program(1, buffers((64 * 128, 2)), Section("s", axes, body)))
    assert nanoseconds(most) >= 2048 * 128 / SPEC.dram_per_core


def test_reading_and_writing_pay_the_turnaround() -> None:
    report = timed(copies(4096, 4096, 32))
    half = report.device_read_bytes
    assert report.device_write_bytes == half
    law = 2 * half / SPEC.dram_oneway + SPEC.dram_turnaround * half
    assert law <= nanoseconds(report) <= 1.03 * law


def test_a_small_read_costs_its_latency() -> None:
    report = timed(loads(1, 64, 1))
    assert report.cycles >= SPEC.dram_latency_ns * SPEC.clock_ghz
    assert nanoseconds(report) < SPEC.dram_latency_ns + 100


def test_short_runs_pay_the_floor_per_request() -> None:
    columns, runs = 64, 32 * 256
    steps = ((0, columns * 2 * 64), (1, 2))  # one stick every 64
    body = (Copy((0, 1), device(0, steps), local(0, ((0, columns * 2), (1, 2)))),)
    axes = (Axis("m", runs, 32), Axis("n", columns))
    section = Section("s", axes, (TileLoop(0, 64, body),))
    report = timed(program(1, buffers((64 * 128, 2)), section))
    assert report.device_read_bytes == runs * 128
    assert nanoseconds(report) >= runs * SPEC.dram_request_ns
    assert nanoseconds(report) <= 1.15 * runs * SPEC.dram_request_ns


def test_unaligned_rows_cost_the_sticks_they_touch() -> None:
    one_row = timed(loads(1, 64, 1), addresses=[4096])
    shifted = timed(loads(1, 64, 1), addresses=[4096 + 2])
    assert (one_row.device_read_bytes, shifted.device_read_bytes) == (128, 256)


def test_addresses_matter_only_modulo_a_stick() -> None:
    assert timed(copies(33, 100, 4), addresses=[0, 128]) == timed(
        copies(33, 100, 4), addresses=[1 << 40, 1 << 33]
    )


def test_a_strided_read_moves_every_stick_of_its_span() -> None:
    steps = ((0, 8),)  # every fourth f16
    section = Section("s", (Axis("m", 512),), (Copy((0,), device(0, steps), local(0, ((0, 2),))),))
    report = timed(program(1, buffers((1024, 1)), section))
    assert report.device_read_bytes == 512 * 8


def test_a_broadcast_read_moves_its_bytes_once() -> None:
    body = (Copy((0, 1), device(0, ((1, 2),)), local(0, ((0, 128), (1, 2)))),)
    section = Section("s", (Axis("m", 100), Axis("n", 64)), body)
    assert timed(program(1, buffers((12800, 1)), section)).device_read_bytes == 128


@pytest.mark.parametrize("row_stride", [128, 4096])
def test_an_indexed_read_is_one_request_per_index(row_stride: int) -> None:
    rows = 256
    body = (
        Copy((0,), device(0, ((0, 8),), I64), local(0, ((0, 8),), I64)),
        Copy(
            (0, 1), device(1, ((1, 2),)), local(1, ((0, 128), (1, 2))),
            (Indirect(local(0, ((0, 8),), I64), row_stride, 1000, False, False),),
        ),
    )  # fmt: skip
    section = Section("s", (Axis("m", rows), Axis("n", 64)), body)
    report = timed(program(2, buffers((rows * 8, 1), (rows * 128, 1)), section))
    assert report.device_read_bytes == rows * 8 + rows * 128
    assert nanoseconds(report) >= rows * SPEC.dram_request_ns


def test_only_what_lies_in_bounds_is_read() -> None:
    def piece(low: int, high: int) -> Copy:
        inside = Bound((Term(0, 1, Origin.ABSOLUTE),), -low, high - low)
        return Copy((0,), device(0, ((0, 2),)), local(0, ((0, 2),)), (), (inside,))

    def read(low: int, high: int) -> int:
        section = Section("s", (Axis("m", 1024),), (piece(low, high),))
        return timed(program(1, buffers((2048, 1)), section)).device_read_bytes

    assert read(0, 1024) == 2048
    assert read(256, 512) == 512
    assert read(2000, 3000) == 0


def test_adding_stores_read_what_they_change() -> None:
    steps = ((0, 2),)
    store = Copy((0,), local(0, steps), device(0, steps), add=True)
    section = Section("s", (Axis("m", 1024),), (store,))
    report = timed(program(1, buffers((2048, 1)), section))
    assert (report.device_read_bytes, report.device_write_bytes) == (2048, 2048)


def test_a_transposing_copy_runs_at_its_own_rate() -> None:
    # Many readers: then device memory is not what limits one of them.
    def read(local_steps) -> float:
        body = (Copy((1, 2), device(0, ((1, 1024), (2, 2))), local(0, local_steps)),)
        axes = (Axis("c", 32, 32), Axis("m", 512), Axis("n", 512))
        section = Section("s", axes, (TileLoop(0, 1, body),))
        fast = replace(SPEC, multicast_free=32)
        return nanoseconds(timed(program(1, buffers((512 * 512 * 2, 1)), section), spec=fast))

    straight, transposed = read(((1, 1024), (2, 2))), read(((1, 2), (2, 1024)))
    size = 512 * 512 * 2
    assert straight < size / SPEC.dram_oneway * 1.1 + 300
    assert transposed == pytest.approx(size / SPEC.transpose_rate, rel=0.05)


# --- multicast ------------------------------------------------------------------------------


def shared_read(cores: int, size: int = 1 << 19) -> Report:
    """Every core reads the same bytes."""
    body = (Copy((1,), device(0, ((1, 2),)), local(0, ((1, 2),))),)
    section = Section("s", (Axis("c", cores, cores), Axis("n", size // 2)), body)
    return timed(program(1, buffers((size, 1)), section))


def test_shared_bytes_are_read_once_and_travel_the_ring() -> None:
    report = shared_read(8)
    assert report.device_read_bytes == 1 << 19
    assert report.ring_bytes == 7 << 19
    assert shared_read(1).ring_bytes == 0


def test_multicast_is_free_up_to_eight_then_follows_the_law() -> None:
    size = 1 << 19
    latency = SPEC.dram_latency_ns
    for cores in (1, 2, 4, 8, 16, 32):
        law = size / rate_of(cores) * max(1.0, (cores / 8) ** 0.75)
        assert nanoseconds(shared_read(cores)) - latency == pytest.approx(law, rel=0.02), cores


def test_cores_that_read_different_rows_share_nothing() -> None:
    assert timed(loads(64, 64, 32)).ring_bytes == 0


def test_uneven_parts_still_meet() -> None:
    """Cores with fewer tiles of one axis take part in fewer of the shared loads, none hangs."""
    report = timed(matmul(72 * 5, 64 * 7, 128, (5, 3), (64, 64, 64)))
    assert report.cores == 15
    assert report.flop == 2 * 72 * 5 * 64 * 7 * 128


# --- folding --------------------------------------------------------------------------------


def adding(cores: int, *, whole: bool = True) -> Report:
    """Every core adds f16[256, 256] to the same bytes, or to bytes of its own."""
    size = 256 * 256 * 2
    steps = ((1, 512), (2, 2))
    place, walked = device(0, steps), (1, 2)
    if not whole:
        place, walked = device(0, ((0, size), *steps)), (0, 1, 2)
    body = (Copy(walked, local(0, steps), place, add=True),)
    axes = (Axis("c", cores, cores), Axis("m", 256), Axis("n", 256))
    return timed(program(1, buffers((size, 1)), Section("s", axes, body)))


def test_sums_of_several_cores_are_stored_once() -> None:
    one, eight = adding(1), adding(8)
    assert (eight.device_read_bytes, eight.device_write_bytes) == (1 << 17, 1 << 17)
    assert (one.device_read_bytes, one.ring_bytes) == (1 << 17, 0)
    assert eight.ring_bytes == 7 << 17
    apart = adding(8, whole=False)
    assert (apart.device_write_bytes, apart.ring_bytes) == (8 << 17, 0)


def test_folding_takes_its_time_per_output_element() -> None:
    fast = replace(SPEC, dram_oneway=1e6, dram_few_cores=1e6, dram_per_core=1e5, dram_peak=1e7,
                   dram_turnaround=1e-9, dram_request_ns=1e-3)  # fmt: skip
    size = 256 * 256 * 2
    steps = ((1, 512), (2, 2))
    body = (Copy((1, 2), local(0, steps), device(0, steps), add=True),)
    axes = (Axis("c", 4, 4), Axis("m", 256), Axis("n", 256))
    report = timed(program(1, buffers((size, 1)), Section("s", axes, body)), spec=fast)
    assert nanoseconds(report) == pytest.approx(65536 / SPEC.psum_rate + SPEC.dram_latency_ns, 0.01)


def test_cores_that_share_k_multiply_on_fewer_corelets() -> None:
    def busy(parts: int) -> float:
        steps = ((0, 4096), (2, 2)), ((2, 512), (1, 2)), ((0, 1024), (1, 4))
        a, b, c = (local(n, s, F32 if n == 2 else DType.F16) for n, s in enumerate(steps))
        axes = (Axis("m", 64), Axis("n", 256), Axis("k", 512 * parts, parts))
        held = buffers((64 * 4096, 1), (512 * 512, 1), (64 * 1024, 1))
        body = (Pt((), (0,), (1,), (2,), a, b, c),)
        return timed(program(0, held, Section("s", axes, body))).pt_busy / parts

    assert busy(2) == pytest.approx(busy(1) * SPEC.corelets / SPEC.ksplit_corelets, rel=0.001)


# --- units, tokens, sections ----------------------------------------------------------------


def test_double_buffering_overlaps() -> None:
    # Loads and exponentials of one tile take about the same time.
    ops = ["exp"]
    one = timed(pointwise(64, 4096, 1, ops, slots=1))
    two = timed(pointwise(64, 4096, 1, ops, slots=2))
    longest = max(two.load_busy, two.sfu_busy, two.store_busy)
    assert one.cycles >= 1.2 * two.cycles
    assert longest <= two.cycles <= 1.35 * longest


def test_buffers_that_share_bytes_wait_for_each_other() -> None:
    program_ = pointwise(64, 4096, 1, ["exp"], slots=2)
    apart = timed(program_)
    first, second = program_.buffers[:2]
    shared = (first, replace(second, offset=first.offset), *program_.buffers[2:])
    together = timed(replace(program_, buffers=shared))
    assert together.cycles >= 1.2 * apart.cycles


def test_a_barrier_adds_the_sections() -> None:
    section = copy_section(512, 512, 32)
    held = buffers((8 * 1024, 2))
    once = timed(program(2, held, section))
    twice = timed(program(2, held, section, replace(section, name="again")))
    hops = SPEC.cores // 2 * SPEC.ring_hop_cycles
    assert abs(twice.cycles - (2 * once.cycles + hops)) <= 2
    assert twice.instructions == 2 * once.instructions


def test_work_on_more_cores_is_never_slower() -> None:
    cycles = [timed(pointwise(512, 1024, c, ["exp", "mul"])).cycles for c in (1, 2, 4, 8, 16, 32)]
    assert cycles == sorted(cycles, reverse=True)
    assert cycles[-1] < cycles[0] / 8


def test_time_grows_with_size() -> None:
    by_rows = [timed(pointwise(rows, 512, 32, ["add"])).cycles for rows in (32, 64, 256, 1024)]
    assert by_rows == sorted(set(by_rows))
    by_inner = [
        timed(matmul(256, 256, k, (4, 8), (64, 32, 64))).cycles for k in (64, 128, 512, 1024)
    ]
    assert by_inner == sorted(set(by_inner))


def test_the_same_program_takes_the_same_cycles() -> None:
    assert timed(matmul(300, 500, 200, (4, 8), (64, 64, 64))) == timed(
        matmul(300, 500, 200, (4, 8), (64, 64, 64))
    )


def test_nothing_to_do_takes_no_time() -> None:
    report = timed(copies(0, 64, 4))
    assert (report.cycles, report.instructions, report.cores) == (0, 0, 0)
    empty = timed(program(0, ()))
    assert (empty.cycles, empty.bound_p_cycles) == (0, 0)


def test_sizes_come_from_the_symbol_block() -> None:
    fixed = copies(40, 64, 4)
    axes = (replace(fixed.sections[0].axes[0], extent=Slot(2)), fixed.sections[0].axes[1])
    sized = replace(
        fixed,
        slots=(*fixed.slots, SlotDef(Given.SIZE, 0)),
        sections=(replace(fixed.sections[0], axes=axes),),
        arguments=(2, 1, 0),
    )
    assert timed(sized, (40,)) == timed(fixed)
    assert timed(sized, (80,)).device_read_bytes == 2 * timed(fixed).device_read_bytes


def test_an_empty_reduction_still_writes() -> None:
    """Neutral elements: an axis of no points makes one trip, of the reduction alone."""
    body = (
        Copy((0, 1), device(0, ((0, 128), (1, 2))), local(0, ((0, 128), (1, 2)))),
        Vec(
            (0, 1), (local(0, ((0, 128), (1, 2))),), (), (VecOp(LOAD, F32, (0,)),),
            (VecOut(0, local(1, ((0, 4),), F32), "sum"),),
        ),
    )  # fmt: skip
    section = Section("s", (Axis("m", 4), Axis("r", 0)), (TileLoop(1, 64, body),))
    report = timed(program(1, buffers((512, 1), (128, 1)), section))
    assert report.instructions == 1
    assert report.sfu_busy >= 1


# --- PT -------------------------------------------------------------------------------------


def pt_rate(report: Report) -> float:
    """Multiply-adds per nanosecond of a busy PT."""
    return report.flop / 2 / (report.pt_busy / SPEC.clock_ghz)


@pytest.mark.parametrize("cores", [4, 8, 16, 32])
def test_pt_sustains_the_measured_rate(cores: int) -> None:
    report = timed(multiplications(256, 512, 256, cores=cores))
    assert pt_rate(report) == pytest.approx(1140, rel=0.02)
    assert report.pt_busy / cores >= 0.99 * (report.cycles - 10)


@pytest.mark.parametrize("rows", [8, 11, 16, 24, 32, 48, 64, 100, 128, 256, 512])
def test_pt_fills_with_rows_as_measured(rows: int) -> None:
    fit = 1140 * min(1.0, (rows / SPEC.pt_fill_rows) ** SPEC.pt_fill_exponent)
    assert pt_rate(timed(multiplications(rows, 128, 256))) == pytest.approx(fit, rel=0.10)


def test_pt_pads_to_sticks() -> None:
    padded = timed(multiplications(64, 128, 64)).cycles
    assert timed(multiplications(64, 70, 64)).cycles == padded
    assert timed(multiplications(64, 128, 33)).cycles == padded


def test_pt_of_wide_operands_is_slower() -> None:
    half = pt_rate(timed(multiplications(256, 128, 128)))
    wide = pt_rate(timed(multiplications(256, 128, 128, dtype=F32)))
    assert wide == pytest.approx(half * SPEC.pt_f32_rate, rel=0.02)


def test_pt_of_fp8_is_twice_as_fast_and_so_is_its_bound() -> None:
    half = timed(multiplications(256, 128, 128))
    fp8 = timed(multiplications(256, 128, 128, dtype=DType.F8E4M3))
    assert pt_rate(fp8) == pytest.approx(pt_rate(half) * SPEC.pt_fp8_rate, rel=0.02)
    assert fp8.flop == half.flop
    assert fp8.bound_p_cycles == pytest.approx(half.bound_p_cycles / SPEC.pt_fp8_rate, rel=0.01)
    assert fp8.cycles >= fp8.bound_p_cycles


def test_fp8_pads_to_its_own_sticks() -> None:
    padded = timed(multiplications(64, 128, 128, dtype=DType.F8E4M3)).cycles
    assert timed(multiplications(64, 70, 128, dtype=DType.F8E4M3)).cycles == padded


def test_a_matmul_lies_between_its_bounds() -> None:
    report = timed(matmul(512, 4096, 4096, (4, 8), (128, 512, 256)))
    assert report.flop == 2 * 512 * 4096 * 4096
    assert report.device_read_bytes == 2 * (512 * 4096 + 4096 * 4096)
    assert 1.2 <= times_bound(report) <= 1.8  # measured best: 1.55 (card.md 4.6)


# --- SFU ------------------------------------------------------------------------------------


def sfu_cycles(ops: list[str], points: int = 64 * 1024) -> float:
    return timed(pointwise(points // 1024, 1024, 1, ops)).sfu_busy


def test_sfu_takes_a_pass_per_simple_op() -> None:
    points = 64 * 1024
    lanes = SPEC.sfu_lanes * SPEC.corelets
    assert sfu_cycles(["add", "mul", "sub"]) == pytest.approx(3 * points / lanes, rel=0.01)


@pytest.mark.parametrize(("lanes", "pitch"), [(8, 128), (64, 256), (65, 256)])
def test_sfu_takes_a_pass_per_group_of_lanes(lanes: int, pitch: int) -> None:
    """Rows with gaps between them fill no lanes together; rows side by side do."""

    def busy(pitch: int) -> int:
        steps = ((0, pitch), (1, 2))
        add = (VecOp(LOAD, F32, (0,)), VecOp(TABLE["add"].code, F32, (0, 0)))
        vec = Vec((0, 1), (local(0, steps),), (), add, (VecOut(1, local(1, steps)),))
        section = Section("s", (Axis("m", 1024), Axis("n", lanes)), (vec,))
        held = buffers((1024 * pitch, 1), (1024 * pitch, 1))
        return timed(program(0, held, section)).sfu_busy

    groups = -(-lanes // int(SPEC.sfu_lanes))
    assert busy(pitch) == 1024 * groups / SPEC.corelets
    together = -(-1024 * lanes // int(SPEC.sfu_lanes))
    assert busy(2 * lanes) == -(-together // SPEC.corelets)


def test_transcendentals_have_their_own_rate() -> None:
    points = 64 * 1024
    expected = points / SPEC.sfu_transcendental_rate * SPEC.clock_ghz
    assert sfu_cycles(["exp"]) == pytest.approx(expected, rel=0.01)


def reduction(steps_in, kept: int, points: int = 512) -> float:
    """SFU cycles of a sum that keeps axis `kept` of (0, 1)."""
    body = (
        Vec(
            (0, 1), (local(0, steps_in),), (), (VecOp(LOAD, F32, (0,)),),
            (VecOut(0, local(1, ((kept, 4),), F32), "sum"),),
        ),
    )  # fmt: skip
    section = Section("s", (Axis("m", points), Axis("n", points)), body)
    return timed(program(0, buffers((points * points * 2, 1), (points * 4, 1)), section)).sfu_busy


def test_row_reductions_run_at_the_measured_rate() -> None:
    rows = reduction(((0, 1024), (1, 2)), kept=0)
    assert rows == pytest.approx(512 * 512 / SPEC.sfu_reduce_rate * SPEC.clock_ghz, rel=0.01)
    columns = reduction(((0, 1024), (1, 2)), kept=1)
    assert columns < rows / 4  # lane by lane


def test_strided_lanes_run_at_the_transpose_rate() -> None:
    straight = reduction(((0, 1024), (1, 2)), kept=1)
    strided = reduction(((0, 2), (1, 1024)), kept=1)
    size = 512 * 512 * 2
    assert strided == pytest.approx(size / SPEC.transpose_rate * SPEC.clock_ghz, rel=0.01)
    assert straight < strided


# --- the report -----------------------------------------------------------------------------


def test_every_report_respects_its_bounds() -> None:
    programs = (
        copies(100, 300, 7),
        pointwise(33, 65, 5, ["exp", "add"]),
        matmul(65, 129, 200, (4, 2), (16, 64, 64)),
        multiplications(8, 64, 64, cores=3),
    )
    for one in programs:
        report = timed(one)
        assert report.cycles >= report.bound_p_cycles
        for busy in (report.pt_busy, report.sfu_busy, report.load_busy, report.store_busy,
                     report.ring_busy):  # fmt: skip
            assert busy <= report.cycles * report.cores + 1
        assert report.lx_peak == max(b.offset + b.bytes * b.slots for b in one.buffers)


def test_int8_and_bool_move_one_byte_per_element() -> None:
    for dtype in (DType.I8, DType.BOOL):
        copy = Copy((0,), device(0, ((0, 1),), dtype), local(0, ((0, 1),), dtype))
        section = Section("s", (Axis("m", 4096),), (copy,))
        assert timed(program(1, buffers((4096, 1)), section)).device_read_bytes == 4096


def test_a_program_too_long_to_time_says_so() -> None:
    with pytest.raises(CardError, match="too many instructions to time"):
        timed(copies(1 << 30, 1, 1, tile=1))


@pytest.mark.parametrize(
    ("numbers", "one", "message"),
    [
        ({"dram_peak": 10.0}, loads(512, 4096, 32), "faster than bound P"),
        ({"pt_sustain": 1.5}, multiplications(512, 128, 128), "PT ran faster than its peak"),
        (
            {"sfu_transcendental_rate": 1e6},
            pointwise(8, 128, 1, ["exp"] * 4),
            "SFU ran faster than its peak",
        ),
    ],
)
def test_an_impossible_card_breaks_the_engines_own_rules(
    numbers: dict[str, float], one: Program, message: str
) -> None:
    """The bounds are checked at every launch: a card whose rates contradict them shows it."""
    with pytest.raises(BrokenInvariant, match=message):
        timed(one, spec=replace(SPEC, **numbers))


def test_units_of_a_core_share_the_ports_of_its_lx() -> None:
    """PT and SFU work at the same time on other bytes; what both read passes one port."""
    times, rows, lanes = 64, 80, 128
    alone = multiplications(8, 64, 64, times=times)
    section = alone.sections[0]
    loop = section.body[0]
    assert isinstance(loop, TileLoop)
    held = buffers((8 * 128, 1), (64 * 128, 1), (8 * 256, 1), *[(rows * lanes * 2, 1)] * 2)
    axes = (*section.axes, Axis("rows", rows), Axis("lanes", lanes))
    steps = ((4, lanes * 2), (5, 2))
    passed = Vec(
        (4, 5), (local(3, steps),), (), (VecOp(LOAD, F32, (0,)),), (VecOut(0, local(4, steps)),)
    )
    pt, sfu, both = (
        timed(program(0, held, Section("s", axes, (TileLoop(3, 1, body),)))).cycles
        for body in (loop.body, (passed,), (*loop.body, passed))
    )
    port = SPEC.lx_bytes_per_cycle * SPEC.corelets
    read = times * (64 * (8 + 64) * 2 + rows * lanes * 2) / port
    assert max(pt, sfu) < 0.9 * read
    assert both == math.ceil(read)
