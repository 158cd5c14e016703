"""Relayouts on chip (card.md 4.4): a tensor that one step makes in some parts and the next one
reads in others, planned with these splits forced and all else as always.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log2

import numpy as np
from measurement import Measurement
from per_operation import Split, per_operation
from split_scores import Clock

from openspyre.card.native import UNITS
from openspyre.compiler.emit import emit
from openspyre.compiler.pipeline import plan_kernel
from openspyre.ir.kernel import Kernel
from openspyre.ir.program import Program
from openspyre.ir.text import parse_kernel
from openspyre.runtime.check import proved
from openspyre.spec import SPYRE_CARD_V1 as CARD

TARGET = 1.5  # times the ring bound or the move law, whichever is larger
_LAW_RUN, _LAW_BYTES, _LAW_STEP, _LAW_FIXED = 4096, 547, 3.92, 1.14  # #3844; runs up to 4 KiB
_RING = UNITS.index("ring")


@dataclass(frozen=True, slots=True)
class Relayout:
    """relu(neg(x)) in two steps: neg on cores that share x as in `made`, relu as in `read`.

    Attributes:
        groups: how many cores hold what one core of the second step reads.
        run: bytes that lie together in both.
    """

    name: str
    shape: tuple[int, ...]
    made: Split
    read: Split
    groups: int
    run: int

    @property
    def bytes(self) -> int:
        return 2 * int(np.prod(self.shape))

    @property
    def cores(self) -> int:
        return int(np.prod(self.made))

    def law_us(self) -> float:
        """The vendor's law of such a move, fitted to measurements."""
        each = self.bytes / self.cores
        runs = each / min(self.run, _LAW_RUN)
        split = min(max(self.groups, 2), 8)
        return (runs * (_LAW_STEP * log2(split) - _LAW_FIXED) + each * split / _LAW_BYTES) / 1e3

    def bound_us(self) -> float:
        """Every link of the ring busy all the time, each byte going the shorter way."""
        hops = sum(abs(a - b) for a in range(self.groups) for b in range(self.groups))
        far = hops / self.groups**2
        links = 2 * CARD.cores * CARD.ring_bytes_per_cycle * CARD.clock_ghz  # bytes per ns
        return self.bytes * far / links / 1e3

    def kernel(self) -> Kernel:
        shape, index = list(self.shape), ", ".join(f"i{n}" for n in range(len(self.shape)))
        dims = " ".join(f"i{n}:{size}" for n, size in enumerate(self.shape))
        return parse_kernel(f"""kernel relayout
arguments x y
input x: f16{shape}
output y: f16{shape}
local t: f16{shape}
op neg map {dims}
  t[{index}] <- neg(x[{index}])
op relu map {dims}
  y[{index}] <- max(t[{index}], 0.0)
""")

    def program(self, *, made: Split | None = None, ring: bool = True) -> Program:
        """Planned with the splits forced, and proved."""
        kernel = self.kernel()
        stages = per_operation(forced={0: made or self.made, 1: self.read}, ring=ring)
        planned = plan_kernel(kernel, CARD, stages=stages)
        return proved(emit(planned, CARD), kernel, CARD)


def relayouts() -> Iterator[Relayout]:
    """The cases of card.md 4.4."""
    name, shape = "relayout 8x256x512 on 8 cores", (8, 256, 512)
    yield Relayout(f"{name}, split 2", shape, (8, 1, 1), (4, 2, 1), 2, 1 << 17)
    yield Relayout(f"{name}, split 8", shape, (8, 1, 1), (1, 8, 1), 8, 1 << 15)
    for split, run in ((2, 4096), (4, 4096), (8, 1024), (8, 128)):
        columns = run * split // 2
        name = f"relayout 4.19 MB on 32 cores, split {split}, runs of {run} B"
        rows = (1 << 21) // columns
        yield Relayout(name, (rows, columns), (32, 1), (32 // split, split), split, run)


def measured(chosen: str, clock: Clock) -> Iterator[Measurement]:
    """What each move adds to the step that reads, over the larger of bound and law."""
    for case in relayouts():
        if chosen not in case.name:
            continue
        moved, near, far = case.program(), case.program(made=case.read), case.program(ring=False)
        us = reading_us(moved, clock) - reading_us(near, clock)
        law, bound = case.law_us(), case.bound_us()
        detail = f"{us:.2f} us; ring bound {bound:.2f}, law {law:.2f}; the ring works for "
        detail += f"{ring_us(moved, clock):.2f}, beside the stores; both steps take "
        detail += f"{clock.us(moved):.1f}, by way of device memory {clock.us(far):.1f}"
        yield Measurement("kernels", case.name, us / max(law, bound), "x law", TARGET, detail)


def reading_us(program: Program, clock: Clock) -> float:
    """The step that reads, alone."""
    return clock.us(replace(program, sections=program.sections[1:]))


def ring_us(program: Program, clock: Clock) -> float:
    """How long the ring has work.

    Raises:
        SystemExit: the program moves nothing on it.
    """
    loaded = clock.card.load_program(program)
    try:
        block = clock.card.fill(loaded, [0] * program.arguments[0])
        _, events = clock.card.trace(loaded, block)
    finally:
        clock.card.unload(loaded)
    ring = events[events["unit"] == _RING]
    if not len(ring):
        raise SystemExit("nothing moves on the ring")
    end, total = -1.0, 0.0
    for begin, until in sorted(zip(ring["begin"], ring["end"], strict=True)):
        total += max(0.0, until - max(begin, end))
        end = max(end, until)
    return float(CARD.microseconds(total))
