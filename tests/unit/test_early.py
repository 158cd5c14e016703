"""Operands that are loaded during an earlier step: which, when, and that values stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from openspyre.card.native import Report
from openspyre.compiler.alternatives import step_choices
from openspyre.compiler.cost import Loads, Pace
from openspyre.compiler.early import Item, Stop, load_early, soonest
from openspyre.compiler.emit import emit
from openspyre.compiler.lx_room import Room
from openspyre.compiler.packing import Span, highest_fit
from openspyre.compiler.residency import far_tensors, place
from openspyre.compiler.step_forms import Forms
from openspyre.compiler.tiles import Tile
from openspyre.compiler.weights import keep_weights
from openspyre.ir import verify
from openspyre.ir.binary import decode, encode
from openspyre.ir.kernel import Kernel, Residency
from openspyre.ir.program import Copy, Ring, rounds
from openspyre.ir.text import parse_kernel
from openspyre.ir.text_program import parse_program, print_program
from openspyre.spec import SPYRE_CARD_V1
from tests.card_runner import check_interpreted, check_on_card, random_inputs, run_program

# Step s0 computes for long, step s1 multiplies by v.
BUSY = """kernel busy
arguments x v y
input x: f16[64, 128]
input v: f16[128, 128]
output y: f16[64, 128]
local t: f16[64, 128]
op a map i0:64 i1:128
  t[i0, i1] <- exp(tanh(exp(tanh(exp(tanh(exp(tanh(x[i0, i1]))))))))
op b contract i0:64 i1:128 | r0:128
  y[i0, i1] <- sum: t[i0, r0] * v[r0, i1]
layout t: 0 1
step s0: a
  axes i0:64 i1:128
  bind a: i0=i0 i1=i1
step s1: b
  axes i0:64
  bind b: i0=i0
