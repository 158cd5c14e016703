"""Steps: what runs together, what must not, and that everything fits LX."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openspyre.compiler.canonical import canonicalize
from openspyre.compiler.capacity import fit_tiles
from openspyre.compiler.division import divide
from openspyre.compiler.layout import choose_layouts
from openspyre.compiler.pipeline import plan_kernel
from openspyre.compiler.tiles import Buffering, lx_peak, step_tiles
from openspyre.compiler.tiling import form_steps
from openspyre.errors import Unsupported
from openspyre.ir import verify
from openspyre.ir.kernel import Kernel
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.regions import load_region


def stepped(text: str) -> Kernel:
    kernel = canonicalize(parse_kernel(text), SPYRE_CARD_V1)
    kernel = form_steps(choose_layouts(kernel, SPYRE_CARD_V1), SPYRE_CARD_V1)
    assert list(verify.stepped(kernel, SPYRE_CARD_V1)) == []
    return kernel


def groups(kernel: Kernel) -> list[list[str]]:
    return [list(step.ops) for step in kernel.steps]


def tiled(kernel: Kernel) -> Kernel:
    kernel = fit_tiles(divide(kernel, SPYRE_CARD_V1), SPYRE_CARD_V1)
    for step in kernel.steps:
        peak = lx_peak(kernel, step, kernel.divisions[step.name], SPYRE_CARD_V1)
        assert peak <= SPYRE_CARD_V1.lx_usable
    return kernel


SOFTMAX = """
kernel softmax
symbols n
limits n:0..{high}
arguments x y
input x: f16[n, {width}]
output y: f16[n, {width}]
local m: f32[n, 1]
local s: f32[n, 1]
op max0 reduce i0:n | r0:{width}
  m[i0, 0] <- max: x[i0, r0]
op sum0 reduce i0:n | r0:{width}
  s[i0, 0] <- sum: exp(x[i0, r0] - m[i0, 0])
op div0 map i0:n i1:{width}
  y[i0, i1] <- f16(exp(x[i0, i1] - m[i0, 0]) / s[i0, 0])
"""


def test_softmax_is_one_step_over_its_rows() -> None:
    kernel = stepped(SOFTMAX.format(high=4096, width=300))
    assert groups(kernel) == [["max0", "sum0_exp", "sum0_parts", "sum0", "div0"]]
    assert [str(a.extent) for a in kernel.steps[0].axes] == ["n"]


def test_a_forward_of_minilm_is_a_few_steps() -> None:
    kernel = plan_kernel(load_region("minilm_captured"), SPYRE_CARD_V1)
    assert len(kernel.steps) <= 1 + 4 * 6  # six layers: q k v, attention, and two of the MLP
    assert max(len(step.ops) for step in kernel.steps) >= 12


@pytest.mark.parametrize(("rows", "looped"), [(32, False), (512, True), (1 << 20, True)])
def test_rows_come_in_tiles_so_that_copies_run_beside_the_work(rows: int, looped: bool) -> None:
    kernel = tiled(stepped(SOFTMAX.format(high=rows, width=1000)))
    (step,) = kernel.steps
    assert bool(step.loops) == looped
    if looped:
        division = kernel.divisions[step.name]
        peak = lx_peak(kernel, step, division, SPYRE_CARD_V1, Buffering.COPIES)
        assert peak <= SPYRE_CARD_V1.lx_usable


@pytest.mark.parametrize("rows", [512, 64, 1])
def test_a_linear_reads_its_operands_once(rows: int) -> None:
    kernel = tiled(
        stepped(f"""
kernel linear
arguments x w y
input x: f16[{rows}, 4096]
input w: f16[4096, 4096]
output y: f16[{rows}, 4096]
op dot0 contract i0:{rows} i1:4096 | r0:4096
  y[i0, i1] <- sum: x[i0, r0] * w[i1, r0]
""")
    )
    (step,) = kernel.steps
    walked = {loop.axis for loop in (*step.loops, *step.inner.get("dot0", ()))}
    assert "r0" in walked  # operands stream past a result that stays
    # a loop over rows would read the weights again, one over columns the rows, but for rows in LX
    assert "i0" not in walked
    plan = step_tiles(kernel, step, kernel.divisions[step.name], SPYRE_CARD_V1)
    (x,) = (t for t in plan.tiles if t.tensor == "x")
    assert rows < 512 or "i1" not in walked or x.depth == 0


def test_a_row_too_long_for_lx_is_walked_in_pieces() -> None:
    kernel = tiled(stepped(SOFTMAX.format(high=64, width=1 << 22)))
    assert any(step.inner for step in kernel.steps)


@pytest.mark.parametrize("inputs", [1, 60])
def test_a_long_scan_fits_once_it_is_cut(inputs: int) -> None:
    names = [f"x{k}" for k in range(inputs)]
    declared = "\n".join(f"input {name}: f32[{1 << 22}]" for name in names)
    text = f"""
