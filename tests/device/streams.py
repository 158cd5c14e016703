"""What tests of streams need: a kernel, and a stream that stands still until it is let go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from openspyre import _C
from openspyre.runtime.launch import Kernel, load_kernel

PLUS = """kernel plus
symbols n
arguments x y
input x: f32[n]
output y: f32[n]
op add map i0:n
  at "model.py:7 add"
  y[i0] <- x[i0] + 1.0
"""
GATHER = """kernel pick
arguments table ids y
input table: f32[10]
input ids: i64[3]
output y: f32[3]
op pick gather i0:3
  at "model.py:3 embedding"
  lookup t = ids[i0] size 10 wrap
  y[i0] <- table[t]
"""


def plus_kernel() -> Kernel:
    """y = x + 1."""
    return load_kernel(PLUS)


def plus(x: torch.Tensor) -> torch.Tensor:
    """A launch on the current stream."""
    y = torch.empty_like(x)
    plus_kernel()(x, y, x.numel())
    return y


def fail_late() -> None:
    """A launch whose index is out of range."""
    ids = torch.tensor([1, 10, 2], device="spyre")
    load_kernel(GATHER)(torch.zeros(10, device="spyre"), ids, torch.empty(3, device="spyre"))


class Held:
    """A stream that does nothing more until `let_go`, or until the object ends."""

    def __init__(self, stream: torch.Stream | None = None) -> None:
        chosen = stream or torch.spyre.current_stream()
        with chosen:
            self._hold = _C.hold(chosen.device.index)

    def let_go(self) -> None:
        """Lets the stream go on; twice is once."""
        _C.let_go(self._hold)


@contextmanager
def held(stream: torch.Stream | None = None) -> Iterator[Held]:
    """Holds a stream inside the block."""
    hold = Held(stream)
    try:
        yield hold
    finally:
        hold.let_go()


def let_go_soon(hold: Held) -> threading.Thread:
    """Another Python thread lets go: it only gets there when whoever waits released the GIL."""
    thread = threading.Timer(0.05, hold.let_go)
    thread.start()
    return thread
