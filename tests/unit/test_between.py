"""Activations of a product, worked out while PT is busy with the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from openspyre.compiler.between import work_between_products
from openspyre.compiler.capacity import fit_tiles
from openspyre.compiler.emit import emit
from openspyre.compiler.residency import place
from openspyre.ir import reference, verify
from openspyre.ir.kernel import DType, Kernel, Loop
from openspyre.ir.text import parse_kernel, print_kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.card_runner import check_interpreted, check_on_card, random_inputs, run_program

GATED = """kernel gated
arguments x g gs u us y
input x: f16[{m}, {k}]
input g: {narrow}[{n}, {k}]
input gs: f16[{n}]
input u: {narrow}[{n}, {k}]
input us: f16[{n}]
output y: f16[{m}, {n}]
local a: f16[{m}, {n}]
local b: f16[{m}, {n}]
op c contract i0:{m} i1:{n} | r0:{k}
  a[i0, i1] <- sum: (x[i0, r0] * {gate})
op d contract i0:{m} i1:{n} | r0:{k}
  b[i0, i1] <- sum: (x[i0, r0] * {up})
op e map i0:{m} i1:{n}
  y[i0, i1] <- {body}
layout a: 0 1
layout b: 0 1
step s0: c d e
  axes i0:{m} i1:{n}
  bind c: i0=i0 i1=i1
  bind d: i0=i0 i1=i1
  bind e: i0=i0 i1=i1
division s0: i0 parts 2 stride 4 granule 1, i1 parts 4 stride 1 granule 64
"""
SCALED = {"gate": "f16(f16(g[i1, r0]) * gs[i1])", "up": "f16(f16(u[i1, r0]) * us[i1])"}
PLAIN = {"gate": "g[i1, r0]", "up": "u[i1, r0]"}
SWIGLU = "(f16(a[i0, i1] / (exp(neg(a[i0, i1])) + 1.0)) * b[i0, i1])"
SIZES = {"m": 32, "k": 128, "n": 256}


def gated(
    body: str = SWIGLU,
    narrow: str = "f8e4m3",
    loads: Mapping[str, str] = SCALED,
    sizes: Mapping[str, int] = SIZES,
) -> Kernel:
    return parse_kernel(GATED.format(body=body, narrow=narrow, **loads, **{**SIZES, **sizes}))


@pytest.mark.parametrize("sizes", [{}, {"m": 1}, {"m": 13, "n": 200, "k": 96}])
def test_it_means_the_same(sizes: dict[str, int]) -> None:
    kernel = gated(sizes=sizes)
    cut = work_between_products(kernel)
    assert cut.steps[0].ops == ("c", "d", "e_alone", "e")
    assert (cut.tensors["e_alone"].dtype, cut.tensors["b"].dtype) == (DType.F16, DType.F32)
    assert not list(verify.well_formed(cut, SPYRE_CARD_V1))
    assert parse_kernel(print_kernel(cut)) == cut
    given = random_inputs(kernel)
    before, after = (reference.evaluate(one, given) for one in (kernel, cut))
    assert before["y"].tobytes() == after["y"].tobytes()
    planned = place(fit_tiles(kernel, SPYRE_CARD_V1), SPYRE_CARD_V1)
    assert "e_alone" in planned.by_name
    check_interpreted(planned)
    check_on_card(planned)


def test_pt_waits_less() -> None:
    kernel = gated(sizes={"m": 256, "n": 1024, "k": 512})
    parts = {"c": (Loop("r0", 128),), "d": (Loop("r0", 128),)}
    step = replace(kernel.steps[0], loops=(Loop("i1", 64),), inner=parts)
    kernel = replace(kernel, steps=(step,))
    cycles = []
    for one in (kernel, work_between_products(kernel)):
        plan = place(one, SPYRE_CARD_V1)
        cycles.append(run_program(emit(plan, SPYRE_CARD_V1), plan, random_inputs(plan))[1].cycles)
    assert cycles[1] < 0.97 * cycles[0]


@pytest.mark.parametrize(
    "kernel",
    [
        gated(narrow="f16", loads=PLAIN),  # PT takes its operands as they lie
        gated("(f16(a[i0, i1] + 1.0) * b[i0, i1])"),  # nothing of it takes long
        gated("(a[i0, i1] / (exp(neg(b[i0, i1])) + 1.0))"),  # what does needs both
    ],
    ids=["plain", "cheap", "both"],
)
def test_others_stay_as_they_are(kernel: Kernel) -> None:
    assert work_between_products(kernel) is kernel
