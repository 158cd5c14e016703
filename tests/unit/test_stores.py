"""Scatters: what cores share, and that the last store to an element wins."""

from __future__ import annotations

import numpy as np
import pytest

from openspyre.compiler.emit import emit
from openspyre.compiler.pipeline import plan_kernel
from openspyre.errors import InvalidHint
from openspyre.ir.kernel import Kernel
from openspyre.ir.reference import evaluate
from openspyre.ir.text import parse_kernel
from openspyre.runtime.check import proved
from openspyre.spec import SPYRE_CARD_V1
from tests.card_runner import assert_matches, run_program

RANDOM = np.random.default_rng(5)


def checked(kernel: Kernel, inputs: dict[str, np.ndarray]) -> Kernel:
    """The planned kernel; the card stores what the kernel means."""
    planned = plan_kernel(kernel, SPYRE_CARD_V1)
    program = proved(emit(planned, SPYRE_CARD_V1), kernel, SPYRE_CARD_V1)
    got, _ = run_program(program, kernel, inputs)
    assert_matches(got, evaluate(kernel, inputs), kernel)
    return planned


def indices(shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
    return RANDOM.integers(low, high, shape)


ROPED = """kernel roped
arguments x pos at y
input x: f16[{rows}, {columns}]
input pos: f32[{rows}]
input at: i64[{rows}]
mutated y: f16[{heads}, 40, {head}]
op put scatter i0:{heads} i1:{rows} i2:{head}
  lookup k = at[i1] size 40 wrap
  %0 = where(idx[i2]:i32 < {half}:i32, {after}, {before})
  y[i0, k, i2] <- ((x[i1, {head}*i0 + i2] * cos(pos[i1])) + (%0 * sin(pos[i1])))
"""


@pytest.mark.parametrize(
    ("rows", "heads", "head"), [(33, 4, 128), (17, 1, 6), (1, 2, 64), (0, 2, 64), (96, 3, 130)]
)
def test_the_last_of_repeated_rows_wins(rows: int, heads: int, head: int) -> None:
    half = head // 2
    after, before = (f"x?[i1, {head}*i0 + i2 + {by}]" for by in (half, -half))
    sizes = {"rows": rows, "heads": heads, "head": head, "half": half}
    text = ROPED.format(columns=heads * head, after=after, before=before, **sizes)
    kernel = parse_kernel(text)
    inputs: dict[str, np.ndarray] = {
        "x": RANDOM.standard_normal((rows, heads * head)).astype(np.float16),
        "pos": RANDOM.standard_normal(rows).astype(np.float32),
        "at": indices((rows,), -40, 40),
        "y": RANDOM.standard_normal((heads, 40, head)).astype(np.float16),
    }
    checked(kernel, inputs)


@pytest.mark.parametrize("first", [0, 7, -40, -20])
def test_rows_that_are_counted(first: int) -> None:
    kernel = parse_kernel("""kernel counted
arguments x first y
input x: f16[40, 200]
input first: i64[]
mutated y: f16[40, 200]
local at: i64[33]
op count map i0:33
  at[i0] <- idx[i0] + first[]
op put scatter i0:33 i1:200
  lookup k = at[i0] size 40 wrap
  y[k, i1] <- x[i0, i1]
""")
    x, y = (RANDOM.standard_normal((40, 200)).astype(np.float16) for _ in range(2))
    planned = checked(kernel, {"x": x, "first": np.array(first), "y": y})
    (division,) = (planned.divisions[s.name] for s in planned.steps if "put" in s.ops)
    assert "i0" in [p.axis for p in division.parts]


@pytest.mark.parametrize("arrow", ["<-", "+="])
def test_an_index_for_every_element(arrow: str) -> None:
    kernel = parse_kernel(f"""kernel each
arguments x at y
input x: f32[50, 300]
input at: i64[50, 300]
mutated y: f32[20, 300]
op put scatter i0:50 i1:300
  lookup k = at[i0, i1] size 20 wrap
  y[k, i1] {arrow} x[i0, i1]
""")
    x = RANDOM.integers(-99, 99, (50, 300)).astype(np.float32)
    inputs = {"x": x, "at": indices((50, 300), -20, 20), "y": np.ones((20, 300), np.float32)}
    assert checked(kernel, inputs).divisions["s0"].cores > 1


FLAT = """kernel flat
arguments x at y
input x: f32[700, 900]
input at: i32[700, 900]
mutated y: f32[50]
op put scatter i0:700 i1:900
  lookup k = at[i0, i1] size 50
  y[k] <- x[i0, i1]
"""


def test_points_that_do_not_fit_lx_keep_their_order() -> None:
    inputs = {
        "x": RANDOM.standard_normal((700, 900)).astype(np.float32),
        "at": indices((700, 900), 0, 50).astype(np.int32),
        "y": np.zeros(50, np.float32),
    }
    planned = checked(parse_kernel(FLAT), inputs)
    (step,) = planned.steps
    assert [loop.axis for loop in step.inner["put"]]


def test_hints_do_not_change_the_order() -> None:
    good = parse_kernel(FLAT + "hint tile put.i0: 1\nhint tile put.i1: 300\n")
    plan_kernel(good, SPYRE_CARD_V1)
    wrong = parse_kernel(FLAT + "hint tile put.i0: 4\nhint tile put.i1: 300\n")
    with pytest.raises(InvalidHint, match="the last one wins"):
        plan_kernel(wrong, SPYRE_CARD_V1)
