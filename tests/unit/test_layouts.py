"""How local tensors lie: the choice over all of them, its limits, and that values stay."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest

from openspyre.compiler.canonical import canonicalize
from openspyre.compiler.emit import emit
from openspyre.compiler.layout import choose_layouts, laid_out_alone
from openspyre.compiler.layout_choice import laid_out, sooner_together
from openspyre.compiler.least_sum import Table, least_sum
from openspyre.compiler.pipeline import STAGES, plan_kernel
from openspyre.ir.kernel import Kernel
from openspyre.ir.reference import evaluate
from openspyre.ir.text import parse_kernel
from openspyre.runtime.check import proved
from openspyre.spec import SPYRE_CARD_V1, CardSpec
from tests.card_runner import run_program
from tests.random_kernels import differing, inputs_of, problem

# y = relu(x)^T w: by itself t lies as the map makes it, PT wants the sticks along the rows of x
TURNED = """
kernel turned
arguments x w y
input x: f16[{k}, {m}]
input w: f16[{k}, {n}]
output y: f16[{m}, {n}]
local t: f16[{k}, {m}]
op t map i0:{k} i1:{m}
  t[i0, i1] <- f16(max(x[i0, i1], 0.0))
op y contract i0:{m} i1:{n} | r0:{k}
  y[i0, i1] <- sum: t[r0, i0] * w[r0, i1]
"""
# y = (x w)^T v
PRODUCTS = """
kernel products
arguments x w v y
input x: f16[{k}, {j}]
input w: f16[{j}, {m}]
input v: f16[{k}, {n}]
output y: f16[{m}, {n}]
local t: f16[{k}, {m}]
op t contract i0:{k} i1:{m} | r0:{j}
  t[i0, i1] <- sum: x[i0, r0] * w[r0, i1]
op y contract i0:{m} i1:{n} | r0:{k}
  y[i0, i1] <- sum: t[r0, i0] * v[r0, i1]
"""
# heads side by side in h; one after the other in t they are read in longer runs
HEADS = """
kernel heads
arguments p h y
input p: f16[{h}, {n}, {k}]
input h: f16[{k}, {h}, {d}]
output y: f16[{h}, {n}, {d}]
local t: f16[{k}, {h}, {d}]
op t map i0:{k} i1:{h} i2:{d}
  t[i0, i1, i2] <- f16((h[i0, i1, i2] * 0.5) + 1.0)
op y contract i0:{h} i1:{n} i2:{d} | r0:{k}
  y[i0, i1, i2] <- sum: p[i0, i1, r0] * t[r0, i0, i2]
