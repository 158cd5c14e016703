"""What a launch costs on this machine: enqueueing, compiled `x + 1`, a layer, eager `a + b`.

Each is measured beside its counterpart on the CPU where there is one. For information, a
decode-shaped sequence of launches is measured beside itself with a graph built for every transfer
or for every launch, as other stacks do; that ours builds none is `tests/device/test_warm_path.py`.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from measurement import Measurement, paired, report, seconds
from torch import fx, nn

import openspyre

openspyre.require()

from openspyre import _C  # noqa: E402
from openspyre.runtime.launch import load_kernel  # noqa: E402

ROUNDS, CALLS = 41, 100
Call = Callable[[], object]
Binary = Callable[[torch.Tensor, torch.Tensor], None]
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
    return Measurement("launch", "enqueue, 8 tensors", statistics.median(busy), "us", 3, detail)


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
    """Compiled `x + 1`, and it waited for after every call, beside CPU Inductor's call."""
    for case, shape in (("64 floats", (64,)), ("8 x 4096 floats", (8, 4096))):
        function = torch.compile(lambda x: x + 1)
        here = torch.randn(shape)
        yield from beside_cpu(f"x + 1, {case}", function, here, function, here.to("spyre"), 1.05)


def encoder_layer() -> Iterator[Measurement]:
    """A compiled `nn.TransformerEncoderLayer`: one launch."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True).eval()
    x = torch.randn(1, 64, 256)
    there = torch.compile(copy.deepcopy(layer).to("spyre"))
    with torch.no_grad():
        start = counted_launches(there, x.to("spyre"))
        case = f"encoder layer, {start} launch{'' if start == 1 else 'es'}"
        rows = list(beside_cpu(case, torch.compile(layer), x, there, x.to("spyre"), 1.1))
    yield rows[0]
    yield replace(rows[1], target=None)  # the host computes it: `./dev bench emulation`


def counted_launches(call: Callable[..., object], x: torch.Tensor) -> int:
    """The launches of a call, once it is warm."""
    call(x)
    torch.spyre.synchronize()
    position = _C.start_spans()
    call(x)
    torch.spyre.synchronize()
    return sum(use > 0 for _, _, _, _, use, *_ in _C.stop_spans(position))


def beside_cpu(
    case: str,
    cpu: Callable[..., object],
    here: torch.Tensor,
    card: Callable[..., object],
    there: torch.Tensor,
    target: float,
) -> Iterator[Measurement]:
    """The call alone, the card idle before it, and the call waited for, beside the CPU's call."""
    cpu(here), card(there)
    alone, waited = [], []
    for _ in range(ROUNDS):
        called = done = 0
        for _ in range(CALLS):
            start = time.perf_counter_ns()
            card(there)
            called += time.perf_counter_ns() - start
            torch.spyre.synchronize()
            done += time.perf_counter_ns() - start
        theirs = round(seconds(repeated(lambda: cpu(here))) * 1e9)
        alone.append((called, theirs))
        waited.append((done, theirs))
    yield ratio_row(case, alone, target)
    yield ratio_row(f"{case}, waited for", waited, 1.5)


def ratio_row(case: str, pairs: list[tuple[int, int]], target: float) -> Measurement:
    ours, theirs = (statistics.median(side) / 1000 / CALLS for side in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    detail = f"{ours:.1f} us : {theirs:.1f} us (CPU Inductor)"
    return Measurement("launch", case, ratio, "ratio", target, detail)


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
    target = 2 * micro(theirs) + 10
    return Measurement("launch", "eager a + b, 512 floats", micro(ours), "us", target, detail)


def sequences() -> Iterator[Measurement]:
    """A token in, 40 layers of one launch, a token out: ours, and with graphs built on the way."""
    for phase, rows, published in (("prefill", 64, 1.7), ("decode", 1, 2.4)):
        kernel = load_kernel(SUM)
        size = 64 * rows
        weights = [torch.ones(size).to("spyre") for _ in range(6)]
        x, y = torch.empty(size, device="spyre"), torch.empty(size, device="spyre")
        token, back = torch.ones(size).pin_memory(), torch.empty(size).pin_memory()

        def layer(x: Any, y: Any, kernel: Any = kernel, all: Any = weights, n: int = size) -> None:
            kernel(x, *all, y, n)

        def step(move: Any, act: Any, x: Any = x, y: Any = y, io: Any = (token, back)) -> None:
            move(x, io[0])
            for i in range(40):
                act(*((x, y) if i % 2 == 0 else (y, x)))
            move(io[1], x)
            torch.spyre.synchronize()

        for name, move, act in (
            ("transfer", as_graph(transfer), layer),
            ("launch", as_graph(transfer), as_graph(layer)),
        ):
            slow, ours, ratio = paired(
                partial(step, move, act), partial(step, transfer, layer), ROUNDS
            )
            detail = f"{slow * 1e6:.0f} us : {ours * 1e6:.0f} us; published {published} x"
            case = f"{phase}, 40 layers, a graph per {name} : none"
            yield Measurement("launch", case, ratio, "ratio", None, detail)


def transfer(to: torch.Tensor, source: torch.Tensor) -> None:
    to.copy_(source, non_blocking=True)


def as_graph(function: Binary) -> Binary:
    """The function, called through a graph that every call builds anew."""

    def run(a: torch.Tensor, b: torch.Tensor) -> None:
        graph = fx.Graph()
        graph.call_function(function, (graph.placeholder("a"), graph.placeholder("b")))
        graph.output(None)
        fx.GraphModule({}, graph)(a, b)

    return run


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
    torch.set_num_threads(1)  # threads of a busy host wait for each other: CPU calls take tenfold
    report([enqueueing(), *compiled(), *encoder_layer(), eager(), *sequences()])


if __name__ == "__main__":
    main()
