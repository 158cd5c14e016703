"""Run in a process of its own with `allocations.cpp` preloaded: prints what warm paths cost.

A line of JSON for every case: its name, the allocations of the host's heap, each as the names of
the libraries it came through, innermost first, and the Python functions that were entered.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import openspyre

openspyre.require()

from openspyre import _C  # noqa: E402
from openspyre.ir.binary import decode  # noqa: E402
from openspyre.runtime.launch import load_kernel  # noqa: E402

Run = Callable[[], object]
ROUNDS = 20
TRACE = (ctypes.c_void_p * 64)()
counter = ctypes.CDLL(None)


def adding(inputs: int, extent: str) -> str:
    """The kernel y = x0 + x1 + ..."""
    names = [f"x{i}" for i in range(inputs)]
    read = " + ".join(f"{name}[i0]" for name in names)
    return "\n".join(
        [
            f"kernel add_{inputs}",
            "symbols n",
            f"arguments {' '.join(names)} y",
            *(f"input {name}: f32[{extent}]" for name in names),
            f"output y: f32[{extent}]",
            f"op add map i0:{extent}",
            f"  y[i0] <- {read}" if inputs > 1 else "  y[i0] <- x0[i0] + 1.0",
            "",
        ]
    )


# Rows of the local are read by index: it lies in memory of the card.
POOLED = """kernel pooled
arguments x ids y
input x: f32[64, 64]
input ids: i64[5]
local t: f32[64, 64]
output y: f32[5, 64]
op plus map i0:64 i1:64
  t[i0, i1] <- x[i0, i1] + 1.0
op pick gather i0:5 i1:64
  lookup row = ids[i0] size 64 wrap
  y[i0, i1] <- t[row, i1]
