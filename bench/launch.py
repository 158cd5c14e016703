"""What a launch costs on this machine: enqueueing, compiled `x + 1`, eager `a + b`.

Each is measured beside its counterpart on the CPU where there is one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from measurement import Measurement, paired, report

import openspyre

openspyre.require()

from openspyre import _C  # noqa: E402
from openspyre.runtime.launch import load_kernel  # noqa: E402

ROUNDS, CALLS = 41, 100
Call = Callable[[], object]
SUM = """kernel sum_of_seven
symbols n
arguments a b c d e f g y
input a: f32[n]
input b: f32[n]
input c: f32[n]
input d: f32[n]
input e: f32[n]
input f: f32[n]
input g: f32[n]
output y: f32[n]
op add map i0:n
  y[i0] <- a[i0] + b[i0] + c[i0] + d[i0] + e[i0] + f[i0] + g[i0]
"""


def enqueueing() -> Measurement:
    """A launch that does not run at once: its stream has work before it."""
    busy = enqueue_times(1000, before=lambda: _C.hold(0), after=_C.let_go)
    idle = enqueue_times(200_000, before=lambda: time.sleep(0.002), after=lambda _: None, calls=1)
    detail = f"queue busy; {statistics.median(idle):.1f} us where it has to wake the idle queue"
    return Measurement("launch", "enqueue, 8 tensors", statistics.median(busy), "us", 5, detail)


def enqueue_times(
    size: int, *, before: Call, after: Callable[[Any], object], calls: int = CALLS
) -> list[float]:
    """Microseconds of single launches, `calls` of them between `before` and `after`."""
    kernel = load_kernel(SUM)
    tensors = [torch.ones(size).to("spyre") for _ in range(8)]
    kernel(*tensors, size)
    torch.spyre.synchronize()
    spent = []
    for _ in range(ROUNDS):
        state = before()
        for _ in range(calls):
            start = time.perf_counter_ns()
            kernel(*tensors, size)
            spent.append((time.perf_counter_ns() - start) / 1000)
        after(state)
        torch.spyre.synchronize()
    return spent


def compiled() -> Iterator[Measurement]:
    """Compiled `x + 1`, waited for after every call, beside CPU Inductor's call."""
    for case, shape in (("64 floats", (64,)), ("8 x 4096 floats", (8, 4096))):
        function = torch.compile(lambda x: x + 1)
        here = torch.randn(shape)
        there = here.to("spyre")

        def card(f: Callable[..., object] = function, x: torch.Tensor = there) -> None:
            f(x)
            torch.spyre.synchronize()

        def cpu(f: Callable[..., object] = function, x: torch.Tensor = here) -> None:
            f(x)

        ours, theirs, ratio = paired(repeated(card), repeated(cpu), ROUNDS)
        detail = f"{micro(ours):.1f} us : {micro(theirs):.1f} us (CPU Inductor)"
        yield Measurement("launch", f"x + 1 and wait, {case}", ratio, "ratio", 1.5, detail)


def eager() -> Measurement:
    """Eager `a + b`: the call alone, and what waiting for it adds."""
    a, b = torch.randn(8, 64), torch.randn(8, 64)
    there_a, there_b = a.to("spyre"), b.to("spyre")

    def card() -> None:
        there_a + there_b

    def card_and_wait() -> None:
        there_a + there_b
        torch.spyre.synchronize()

    def cpu() -> None:
        a + b

    waited, theirs, _ = paired(repeated(card_and_wait), repeated(cpu), ROUNDS)
    ours, _, _ = paired(repeated(card), repeated(cpu), ROUNDS)
    detail = f"{micro(waited):.1f} us with the wait; {micro(theirs):.1f} us on the CPU"
    return Measurement("launch", "eager a + b, 512 floats", micro(ours), "us", 15, detail)


def repeated(call: Call) -> Call:
    """The call, CALLS times, after it has run once."""
    call()

    def run() -> None:
        for _ in range(CALLS):
            call()

    return run


def micro(seconds: float) -> float:
    """Microseconds of one of CALLS calls."""
    return seconds / CALLS * 1e6


def main() -> None:
    report([enqueueing(), *compiled(), eager()])


if __name__ == "__main__":
    main()
