"""The compiler's cost model beside the card's clock: they share numbers, no code.

Both are asked for the time of every split of a step; the order must agree, and the split that the
model would take must be nearly as fast as the fastest.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import log, prod

import pytest

from openspyre.compiler.capacity import fitting
from openspyre.compiler.choices import division_along
from openspyre.compiler.cost import AS_FAST, Split, Work, splits
from openspyre.compiler.emit import emit
from openspyre.compiler.pipeline import STAGES, plan_kernel
from openspyre.compiler.residency import place
from openspyre.compiler.step_work import StepWorks, whole_works
from openspyre.compiler.tilings import least_cycles
from openspyre.compiler.work import Works
from openspyre.ir.kernel import Kernel
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1, CardSpec
from tests.card.time_engine import timed

LINEAR = """
kernel linear
arguments x w y
input x: f16[{m}, {k}]
input w: f16[{n}, {k}] strides [1, {n}]
output y: f16[{m}, {n}]
op y contract i0:{m} i1:{n} | r0:{k}
  y[i0, i1] <- x[i0, r0] * w[i1, r0]
"""
SOFTMAX = """
kernel softmax
arguments x y
input x: f16[512, 1024]
output y: f16[512, 1024]
local m: f32[512, 1]
local l: f32[512, 1]
op m reduce i0:512 | r0:1024
  m[i0, 0] <- max: x[i0, r0]
op l reduce i0:512 | r0:1024
  l[i0, 0] <- sum: exp(x[i0, r0] - m[i0, 0])
op y map i0:512 i1:1024
  y[i0, i1] <- f16(exp(x[i0, i1] - m[i0, 0]) / l[i0, 0])
"""
ADD = """
kernel add
arguments x b y
input x: f16[256, 4096]
input b: f16[4096]
output y: f16[256, 4096]
op y map i0:256 i1:4096
  y[i0, i1] <- f16(x[i0, i1] + b[i1])
"""
GATED = """
kernel gated
arguments x g u y
input x: f16[512, 2048]
input g: f16[3200, 2048]
input u: f16[3200, 2048]
output y: f16[512, 3200]
local a: f16[512, 3200]
local b: f16[512, 3200]
op a contract i0:512 i1:3200 | r0:2048
  a[i0, i1] <- (x[i0, r0] * g[i1, r0])
op b contract i0:512 i1:3200 | r0:2048
  b[i0, i1] <- (x[i0, r0] * u[i1, r0])
op y map i0:512 i1:3200
  y[i0, i1] <- (a[i0, i1] * b[i0, i1])
"""
KERNELS = {
    **{
        f"linear {m}x{n}x{k}": LINEAR.format(m=m, n=n, k=k)
        for m, n, k in ((512, 4096, 1024), (512, 1024, 1024), (64, 4096, 1024))
    },
    # (By a plain weight, a row is multiplied in two steps.)
    "transposed 1x4096x4096": LINEAR.format(m=1, n=4096, k=4096).replace(" strides [1, 4096]", ""),
    "softmax": SOFTMAX,
    "add": ADD,
}


def pinned(split: Split, work: Work, kernel: Kernel, card: CardSpec) -> Kernel:
    """The only step divided as `split` says."""
    (step,) = kernel.steps
    return replace(kernel, divisions={step.name: division_along(step, work, split)})


def times(text: str) -> Iterator[tuple[float, float]]:
    """(model's cycles, clock's cycles) of every split of a kernel of one step."""
    kernel, card = parse_kernel(text), SPYRE_CARD_V1
    stepped = plan_kernel(kernel, card, stages=STAGES[:3])
    (work,) = whole_works(stepped, Works(stepped, card))
    for split in splits(work, card):
        if prod(split) < 8 or any(p & (p - 1) for p in split):
            continue  # enough to see: the powers of two
        stages = tuple(
            (name, partial(pinned, split, work) if name == "divide" else run, check)
            for name, run, check in STAGES
        )
        planned = plan_kernel(kernel, card, stages=stages)
        yield least_cycles(work, split, card), float(timed(emit(planned, card)).cycles)


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks of times; those that differ by less than the compiler looks at share one."""
    steps = [round(log(v) / log(AS_FAST)) for v in values]
    return [sorted(steps).index(s) + steps.count(s) / 2 for s in steps]


@pytest.mark.parametrize("name", KERNELS)
def test_model_and_clock_order_splits_alike(name: str) -> None:
    model, clock = zip(*times(KERNELS[name]), strict=True)
    agreement = statistics.correlation(ranks(model), ranks(clock))
    taken = clock[model.index(min(model))]
    assert agreement >= 0.8
    assert taken <= 1.05 * min(clock)


def tiled(text: str, most: int) -> Iterator[tuple[float, float]]:
    """(model's cycles, clock's cycles) of tilings of a kernel of one step.

    The fastest that fits, and others from all over the range, about `most` in all.
    """
    card = SPYRE_CARD_V1
    planned = plan_kernel(parse_kernel(text), card, stages=STAGES[:4])
    found = list(fitting(planned, StepWorks(planned, card).of(0)))
    for one in found[:: max(1, len(found) // most)]:
        placed = place(replace(planned, steps=(one.step,)), card)
        yield one.cycles, float(timed(emit(placed, card)).cycles)


@pytest.mark.parametrize("name", ["linear 512x4096x1024", "gated"])
def test_model_and_clock_order_tilings_alike(name: str) -> None:
    model, clock = zip(*tiled(KERNELS.get(name, GATED), 48), strict=True)
    agreement = statistics.correlation(ranks(model), ranks(clock))
    taken = clock[model.index(min(model))]
    assert agreement >= 0.95
    assert taken <= 1.05 * min(clock)