"""


def on_card(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype).to("spyre")


def launches() -> Mapping[str, tuple[str, dict[str, Any]]]:
    """Statements that launch a loaded kernel, with the names they use."""
    x = on_card(1000)
    many = [on_card(1000) for _ in range(31)]
    square, ids, rows = on_card(64, 64), torch.arange(5).to("spyre"), on_card(5, 64)
    one, eight, thirty = (load_kernel(adding(n, "n")) for n in (1, 7, 30))
    pooled = load_kernel(POOLED)
    pooled(square, ids, rows)
    assert decode(pooled.variants()[0][0]).pool_bytes > 0
    return {
        "kernel, 2 tensors": ("kernel(x, y, 1000)", {"kernel": one, "x": x, "y": many[0]}),
        "kernel, 8 tensors": ("kernel(*all, 1000)", {"kernel": eight, "all": many[:8]}),
        "kernel, 31 tensors": ("kernel(*all, 1000)", {"kernel": thirty, "all": many}),
        "kernel, a pool": ("kernel(*all)", {"kernel": pooled, "all": (square, ids, rows)}),
    }


def eager_ops() -> Mapping[str, tuple[str, dict[str, Any]]]:
    """Statements that call one op of PyTorch."""
    a, b, out = on_card(8, 64), on_card(8, 64), on_card(8, 64)
    ids = torch.tensor([1, 3, 0]).to("spyre")
    names = {"torch": torch, "a": a, "b": b, "out": out, "ids": ids}
    statements = {
        "a + b": "a + b",
        "a * 2.5": "a * 2.5",
        "a.add_(b)": "a.add_(b)",
        "add(out=)": "torch.add(a, b, out=out)",
        "relu": "torch.relu(a)",
        "where": "torch.where(a > b, a, b)",
        "sum": "a.sum(1)",
        "softmax": "torch.softmax(a, -1)",
        "mm": "torch.mm(a, b.t())",
        "cat": "torch.cat((a, b), 1)",
        "index_select": "torch.index_select(a, 0, ids)",
        "a view": "a[2:, 1::2] - b[2:, 1::2]",
    }
    return {f"op {name}": (statement, names) for name, statement in statements.items()}


def transfers() -> Mapping[str, tuple[str, dict[str, Any]]]:
    """Statements that copy, and that order streams."""
    stream, other = torch.accelerator.current_stream(), torch.Stream("spyre")
    first, second = torch.Event("spyre"), torch.Event("spyre")
    pinned, card, twin = torch.ones(1000).pin_memory(), on_card(1000), on_card(1000)
    names = {"stream": stream, "other": other, "first": first, "second": second}
    names |= {"pinned": pinned, "card": card, "twin": twin}
    statements = {
        "record": "first.record(stream)",
        "wait": "first.record(stream); other.wait_event(first); second.record(other); "
        "stream.wait_event(second)",
        "copy to the card": "card.copy_(pinned, non_blocking=True)",
        "copy to the host": "pinned.copy_(card, non_blocking=True)",
        "copy within the card": "twin.copy_(card)",
    }
    return {f"transfer, {name}": (statement, names) for name, statement in statements.items()}


def sequence() -> Mapping[str, tuple[str, dict[str, Any]]]:
    """A token in, 40 layers of a launch each, a token out: what decoding does for a token."""
    kernel = load_kernel(adding(7, "n"))
    token, back = torch.ones(64).pin_memory(), torch.empty(64).pin_memory()
    x, y, *weights = (on_card(64) for _ in range(8))
    layers = [(x, *weights, y), (y, *weights, x)] * 20
    statement = (
        "x.copy_(token, non_blocking=True)\n"
        "    for layer in layers: kernel(*layer, 64)\n"
        "    back.copy_(x, non_blocking=True)"
    )
    names = {"x": x, "token": token, "back": back, "layers": layers, "kernel": kernel}
    return {"sequence of 40 layers": (statement, names)}


def instrument() -> Mapping[str, tuple[str, dict[str, Any]]]:
    """Statements whose cost is known."""
    return {
        "nothing": ("pass", {}),
        "the heap": ("bytearray(10_000)", {}),
        "our heap": ("let_go(hold(0))", {"hold": _C.hold, "let_go": _C.let_go}),
        "a function": ("function()", {"function": function}),
    }


def function() -> None:
    """Python, and nothing else."""


def allocations(run: Run, *, queued: bool) -> list[list[str]]:
    """What allocates from the first call until the card is done.

    Args:
        queued: the stream stands still until all calls are made: the card's own threads work.
    """
    stream = torch.accelerator.current_stream()
    hold = _C.hold(0) if queued else None
    counter.start_counting()
    run()
    if hold is not None:
        _C.let_go(hold)
    while not stream.query():
        time.sleep(0.0005)
    return [libraries(number) for number in range(counter.stop_counting())]


def libraries(number: int) -> list[str]:
    """The libraries that an allocation came through, innermost first."""
    depth = counter.allocation(number, TRACE, ctypes.c_size_t(len(TRACE)))
    return [library_of(address or 0) for address in TRACE[:depth]]


@cache
def library_of(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        if low <= address < high:
            return Path(line.split()[-1]).name
    return "nowhere"


def python_calls(run: Run) -> list[str]:
    """The Python functions that are entered while `run` runs."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename != "<warm>":
            entered.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    run()
    sys.setprofile(None)
    return entered


def report(name: str, statement: str, names: dict[str, Any]) -> None:
    code = compile(f"for _ in range({ROUNDS}):\n    {statement}", "<warm>", "exec")
    run = partial(exec, code, names)
    for _ in range(3):  # pools and tables grow to what they need
        allocations(run, queued=False)
        allocations(run, queued=True)
    found = {how: allocations(run, queued=how == "queued") for how in ("at once", "queued")}
    print(json.dumps([name, found, python_calls(run)]), flush=True)


def main() -> None:
    cases = {**instrument(), **launches(), **transfers(), **sequence(), **eager_ops()}
    for name, (statement, names) in cases.items():
        report(name, statement, names)


main()
