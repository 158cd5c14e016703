"""Weights that stay in LX: which, how cores share them, and that no meaning changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

import pytest

from openspyre.compiler.emit import emit
from openspyre.compiler.pipeline import plan_kernel
from openspyre.compiler.resident import kept_weights
from openspyre.ir import verify
from openspyre.ir.kernel import Kernel, Role
from openspyre.ir.program import Copy, Node, Ring, TileLoop
from openspyre.ir.text import parse_kernel, print_kernel
from openspyre.spec import SPYRE_CARD_V1 as CARD
from openspyre.spec import CardSpec
from tests.planned_kernels import ALL
from tests.random_kernels import planned, problem
from tests.regions import load_region

MLP = """
    kernel mlp
    arguments x u ub d db y
    weights u ub d db
    input x: f16[128, 384]
    input u: f16[1536, 384]
    input ub: f16[1536]
    input d: f16[384, 1536]
    input db: f16[384]
    output y: f16[128, 384]
    local s: f32[128, 1536]
    local t: f16[128, 1536]
    local r: f32[128, 384]
    op a contract i0:128 i1:1536 | r0:384
      s[i0, i1] <- sum: x[i0, r0] * u[i1, r0]
    op b map i0:128 i1:1536
      t[i0, i1] <- f16(max(s[i0, i1] + ub[i1], 0.0))
    op c contract i0:128 i1:384 | r0:1536
      r[i0, i1] <- sum: t[i0, r0] * d[i1, r0]
    op e map i0:128 i1:384
      y[i0, i1] <- f16(r[i0, i1] + db[i1])
    """


def weighed(kernel: Kernel) -> Kernel:
    """A kernel without a plan all of whose inputs are weights."""
    inputs = tuple(a for a in kernel.arguments if kernel.tensors[a].role is Role.INPUT)
    return replace(
        kernel, steps=(), divisions=MappingProxyType({}), layouts=MappingProxyType({}),
        residency=MappingProxyType({}), weights=inputs,
    )  # fmt: skip


def instructions(body: tuple[Node, ...]) -> list[Node]:
    found: list[Node] = []
    for node in body:
        found += instructions(node.body) if isinstance(node, TileLoop) else [node]
    return found


def with_room(usable: int) -> CardSpec:
    return replace(CARD, lx_usable=usable)


@pytest.mark.parametrize("name", ALL)
def test_planned_kernels_with_weights_mean_the_same(name: str) -> None:
    assert problem(weighed(parse_kernel("kernel k\n" + ALL[name]))) == ""


def test_a_model_with_weights_means_the_same() -> None:
    kernel = weighed(load_region("gpt2_captured"))
    assert plan_kernel(kernel, CARD).prologue > 0
    assert problem(kernel) == ""


def test_the_rest_of_the_program_loads_no_weight() -> None:
    plan = plan_kernel(parse_kernel(MLP), CARD)
    program = emit(plan, CARD)
    assert program.prologue == plan.prologue > 0
    loaded = {"first": set[int](), "later": set[int]()}
    for number, section in enumerate(program.sections):
        when = "first" if number < program.prologue else "later"
        loaded[when] |= {
            node.source.argument
            for node in instructions(section.body)
            if isinstance(node, Copy) and node.target.buffer >= 0
        }
    assert loaded == {"first": {1, 2, 3, 4}, "later": {0}}
    assert parse_kernel(print_kernel(plan)) == plan


@pytest.mark.parametrize("share", [1, 4])
def test_cores_share_what_not_each_of_them_can_have(share: int) -> None:
    """With less room, cores hold parts of a slice and fetch the others on the ring."""
    card = with_room(CARD.lx_usable // share)
    kernel = parse_kernel(MLP)
    plan = plan_kernel(kernel, card)
    assert len(kept_weights(plan)) == 4
    fetched = {
        node.source.buffer
        for section in emit(plan, card).sections[plan.prologue :]
        for node in instructions(section.body)
        if isinstance(node, Ring)
    }
    buffers = [b.name for b in emit(plan, card).buffers]
    far = {name for name in kept_weights(plan) if buffers.index(name) in fetched}
    assert bool(far) == (share > 1)
    assert problem(kernel, card=card) == ""


def test_what_has_no_room_is_not_kept() -> None:
    plan = plan_kernel(parse_kernel(MLP), with_room(1 << 15))
    assert set(kept_weights(plan)) == {"ub.kept", "db.kept"}


def test_without_weights_nothing_changes() -> None:
    kernel = replace(parse_kernel(MLP), weights=())
    plan, stages = planned(kernel)
    before = dict(stages)
    assert before["keep_weights"] == before["divide"]
    assert plan.prologue == 0


def test_what_is_looked_up_stays_in_device_memory() -> None:
    name = next(n for n in ALL if "embedding" in n)
    plan = plan_kernel(weighed(parse_kernel("kernel k\n" + ALL[name])), CARD)
    looked = {x.tensor for op in plan.ops for x in op.lookups}
    gathered = {a for a in plan.weights if f"keep_{a}" not in {op.name for op in plan.ops}}
    assert looked & set(plan.arguments) <= gathered


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (lambda k: replace(k, prologue=len(k.steps)), "copies no weight"),
        (lambda k: replace(k, weights=()), "copies no weight"),
        (lambda k: replace(k, residency=MappingProxyType({})), "leaves .* at None"),
    ],
)
def test_a_prologue_that_is_none(broken: Callable[[Kernel], Kernel], what: str) -> None:
    plan = plan_kernel(parse_kernel(MLP), CARD)
    assert not list(verify.kept(plan, CARD))
    problems = list(verify.kept(broken(plan), CARD))
    assert any(re.search(what, text) for text in problems), problems
