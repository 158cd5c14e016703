"""Hints: what the user fixes is in the plan, the rest is decided, and wrong hints say why."""

from __future__ import annotations

import pytest

from openspyre.compiler.hinted import divide_as_told
from openspyre.compiler.pipeline import STAGES, TOLD_STAGES, plan_kernel
from openspyre.errors import InvalidHint, InvalidKernel
from openspyre.ir.kernel import Kernel, Loop, Space
from openspyre.ir.text import parse_kernel, print_kernel
from openspyre.runtime.programs import program_key
from openspyre.spec import SPYRE_CARD_V1
from tests.hinted_kernels import TWO, told
from tests.random_kernels import problem

LARGE = """kernel large
HINTS
arguments x z
input x: f32[n, 100000]
output z: f32[n, 100000]
op a map i0:64 i1:100000
  z[i0, i1] <- exp(x[i0, i1])
""".replace("n,", "64,")


def planned(*hints: str, text: str = TWO) -> Kernel:
    return plan_kernel(told(*hints, text=text), SPYRE_CARD_V1)


def parts(kernel: Kernel, step: str) -> dict[str, int]:
    return {part.axis: part.parts for part in kernel.divisions[step].parts}


def refusal(*hints: str, text: str = TWO) -> str:
    with pytest.raises(InvalidHint) as caught:
        planned(*hints, text=text)
    return str(caught.value)


def test_hints_are_text() -> None:
    kernel = told("division s0.i0: 8", "tile i0: 2", "tile a.r0: 64", "residency t: device")
    assert parse_kernel(print_kernel(kernel)) == kernel
    assert [str(h) for h in kernel.hints][2:] == ["tile a.r0: 64", "residency t: device"]
    assert program_key(kernel, SPYRE_CARD_V1) != program_key(told(), SPYRE_CARD_V1)
    for wrong in ("division i0: lx", "residency t: 4", "layout t: 1", "division i0 8"):
        with pytest.raises(InvalidKernel):
            told(wrong)


def test_only_stages_that_take_hints_differ() -> None:
    differ = [a[0] for a, b in zip(STAGES, TOLD_STAGES, strict=True) if a != b]
    assert differ == ["divide", "fit_tiles", "place", "load_early"]


def test_a_division_is_fixed_in_all_steps_or_in_one() -> None:
    every = planned("division i0: 4")
    assert [parts(every, s.name)["i0"] for s in every.steps] == [4, 4]
    one = planned("division s1.i0: 4")
    assert parts(one, "s1")["i0"] == 4
    assert one.divisions["s0"] == planned().divisions["s0"]


def test_what_is_not_fixed_is_still_decided() -> None:
    assert parts(planned("division s0.i1: 4"), "s0")["i0"] > 1  # cores are left for it
    assert planned("division s0.i0: 1").divisions["s0"] != planned().divisions["s0"]


def test_uneven_parts() -> None:
    kernel = told("division i0: 7", "division i1: 3")
    assert parts(plan_kernel(kernel, SPYRE_CARD_V1), "s0") == {"i0": 7, "i1": 3}
    assert problem(kernel) == ""


def test_a_tile_is_fixed() -> None:
    kernel = planned("division i0: 4", "tile s1.i0: 5")
    assert kernel.steps[1].loops == (Loop("i0", 5),)
    assert problem(told("division i0: 4", "tile i0: 5")) == ""


def test_a_whole_tile_is_no_loop() -> None:
    assert planned("division i0: 4", "tile i0: 16").steps[0].loops == ()


def test_a_tile_of_an_ops_own_dim() -> None:
    kernel = told("tile a.r0: 100")
    step = plan_kernel(kernel, SPYRE_CARD_V1).steps[0]
    assert step.inner["a"] == (Loop("r0", 100),)
    assert problem(kernel) == ""


def test_a_tensor_stays_in_device_memory_or_in_lx() -> None:
    alike = ("division i0: 1", "division i1: 4")
    for space in Space:
        kernel = told(*alike, f"residency t: {space.value}")
        assert plan_kernel(kernel, SPYRE_CARD_V1).residency["t"].space is space
        assert problem(kernel) == ""


def test_no_hints_no_change() -> None:
    kernel = plan_kernel(told(), SPYRE_CARD_V1)
    assert plan_kernel(told(), SPYRE_CARD_V1, stages=TOLD_STAGES) == kernel
    assert divide_as_told(kernel, SPYRE_CARD_V1).divisions == kernel.divisions


def test_unknown_names_are_refused() -> None:
    assert refusal("division i7: 2") == (
        "the hint division i7: 2 names no dim of two\n"
        "  why: what can have a division is what the plan's text shows\n"
        "  try: one of s0.i0, s0.i1, s1.i0, s1.i1; kernel=NAME keeps a hint from other kernels"
    )
    assert "names no dim" in refusal("division s2.i0: 2")
    assert "names no dim" in refusal("division a.r0: 2")  # no axis: sums are not split
    assert "s0.a.r0" in refusal("tile a.r1: 2")
    assert "one of t" in refusal("residency x: lx")
    assert "this kernel has no such tensors" in refusal("residency x: lx", text=LARGE)


def test_too_many_parts_are_refused() -> None:
    assert "it takes 64 cores, the card has 32" in refusal("division i0: 32", "division i1: 2")
    found = refusal("division i1: 5")
    assert "i1 of step s0 has 256 points, shared in whole granules of 64" in found
    assert "at most 4 parts" in found


def test_tiles_that_do_not_fit_are_refused() -> None:
    assert "at most 2" in refusal("division i0: 32", "tile i0: 3")
    hints = ("division i0: 1", "division i1: 1", "tile i0: 64", "tile i1: 100000")
    found = refusal(*hints, text=LARGE)
    assert "does not fit LX" in found
    assert f"a core has {SPYRE_CARD_V1.lx_usable}" in found
    fits = int(found.split("a tile of ")[1].split(" ")[0])
    assert planned(*hints[:2], f"tile i0: {fits}", "tile i1: 100000", text=LARGE)
    assert problem(told(*hints[:2], f"tile i0: {fits}", hints[3], text=LARGE)) == ""


def test_a_tensor_stays_though_steps_need_other_parts() -> None:
    kernel = told("division s0.i0: 8", "division s1.i0: 32", "residency t: lx")
    assert plan_kernel(kernel, SPYRE_CARD_V1).residency["t"].space is Space.LX
    assert problem(kernel) == ""


def test_a_tensor_that_cannot_stay_is_refused() -> None:
    looked_up = TWO.replace(
        "op c map i0:64 i1:256", "op c gather i0:64 i1:256\n  lookup k0 = n[i0] size 64"
    )
    looked_up = looked_up.replace("t[i0, i1])", "t[k0, i1])").replace("v z y", "v n z y")
    looked_up = looked_up.replace("input v:", "input n: i64[64]\ninput v:")
    found = refusal("residency t: lx", text=looked_up)
    assert "do not need it in the same parts, and cannot fetch" in found
    assert "fix the division of its steps alike" in found
    large = TWO.replace("[64, 256]", "[16384, 4096]").replace("i0:64 i1:256", "i0:16384 i1:4096")
    large = large.replace("w: f16[256, 256]", "w: f16[4096, 4096]").replace("r0:256", "r0:4096")
    large = large.replace("v: f16[64, 64]", "v: f16[16384, 16384]").replace("r0:64", "r0:16384")
    assert "find no room beside the tiles" in refusal("residency t: lx", text=large)
