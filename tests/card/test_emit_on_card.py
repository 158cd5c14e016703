"""Planned kernels on the software card give what the reference gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from openspyre.compiler.tiles import lx_peak
from openspyre.errors import CardError
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.card_runner import check_on_card
from tests.planned_kernels import ALL, CROSSING, FUSED, SIZES, SYMBOLIC, given, replanned


@pytest.mark.parametrize("name", ALL)
def test_the_card_computes_what_the_kernel_means(name: str) -> None:
    check_on_card(parse_kernel("kernel k\n" + ALL[name]), **given(name))


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_one_program_serves_many_sizes(n: int, k: int) -> None:
    text = "kernel k\n" + SYMBOLIC.format(n="0..16", k="0..40")
    check_on_card(parse_kernel(text), {"n": n, "k": k})


def test_an_index_out_of_range_names_the_users_line() -> None:
    bad = parse_kernel("kernel k\n" + CROSSING["gather of an embedding"])
    bad = replace(bad, ops=(replace(bad.ops[0], source="model.py:7 embedding"),))
    with pytest.raises(CardError, match=r"model.py:7 embedding.*out of range"):
        check_on_card(bad, ids=np.full((3, 4), 50))


@pytest.mark.parametrize("name", ALL)
def test_every_plan_gives_the_same_values(name: str) -> None:
    kernel = parse_kernel("kernel k\n" + ALL[name])
    for seed in range(8):
        check_on_card(replanned(kernel, seed), **given(name))


@pytest.mark.parametrize("name", FUSED)
def test_every_plan_works_in_the_least_lx(name: str) -> None:
    kernel = parse_kernel("kernel k\n" + FUSED[name])
    none = replace(SPYRE_CARD_V1, lx_usable=0)
    for seed in range(4):
        plan = replanned(kernel, seed)
        least = max(lx_peak(plan, step, plan.divisions[step.name], none) for step in plan.steps)
        check_on_card(plan, card=replace(SPYRE_CARD_V1, lx_usable=least), **given(name))


@pytest.mark.parametrize("reduce", ["max", "sum"])
def test_a_reduction_over_looked_up_rows_is_shared(reduce: str) -> None:
    kernel = parse_kernel(f"""
kernel shared
arguments table ids y
input table: f32[9, 256]
input ids: i64[2, 16]
output y: f32[]
op all reduce | r0:2 r1:16 r2:256
  lookup k0 = ids[r0, r1] size 9
  y[] <- {reduce}: table[k0, r2]
""")
    check_on_card(kernel, ids=np.arange(32).reshape(2, 16) * 5 % 9)