"""


def canonical(text: str, **sizes: int | str) -> Kernel:
    return canonicalize(parse_kernel(text.format(**sizes)), SPYRE_CARD_V1)


def orders(kernel: Kernel) -> dict[str, tuple[int, ...]]:
    return {name: layout.order for name, layout in kernel.layouts.items()}


def test_matmuls_get_the_sticks_they_want() -> None:
    turned, products = {"k": 4096, "m": 4096, "n": 64}, {"k": 512, "m": 2048, "n": 512, "j": 512}
    for text, sizes in ((TURNED, turned), (PRODUCTS, products)):
        kernel = canonical(text, **sizes)
        assert orders(laid_out_alone(kernel))["t"] == (0, 1)
        assert orders(choose_layouts(kernel, SPYRE_CARD_V1))["t"] == (1, 0)


def test_maps_walk_what_they_make_as_it_lies() -> None:
    kernel = choose_layouts(canonical(TURNED, k=4096, m=4100, n=64), SPYRE_CARD_V1)
    assert [str(d.extent) for d in kernel.ops[0].dims] == ["4100", "4096"]


def test_what_a_map_leaves_in_lx_lies_as_it_makes_it() -> None:
    kernel = canonical(TURNED, k=512, m=2048, n=512)
    assert choose_layouts(kernel, SPYRE_CARD_V1) == laid_out_alone(kernel)


def test_heads_come_one_after_the_other() -> None:
    kernel = canonical(HEADS, h=32, n=128, k=1024, d=64)
    assert orders(laid_out_alone(kernel))["t"] == (0, 1, 2)
    assert orders(choose_layouts(kernel, SPYRE_CARD_V1))["t"] == (1, 0, 2)


def test_nothing_changes_where_estimates_cannot_tell() -> None:
    kernel = canonical(HEADS, h=2, n=8, k=16, d=64)
    assert choose_layouts(kernel, SPYRE_CARD_V1) == laid_out_alone(kernel)


def test_with_symbols_tensors_lie_by_themselves() -> None:
    text = TURNED.format(k="K", m=2048, n=512).replace("arguments", "symbols K\narguments")
    kernel = canonicalize(parse_kernel(text), SPYRE_CARD_V1)
    assert choose_layouts(kernel, SPYRE_CARD_V1) == laid_out_alone(kernel)


def test_the_choice_is_the_same_every_time() -> None:
    kernel = canonical(PRODUCTS, k=512, j=512, m=512, n=512)
    first = choose_layouts(kernel, SPYRE_CARD_V1)
    assert all(choose_layouts(kernel, SPYRE_CARD_V1) == first for _ in range(3))


def test_too_much_to_compare_leaves_tensors_as_they_lie_by_themselves() -> None:
    alone = laid_out_alone(canonical(TURNED, k=512, m=2048, n=512))
    both = {"t": [(0, 1), (1, 0)]}
    assert sooner_together(alone, both, SPYRE_CARD_V1) == {"t": (1, 0)}
    assert sooner_together(alone, both, SPYRE_CARD_V1, most=1) == {}
    many = {"t": [(0, 1), *[(1, 0)] * 300]}
    assert sooner_together(alone, many, SPYRE_CARD_V1) == {}


@pytest.mark.parametrize("k", [1, 63, 130])
def test_values_do_not_depend_on_how_tensors_lie(k: int) -> None:
    for text in (TURNED, PRODUCTS):
        kernel = parse_kernel(text.format(k=k, j=70, m=390, n=33))
        assert problem(kernel) == ""
    kernel = parse_kernel(HEADS.format(h=33, n=3, k=k, d=65))
    assert problem(kernel) == ""


def test_values_of_kernels_whose_tensors_lie_otherwise() -> None:
    for text, sizes in (
        (PRODUCTS, {"k": 300, "j": 40, "m": 500, "n": 65}),
        (HEADS, {"h": 33, "n": 17, "k": 130, "d": 64}),
    ):
        kernel = canonical(text, **sizes)
        assert orders(choose_layouts(kernel, SPYRE_CARD_V1)) != orders(laid_out_alone(kernel))
        assert problem(parse_kernel(text.format(**sizes))) == ""


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_any_order_is_right(order: tuple[int, ...]) -> None:
    kernel = parse_kernel(HEADS.format(h=5, n=3, k=70, d=33))

    def lying(canonical: Kernel, _: CardSpec) -> Kernel:
        return laid_out(laid_out_alone(canonical), {"t": order})

    stages = tuple((n, lying if n == "choose_layouts" else run, check) for n, run, check in STAGES)
    plan = plan_kernel(kernel, SPYRE_CARD_V1, stages=stages)
    assert orders(plan)["t"] == order
    inputs = inputs_of(kernel)
    program = proved(emit(plan, SPYRE_CARD_V1), kernel, SPYRE_CARD_V1)
    got, _ = run_program(program, plan, inputs)
    assert differing(got, evaluate(kernel, inputs), kernel) == ""


# --- the least sum ------------------------------------------------------------------------------


def random_tables(rng: np.random.Generator) -> list[Table]:
    sizes = {f"v{n}": int(rng.integers(1, 4)) for n in range(6)}
    tables = []
    for _ in range(int(rng.integers(1, 8))):
        names = tuple(str(n) for n in rng.permutation(list(sizes))[: int(rng.integers(0, 4))])
        shape = [sizes[n] for n in names]
        tables.append(Table(names, rng.integers(0, 9, shape).astype(float)))
    return tables


def total(tables: list[Table], choice: dict[str, int]) -> float:
    return sum(float(t.costs[tuple(choice[n] for n in t.variables)]) for t in tables)


@pytest.mark.parametrize("seed", range(40))
def test_the_least_sum_is_the_least(seed: int) -> None:
    tables = random_tables(np.random.default_rng(seed))
    sizes = {n: s for t in tables for n, s in zip(t.variables, t.costs.shape, strict=True)}
    every = [
        dict(zip(sizes, at, strict=True)) for at in product(*(range(s) for s in sizes.values()))
    ]
    found = least_sum(tables)
    assert found is not None
    assert found.keys() == sizes.keys()
    assert total(tables, found) == min(total(tables, choice) for choice in every)
    assert least_sum(tables) == found


def test_equal_sums_take_the_first_choice() -> None:
    assert least_sum([Table(("a", "b"), np.zeros((2, 3)))]) == {"a": 0, "b": 0}


def test_tables_have_a_limit() -> None:
    ring = [Table((f"v{n}", f"v{(n + 1) % 5}"), np.eye(3)) for n in range(5)]
    assert least_sum(ring, most=27) is not None
    assert least_sum(ring, most=26) is None
