"""Threads and streams at random: every value is checked, memory is flat at the end."""

from __future__ import annotations

import ctypes
import gc
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.device.streams import plus_kernel
from tests.results import write_result

FAST = (8, 4, 1500)  # threads, streams of each, steps of each thread
LONG = (8, 4, 5000)
SIZES = (1, 65, 700, 5000, 70_000)


class Walk:
    """One thread's tensors, each with the number that its elements must be off by."""

    def __init__(self, seed: int, streams: int) -> None:
        self.random = random.Random(seed)
        self.streams = [
            torch.spyre.Stream(priority=self.random.choice((0, -1))) for _ in range(streams)
        ]
        self.seed = seed
        self.alive: list[tuple[torch.Tensor, torch.Stream, int]] = []
        self.landing: list[tuple[torch.Tensor, torch.Event, int]] = []
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        acts = [self.create, self.launch, self.drop] * 2
        acts += [self.in_place, self.copy, self.read, self.read_later, self.resize]
        act = self.random.choice(acts) if self.alive else self.create
        self.done[act.__name__] += 1
        act(self.random.randrange(len(self.alive)) if self.alive else 0)
        if len(self.landing) > 4:
            self.check_landed()

    def create(self, _: int = 0) -> None:
        offset = self.random.randrange(1000)
        host = torch.arange(self.random.choice(SIZES), dtype=torch.float32) + offset
        pinned = self.random.random() < 0.5
        stream = self.random.choice(self.streams)
        with stream:
            source = host.pin_memory() if pinned else host
            there = source.to("spyre", non_blocking=self.random.random() < 0.7)
            if not pinned:
                host.fill_(-1)
        self.alive.append((there, stream, offset))

    def on_any_stream(self, index: int) -> tuple[torch.Tensor, torch.Stream, int]:
        """A tensor, and a stream that has waited for it and uses it from now on."""
        x, owner, offset = self.alive[index]
        stream = self.random.choice(self.streams)
        if stream != owner:
            stream.wait_stream(owner)
            x.record_stream(stream)
            self.alive[index] = (x, stream, offset)  # who writes later must wait for this use
        return x, stream, offset

    def launch(self, index: int) -> None:
        x, stream, offset = self.on_any_stream(index)
        with stream:
            y = torch.empty_like(x)
            plus_kernel()(x, y, x.numel())
        self.alive.append((y, stream, offset + 1))

    def in_place(self, index: int) -> None:
        x, stream, offset = self.on_any_stream(index)
        with stream:
            plus_kernel()(x, x, x.numel())
        self.alive[index] = (x, stream, offset + 1)

    def copy(self, index: int) -> None:
        x, stream, offset = self.on_any_stream(index)
        with stream:
            self.alive.append((x.clone(), stream, offset))

    def resize(self, index: int) -> None:
        x, stream, offset = self.on_any_stream(index)
        size = x.numel()
        with stream:
            x.resize_(2 * size)
            x.resize_(size)
        self.alive[index] = (x, stream, offset)

    def drop(self, index: int) -> None:
        del self.alive[index]

    def read(self, index: int) -> None:
        x, stream, offset = self.on_any_stream(index)
        with stream:
            check(x.cpu(), offset)

    def read_later(self, index: int) -> None:
        x, stream, offset = self.on_any_stream(index)
        with stream:
            out = torch.empty(x.numel()).pin_memory()
            out.copy_(x, non_blocking=True)
            self.landing.append((out, stream.record_event(), offset))

    def check_landed(self) -> None:
        for out, event, offset in self.landing:
            event.synchronize()
            check(out, offset)
        self.landing.clear()

    def end(self) -> None:
        for index in range(len(self.alive)):
            self.read(index)
        self.check_landed()
        self.alive.clear()


def check(values: torch.Tensor, offset: int) -> None:
    right = torch.arange(values.numel(), dtype=torch.float32) + offset
    if not torch.equal(values, right):
        raise AssertionError(f"off by {(values - right).abs().max()} at size {values.numel()}")


def memory() -> dict[str, int]:
    """Bytes that are in use once everything is done and caches are empty."""
    gc.collect()
    torch.spyre.empty_cache()
    ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what threads have freed
    stats = torch.spyre.memory_stats()
    names = ("allocated_bytes", "active_bytes", "reserved_bytes")
    status = Path("/proc/self/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    card = {name: int(stats[f"{name}.all.current"]) for name in names}
    return {**card, "host_resident_bytes": int(resident.split()[1]) << 10}


def test_threads_and_streams(request: pytest.FixtureRequest) -> None:
    long = bool(request.config.getoption("--long"))
    threads, streams, steps = LONG if long else FAST
    for size in SIZES:  # programs stay on the card
        x = torch.zeros(size, device="spyre")
        plus_kernel()(x, x, size)
    del x
    before = memory()
    failures: list[str] = []
    done: Counter[str] = Counter()

    def work(seed: int) -> None:
        try:
            walk = Walk(seed, streams)
            for _ in range(steps):
                walk.step()
            walk.end()
            done.update(walk.done)
        except Exception as error:  # a thread's edge
            failures.append(f"thread {seed}: {error!r}")

    start = time.monotonic()
    running = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    [thread.start() for thread in running]
    [thread.join() for thread in running]
    seconds = time.monotonic() - start
    assert not failures
    assert done.total() == threads * steps
    after = memory()
    for name in ("allocated_bytes", "active_bytes"):
        assert after[name] == before[name], name
    if long:
        size = {"threads": threads, "streams_of_each": streams, "steps_of_each": steps}
        found = {"operations": dict(sorted(done.items())), "seconds": round(seconds, 1)}
        write_result("stress", {**size, **found, "before": before, "after": after})
