"""The planner that `./dev bench seeds` compares with: right, and by the published rules."""

from __future__ import annotations

import pytest
from per_operation import per_operation
from relayouts import Relayout, relayouts
from seeds import batch_inside
from split_matmul import VENDOR

from openspyre.compiler.emit import emit
from openspyre.compiler.pipeline import plan_kernel
from openspyre.ir.kernel import Kernel, Space
from openspyre.ir.reference import evaluate
from openspyre.ir.text import parse_kernel
from openspyre.ir.text_program import print_program
from openspyre.runtime.check import proved
from openspyre.spec import SPYRE_CARD_V1
from tests.card_runner import run_program
from tests.random_kernels import differing, inputs_of

SOFTMAX = """kernel softmax
arguments x z
input x: f16[96, 640]
output z: f16[96, 640]
local m: f32[96, 1]
local s: f32[96, 1]
op a reduce i0:96 | r0:640
  m[i0, 0] <- max: x[i0, r0]
op b reduce i0:96 | r0:640
  s[i0, 0] <- sum: exp(x[i0, r0] - m[i0, 0])
op c map i0:96 i1:640
  z[i0, i1] <- (exp(x[i0, i1] - m[i0, 0]) / s[i0, 0])
"""
MATMUL = """kernel matmul
arguments x w z
input x: f16[64, 256]
input w: f16[256, 512]
output z: f16[64, 512]
local t: f16[64, 512]
op a contract i0:64 i1:512 | r0:256
  t[i0, i1] <- sum: x[i0, r0] * w[r0, i1]
op b map i0:64 i1:512
  z[i0, i1] <- exp(t[i0, i1])
"""

CHAIN = """kernel chain
arguments x z
input x: f16[96, 640]
output z: f16[96, 640]
local t: f16[96, 640]
op a map i0:96 i1:640
  t[i0, i1] <- exp(x[i0, i1])
op b map i0:96 i1:640
  z[i0, i1] <- t[i0, i1] * t[i0, i1]
"""


def planned(text: str, *, lx: bool = True) -> Kernel:
    stages = per_operation(lx=lx)
    return plan_kernel(parse_kernel(text), SPYRE_CARD_V1, stages=stages)


@pytest.mark.parametrize("lx", [True, False])
@pytest.mark.parametrize("text", [SOFTMAX, MATMUL, CHAIN])
def test_its_plans_are_right(text: str, lx: bool) -> None:
    kernel, plan = parse_kernel(text), planned(text, lx=lx)
    program = proved(emit(plan, SPYRE_CARD_V1), kernel, SPYRE_CARD_V1)
    inputs = inputs_of(kernel)
    got, _ = run_program(program, plan, inputs)
    assert differing(got, evaluate(kernel, inputs), kernel) == ""


def test_every_operation_is_a_step() -> None:
    steps = planned(SOFTMAX).steps
    assert sum(len(step.ops) for step in steps) == len(planned(SOFTMAX).ops)
    halves = [step for step in steps if len(step.ops) > 1]
    assert all(step.ops == (f"{step.ops[1]}_parts", step.ops[1]) for step in halves)
    assert [step.ops[-1] for step in steps if step.ops[-1] in ("a", "b", "c")] == ["a", "b", "c"]


def test_the_largest_dim_gets_the_largest_divisor() -> None:
    plan = planned(MATMUL)
    parts = {part.axis: part.parts for part in plan.divisions[plan.steps[-1].name].parts}
    assert parts == {"i1": 8, "i0": 4}  # 8 sticks of 512, then what is left


def test_tensors_stay_in_lx_where_splits_agree() -> None:
    assert planned(CHAIN).residency["t"].space is Space.LX
    assert planned(CHAIN, lx=False).residency["t"].space is Space.DEVICE
    assert planned(SOFTMAX).residency["m"].space is Space.DEVICE  # 32 cores by rows, 10 x 3 by both


@pytest.mark.parametrize("case", list(relayouts()), ids=lambda case: case.name)
def test_relayouts_move_on_the_ring(case: Relayout) -> None:
    program = case.program()
    assert program.pool_bytes == 0
    assert "ring" in print_program(program)
    assert case.program(ring=False).pool_bytes >= case.bytes


def test_a_relayout_keeps_its_values() -> None:
    case = Relayout("small", (8, 64, 128), (8, 1, 1), (4, 2, 1), 2, 4096)
    inputs = inputs_of(case.kernel())
    got, _ = run_program(case.program(), case.kernel(), inputs)
    assert not differing(got, evaluate(case.kernel(), inputs), case.kernel())


def test_matmuls_are_cut_as_measured_programs_are() -> None:
    stages = per_operation(tiling=VENDOR)
    (step,) = plan_kernel(batch_inside(4, 12800), SPYRE_CARD_V1, stages=stages).steps
    assert [(x.axis, x.tile) for x in step.loops] == [("i2", 4), ("i0", 1), ("i1", 128)]
    assert [(x.axis, x.tile) for x in step.inner["y"]] == [("r0", 1)]


def test_a_matmul_that_is_cut_keeps_its_values() -> None:
    kernel = parse_kernel(MATMUL)
    plan = plan_kernel(kernel, SPYRE_CARD_V1, stages=per_operation(tiling=VENDOR))
    inputs = inputs_of(kernel)
    program = proved(emit(plan, SPYRE_CARD_V1), kernel, SPYRE_CARD_V1)
    got, _ = run_program(program, plan, inputs)
    assert differing(got, evaluate(kernel, inputs), kernel) == ""