kernel scan
arguments {" ".join(names)} y
{declared}
output y: f32[{1 << 22}]
op run0 scan | r0:{1 << 22}
  y[r0] <- sum: {" + ".join(f"{name}[r0]" for name in names)}
"""
    stepped(text)
    with pytest.raises(Unsupported, match="run0 does not fit"):
        form_steps(choose_layouts(parse_kernel(text), SPYRE_CARD_V1), SPYRE_CARD_V1)


def test_what_needs_all_rows_waits_for_them() -> None:
    kernel = stepped("""
kernel attention
arguments k y
input k: f16[512, 64]
output y: f32[512, 512]
local a: f16[512, 64]
op scale0 map i0:512 i1:64
  a[i0, i1] <- f16(k[i0, i1] * 2.0)
op dot1 contract i0:512 i1:512 | r0:64
  y[i0, i1] <- sum: a[i0, r0] * a[i1, r0]
""")
    assert groups(kernel) == [["scale0"], ["dot1"]]


def test_written_inputs_tables_and_scattered_tensors_cross() -> None:
    kernel = stepped("""
kernel cache
arguments x ids c y z
input x: f32[8, 16]
input ids: i64[8]
mutated c: f32[32, 16]
output y: f32[32, 16]
output z: f32[8, 16]
local t: f32[8, 16]
op put scatter i0:8 i1:16
  lookup k = ids[i0] size 32
  c[k, i1] <- x[i0, i1]
op all map i0:32 i1:16
  y[i0, i1] <- c[i0, i1] * 2.0
op make map i0:8 i1:16
  t[i0, i1] <- x[i0, i1] + 1.0
op take gather i0:8 i1:16
  lookup k = ids[i0] size 8
  z[i0, i1] <- t[k, i1]
""")
    together = {name: n for n, names in enumerate(groups(kernel)) for name in names}
    assert together["put"] < together["all"]
    assert together["make"] < together["take"]
    axes = kernel.steps[together["put"]].binding["put"]
    assert "i0" not in axes  # rows may repeat; their order counts


def test_a_part_written_elsewhere_keeps_its_reader_out() -> None:
    kernel = stepped("""
kernel pieces
arguments x y z
input x: f16[4096, 64]
output y: f16[4096, 128]
output z: f32[4096]
op left map i0:4096 i1:64
  y[i0, i1] <- x[i0, i1]
op right map i0:4096 i1:64
  y[i0, i1 + 64] <- x[i0, i1]
op sum0 reduce i0:4096 | r0:128
  z[i0] <- sum: y[i0, r0]
""")
    assert groups(kernel) in (
        [["left", "right", "sum0_parts", "sum0"]],
        [["left", "right"], ["sum0_parts", "sum0"]],
    )


def test_order_of_conflicting_ops_is_checked() -> None:
    kernel = stepped(SOFTMAX.format(high=64, width=64))
    step = kernel.steps[0]
    backwards = replace(kernel, steps=(replace(step, ops=tuple(reversed(step.ops))),))
    assert any("comes before" in p for p in verify.stepped(backwards, SPYRE_CARD_V1))


def stored_in_parts(second: int) -> str:
    return f"""
kernel parts
arguments x y
input x: f16[64, 512]
output y: f16[128, 512]
op low map i0:64 i1:512
  y[i0, i1] <- f16(x[i0, i1] * 2.0)
op high map i0:64 i1:512
  y[i0 + {second}, i1] <- f16(x[i0, i1] * 3.0)
"""


def test_stores_to_different_parts_of_a_tensor_share_a_step() -> None:
    kernel = stepped(stored_in_parts(64))
    assert groups(kernel) == [["low", "high"]]
    assert [a.name for a in kernel.steps[0].axes] == ["i0", "i1"]


def test_stores_to_parts_that_overlap_are_not_split_along_them() -> None:
    kernel = stepped(stored_in_parts(63))
    assert all("i0" not in [a.name for a in s.axes] for s in kernel.steps if len(s.ops) == 2)


def test_panels_cut_k_where_columns_would_be_read_in_short_runs() -> None:
    kernel = plan_kernel(
        parse_kernel("""
kernel decode
arguments v p y
input v: f16[32, 8192, 128]
input p: f16[32, 1, 8192]
output y: f16[32, 1, 128]
op dot contract i0:32 i1:1 i2:128 | r0:8192
  y[i0, i1, i2] <- sum: p[i0, i1, r0] * v[i0, r0, i2]
"""),
        SPYRE_CARD_V1,
    )
    assert [loop.axis for loop in kernel.steps[0].inner["dot"]] == ["r0"]
