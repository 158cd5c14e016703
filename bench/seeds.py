"""The published gains as pairs of our own: planned one operation at a time, and as we plan.

Both sides compile the same kernels for the same card, with all stages alike but those that
`per_operation.py` replaces, and are timed by the card's clock: nothing of this machine is in the
numbers. A change is that of the time, in %; where it is published, ours should be no smaller.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from kernels import Case, kernels_of
from measurement import Measurement, options, report
from per_operation import per_operation
from relayouts import reading_us, relayouts, ring_us
from split_matmul import VENDOR
from split_scores import Clock
from torch import Tensor

import openspyre
from openspyre.card.native import Report, SoftwareCard
from openspyre.compiler.emit import emit
from openspyre.compiler.pipeline import STAGES, Stage, plan_kernel
from openspyre.ir.kernel import Kernel
from openspyre.ir.text import parse_kernel
from openspyre.runtime.check import proved
from openspyre.spec import SPYRE_CARD_V1

Stages = tuple[Stage, ...]
# card.md 4.1: batch, N, us before and after
MATMULS = (
    (2, 12800, 4604, 2196), (4, 12800, 6631, 4244), (8, 12800, 26968, 8384),
    (2, 25600, 6862, 4879), (4, 25600, 12156, 7672), (8, 25600, 31985, 15502),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pair:
    """A case with its stages before; after are our own.

    Attributes:
        change: the published one, in %.
        published: what else is published.
        pt_use: whether the use of PT is told too.
        lies: the kernel before, where it is another: its tensors lie as the published ones did.
        own_tiles: the stages before, but that tiles are ours; their time is told too.
    """

    case: Case
    before: Stages
    change: float
    published: str
    pt_use: bool = False
    lies: Kernel | None = None
    own_tiles: Stages | None = None


def pairs() -> Iterator[Pair]:
    """The pairs of card.md 4.1 to 4.3."""
    for b, n, slow, fast in MATMULS:
        case = Case(f"4.1 matmul {b}x512x4096x{n}", torch.matmul, ((b, 512, 4096), (4096, n)))
        gain = 100 * (fast / slow - 1)
        text = f"{slow:,} to {fast:,} us"
        before = per_operation(tiling=VENDOR)
        yield Pair(case, before, gain, text, lies=batch_inside(b, n), own_tiles=per_operation())
    softmax = Case("4.2 softmax 512x1024 dim 0", lambda x: torch.softmax(x, 0), ((512, 1024),))
    yield Pair(softmax, per_operation(lx=False), -27.2, "32.51 to 23.67 us")
    weights = ((12800, 4096), (12800, 4096), (4096, 12800))
    mlp = Case("4.3 SwiGLU MLP 512x4096x12800", _swiglu, ((1, 512, 4096), *weights))
    yield Pair(mlp, per_operation(), -17.0, "PT use 66 to 79 %", pt_use=True)


def batch_inside(b: int, n: int) -> Kernel:
    """[b,512,4096] @ [4096,n], x and the result in the published layout [x, in, mb]: rows, then
    sticks, then the batch, then the elements of a stick.
    """
    return parse_kernel(f"""kernel inside
arguments x w y
input x: f16[{b}, 512, 64, 64] strides [64, {4096 * b}, {64 * b}, 1]
input w: f16[4096, {n}]
output y: f16[{b}, 512, {n // 64}, 64] strides [64, {n * b}, {64 * b}, 1]
op y contract i0:{b} i1:512 i2:{n // 64} i3:64 | r0:64 r1:64
  y[i0, i1, i2, i3] <- sum: x[i0, i1, r0, r1] * w[64*r0 + r1, 64*i2 + i3]
""")


def _swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def timed(kernels: tuple[Kernel, ...], clock: Clock, stages: Stages) -> list[Report]:
    """What the clock says of kernels planned by some stages; every program is checked."""
    found = []
    for kernel in kernels:
        planned = plan_kernel(kernel, SPYRE_CARD_V1, stages=stages)
        found.append(clock.report(proved(emit(planned, SPYRE_CARD_V1), kernel, SPYRE_CARD_V1)))
    return found


def rows(pair: Pair, clock: Clock) -> Iterator[Measurement]:
    """The change of a pair's time, and of its use of PT."""
    kernels = kernels_of(pair.case)
    before = timed((pair.lies,) if pair.lies else kernels, clock, pair.before)
    after = timed(kernels, clock, STAGES)
    slow, fast = (_us(side) for side in (before, after))
    detail = f"{slow:,.1f} to {fast:,.1f} us; published {pair.change:+.1f} %, {pair.published}"
    if pair.own_tiles is not None:
        us = _us(timed((pair.lies,) if pair.lies else kernels, clock, pair.own_tiles))
        detail += f"; before with our tiles {us:,.1f} us, {100 * (fast / us - 1):+.1f} %"
    change = 100 * (fast / slow - 1)
    yield Measurement("seeds", pair.case.name, change, "% of time", round(pair.change, 1), detail)
    if pair.pt_use:
        used, uses = _pt_use(before), _pt_use(after)
        detail = f"{used:.0%} before; published: {pair.published}"
        name = f"{pair.case.name}, PT use"
        yield Measurement("seeds", name, 100 * uses, "% of time", 80.0, detail, least=True)


def _us(reports: list[Report]) -> float:
    return sum(SPYRE_CARD_V1.microseconds(one.cycles) for one in reports)


def _pt_use(reports: list[Report]) -> float:
    time = sum(one.cycles for one in reports) * SPYRE_CARD_V1.cores
    return sum(one.pt_busy for one in reports) / time


def moved(clock: Clock) -> Iterator[Measurement]:
    """4.4: two steps of forced splits, by way of device memory and on the ring."""
    name = "4.4 relu(neg(x)) 8x256x512 on 8 cores"
    case = next(relayouts())
    ring = case.program()
    slow, fast = clock.us(case.program(ring=False)), clock.us(ring)
    detail = f"{slow:,.1f} to {fast:,.1f} us; published -48.6 %, 80.0 to 41.1 us, predicted"
    yield Measurement("seeds", name, 100 * (fast / slow - 1), "% of time", -48.6, detail)
    us = reading_us(ring, clock) - reading_us(case.program(made=case.read), clock)
    detail = f"published: 1.1 us, predicted; the ring works for {ring_us(ring, clock):.2f} us, "
    yield Measurement("seeds", f"{name}, the move", us, "us", 1.1, detail + "beside the stores")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", default="", help="pairs whose case has this text")
    chosen = parser.parse_args()
    openspyre.require()
    found: list[Measurement] = []
    with SoftwareCard(memory=1 << 30, threads=1) as card:
        clock = Clock(card, SPYRE_CARD_V1)
        for pair in pairs():
            if chosen.only in pair.case.name:
                print(f"{pair.case.name} ...", file=sys.stderr, flush=True)
                found += rows(pair, clock)
        if chosen.only in "4.4 relu(neg(x)) 8x256x512 on 8 cores":
            found += moved(clock)
    report(found, chosen)


if __name__ == "__main__":
    main()