division s0: i0 parts 8 stride 1 granule 1
division s1: i0 parts 8 stride 1 granule 1
"""
# A first step that holds a matrix as large as v.
LARGE = (
    BUSY.replace("arguments x", "arguments u x")
    .replace("input x", "input u: f16[128, 128]\ninput x")
    .replace("local t", "local s: f16[64, 128]\nlocal t")
    .replace("x[i0, i1]", "s[i0, i1]")
    .replace(
        "op a",
        "op c contract i0:64 i1:128 | r0:128\n  s[i0, i1] <- sum: x[i0, r0] * u[r0, i1]\nop a",
    )
    .replace("layout t", "layout s: 0 1\nlayout t")
    .replace(
        "step s0: a\n  axes i0:64 i1:128\n  bind",
        "step s0: c a\n  axes i0:64 i1:128\n  bind c: i0=i0 i1=i1\n  bind",
    )
)
# The same with a step in between.
WRITES_V = (
    BUSY.replace("input v", "mutated v")
    .replace("op b", "op m map i0:128 i1:128\n  v[i0, i1] <- (v[i0, i1] + 1.0)\nop b")
    .replace("step s1", "step sm: m\n  axes i0:128 i1:128\n  bind m: i0=i0 i1=i1\nstep s1")
    .replace("division s1", "division sm: i0 parts 8 stride 1 granule 1\ndivision s1")
)


# A step before, so that the long one finds all it reads in LX.
AFTER = (
    BUSY.replace("local t", "local u: f16[64, 128]\nlocal t")
    .replace(
        "op a map i0:64 i1:128\n",
        "op p map i0:64 i1:128\n  u[i0, i1] <- x[i0, i1] + 1.0\nop a map i0:64 i1:128\n",
    )
    .replace("tanh(x[i0, i1])", "tanh(u[i0, i1])")
    .replace("layout t", "layout u: 0 1\nlayout t")
    .replace("step s0", "step sp: p\n  axes i0:64 i1:128\n  bind p: i0=i0 i1=i1\nstep s0")
    .replace("division s0", "division sp: i0 parts 8 stride 1 granule 1\ndivision s0")
)
# Two matrices for s1.
TWO = (
    BUSY.replace("arguments x v y", "arguments x v w y z")
    .replace("output y", "input w: f16[128, 128]\noutput z: f16[64, 128]\noutput y")
    .replace(
        "layout t",
        "op d contract i0:64 i1:128 | r0:128\n  z[i0, i1] <- sum: t[i0, r0] * w[r0, i1]\nlayout t",
    )
    .replace("step s1: b", "step s1: b d")
    .replace("  bind b: i0=i0\n", "  bind b: i0=i0\n  bind d: i0=i0\n")
)


def placed(text: str) -> Kernel:
    return place(parse_kernel(text), SPYRE_CARD_V1)


def planned(text: str) -> Kernel:
    return load_early(placed(text), SPYRE_CARD_V1)


def kept(text: str) -> Kernel:
    """With a prologue."""
    kernel = place(keep_weights(parse_kernel(text), SPYRE_CARD_V1), SPYRE_CARD_V1)
    return load_early(kernel, SPYRE_CARD_V1)


def cost(kernel: Kernel) -> Report:
    program = emit(kernel, SPYRE_CARD_V1)
    return run_program(program, kernel, random_inputs(kernel))[1]


def early(kernel: Kernel) -> dict[str, tuple[int, int]]:
    """For every tensor that is loaded early: during which step, for which."""
    return {
        name.split(".", 2)[2]: (row.first, row.last)
        for name, row in kernel.residency.items()
        if name not in kernel.tensors and row.first < row.last
    }


def test_an_operand_is_loaded_while_another_step_works() -> None:
    kernel = planned(BUSY)
    assert early(kernel) == {"v": (0, 1)}
    assert not list(verify.placed(kernel, SPYRE_CARD_V1))
    program = emit(kernel, SPYRE_CARD_V1)
    assert [(s.name, s.joins) for s in program.sections] == [
        ("s0", False),
        ("s1 early", True),
        ("s1", False),
    ]
    (load,) = program.sections[1].body
    assert isinstance(load, Copy)
    assert program.sources[load.origin] == "b"  # whose operand it is
    assert program.sections[1].axes == program.sections[2].axes
    assert [len(together) for together in rounds(program.sections)] == [2, 1]
    check_interpreted(kernel)
    check_on_card(kernel)


def test_explain_says_who_loads_it() -> None:
    first, second = step_choices(planned(BUSY), SPYRE_CARD_V1)
    assert (dict(first.early), dict(second.early)) == ({}, {"v": "s0"})
    late = [c for c in step_choices(placed(BUSY), SPYRE_CARD_V1) if c.step.name == "s1"]
    assert second.tiling.cycles < late[0].tiling.cycles  # it need not load v


def test_it_is_sooner() -> None:
    before, after = cost(placed(BUSY)), cost(planned(BUSY))
    assert after.cycles < before.cycles
    assert after.device_read_bytes == before.device_read_bytes


def test_what_a_step_writes_is_not_loaded_before() -> None:
    kernel = planned(WRITES_V)
    assert "v" not in early(kernel)
    check_interpreted(kernel)
    check_on_card(kernel)


def test_what_was_written_before_that_may_be() -> None:
    writer = "step sm: m\n  axes i0:128 i1:128\n  bind m: i0=i0 i1=i1\n"
    kernel = planned(WRITES_V.replace(writer, "").replace("step s0", f"{writer}step s0"))
    assert early(kernel)["v"] == (1, 2)
    check_interpreted(kernel)
    check_on_card(kernel)


def test_beside_weights_that_stay_in_lx() -> None:
    """The first step reads a weight, the second one an operand that comes meanwhile."""
    weighed = LARGE.replace("arguments u x v y", "arguments u x v y\nweights u")
    kernel = kept(weighed)
    assert kernel.prologue == 1
    assert early(kernel) == {"v": (1, 2)}
    assert not list(verify.placed(kernel, SPYRE_CARD_V1))
    program = emit(kernel, SPYRE_CARD_V1)
    assert [(s.name, s.joins) for s in program.sections] == [
        ("keep0", False),
        ("s0", False),
        ("s1 early", True),
        ("s1", False),
    ]
    assert program.prologue == 1
    check_interpreted(kernel)
    check_on_card(kernel)


def test_weights_that_cores_share_are_fetched_meanwhile() -> None:
    """With no room for all of v in every core, each has an 8th and fetches the rest during s0."""
    small = replace(SPYRE_CARD_V1, lx_usable=61_440)
    weighed = BUSY.replace("arguments x v y", "arguments x v y\nweights v")
    before = place(keep_weights(parse_kernel(weighed), small), small)
    assert far_tensors(before)["v.kept"] == {2}
    kernel = load_early(before, small)
    assert early(kernel) == {"v.kept": (1, 2)}
    assert not list(verify.placed(kernel, small))
    joining = emit(kernel, small).sections[2]
    assert joining.joins
    assert [type(node) for node in joining.body] == [Ring]
    assert cost(kernel).cycles < cost(before).cycles
    check_interpreted(kernel)
    check_on_card(kernel)


def test_nothing_is_loaded_early_in_the_prologue() -> None:
    """What the first step behind it reads has no earlier step."""
    weighed = BUSY.replace("arguments x v y", "arguments x v y\nweights x")
    kernel = kept(weighed)
    assert kernel.prologue == 1
    assert early(kernel) == {"v": (1, 2)}
    name = next(n for n in kernel.residency if n.endswith(".v"))
    rows = {**kernel.residency, name: replace(kernel.residency[name], first=0)}
    problems = list(verify.placed(replace(kernel, residency=rows), SPYRE_CARD_V1))
    assert any("is loaded in the prologue, which may be left out" in p for p in problems)


def test_a_full_lx_takes_nothing() -> None:
    kernel = placed(LARGE)
    peak = max(r.offset + r.bytes for r in kernel.residency.values())
    assert early(load_early(kernel, SPYRE_CARD_V1)) == {"v": (0, 1)}
    assert early(load_early(kernel, replace(SPYRE_CARD_V1, lx_usable=peak))) == {}


def test_what_has_no_room_comes_with_its_own_step(monkeypatch: pytest.MonkeyPatch) -> None:
    assert early(planned(TWO)) == {"v": (0, 1), "w": (0, 1)}
    fits, tried = Room.with_early, []

    def for_one(
        room: Room, number: int, tiles: Sequence[Tile], wanted: dict[str, int]
    ) -> dict[str, Residency] | None:
        tried.append(set(wanted))
        return fits(room, number, tiles, wanted) if len(wanted) < 2 else None

    monkeypatch.setattr(Room, "with_early", for_one)
    kernel = planned(TWO)
    assert tried == [{"v", "w"}, {"v"}]
    assert early(kernel) == {"v": (0, 1)}
    check_interpreted(kernel)


def paces(*times: float, server: float) -> tuple[Pace, ...]:
    """Of a step that finds so many operands in LX: device memory is busy while it loads."""
    return tuple(
        Pace(time, 0.0, server * (n == 0), server * (n == 0), 0.0, 0.0, 0.0, 0.0)
        for n, time in enumerate(times)
    )


def test_a_small_operand_passes_a_large_one() -> None:
    """The first step has time for what the third one needs, not for what the second one does."""
    form = Forms(placed(BUSY), SPYRE_CARD_V1, ()).of(0)[0]
    large = Item(("large",), 1024, Loads(3000.0, 3000.0, 0.0), 0)
    small = Item(("small",), 1024, Loads(900.0, 900.0, 0.0), 0)
    stops = [
        Stop((form,), (), (paces(1000.0, server=0.0),), (0.0,)),
        Stop((form,), (large,), (paces(4000.0, 3900.0, server=4000.0),), (0.0,)),
        Stop((form,), (small,), (paces(2000.0, 1100.0, server=900.0),), (0.0,)),
    ]
    assert [found for _, found in soonest(stops, SPYRE_CARD_V1)] == [{}, {}, {"small": 0}]
    full = replace(SPYRE_CARD_V1, lx_usable=form.peak + 1023)
    assert [found for _, found in soonest(stops, full)] == [{}, {}, {}]
    waits = [*stops[:2], replace(stops[2], items=(replace(small, since=1),))]
    assert [found for _, found in soonest(waits, SPYRE_CARD_V1)] == [{}, {}, {}]


def test_a_step_that_loads_nothing_has_all_its_time_for_others() -> None:
    kernel = placed(AFTER)
    forms = Forms(kernel, SPYRE_CARD_V1, ())
    form = forms.of(1)[0]
    pace = forms.pace(1, form)
    assert pace.done == 0.0 < pace.time
    load = forms.loads(2, forms.of(2)[0], ("v",))
    assert 0.0 < load.server < pace.time
    assert pace.cycles_with(load) == pace.time


def test_loads_that_save_nothing_stay() -> None:
    """A step that only loads has no time to give away, but latencies and turning to stores."""
    text = BUSY.replace("exp(tanh(exp(tanh(exp(tanh(exp(tanh(x[i0, i1]))))))))", "x[i0, i1]")
    idle = replace(SPYRE_CARD_V1, dram_latency_ns=0.0, dram_turnaround=0.0)
    assert early(load_early(place(parse_kernel(text), idle), idle)) == {}


def test_sections_that_join_are_text_and_words() -> None:
    program = emit(planned(BUSY), SPYRE_CARD_V1)
    assert parse_program(print_program(program)) == program
    assert decode(encode(program)) == program


def test_the_place_of_what_is_early_is_checked() -> None:
    kernel = planned(BUSY)
    name = next(n for n in kernel.residency if n.endswith(".v"))
    taken = next(r for n, r in kernel.residency.items() if n.startswith("s0."))
    rows = {**kernel.residency, name: replace(kernel.residency[name], offset=taken.offset)}
    problems = list(verify.placed(replace(kernel, residency=rows), SPYRE_CARD_V1))
    assert any(f"the early tile {name} and the tile s0." in p for p in problems)


def test_a_plan_that_loads_before_a_step_writes_is_refused() -> None:
    kernel = planned(WRITES_V)
    name = next(n for n in kernel.residency if n.startswith("s1.") and n.endswith(".v"))
    rows = {**kernel.residency, name: replace(kernel.residency[name], first=0)}
    problems = list(verify.placed(replace(kernel, residency=rows), SPYRE_CARD_V1))
    assert any("before step sm writes v" in p for p in problems)


def test_the_highest_free_place() -> None:
    taken = [Span(0, 256, 0, 0), Span(512, 128, 0, 0)]
    assert highest_fit(100, taken, 1024, 128) == 896
    assert highest_fit(384, taken, 1024, 128) == 640
    assert highest_fit(256, taken, 640, 128) == 256
    assert highest_fit(512, taken, 1024, 128) is None
    assert highest_fit(128, [], 128, 128) == 0
