"""Recording a run: everything that this process runs on its cards, as data.

with recorded("a name") as recorder:
    ...
run = recorder.run
"""

from __future__ import annotations

import platform
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import openspyre
from openspyre import _C, _built
from openspyre.card.native import isa
from openspyre.ir.binary import VERSION
from openspyre.ir.kernel import Kernel as Region
from openspyre.ir.text import parse_kernel
from openspyre.numerics import Numerics
from openspyre.runtime.check import argument_spans
from openspyre.runtime.launch import Kernel, kernel_texts, refused_sizes
from openspyre.runtime.places import calling_place
from openspyre.runtime.saved import (
    Block,
    Fallback,
    Launch,
    Run,
    SavedKernel,
    Span,
    Use,
    Variant,
)
from openspyre.settings import shown_settings
from openspyre.spec import SPYRE_CARD_V1

ENGINES = ("compute", "to card", "to host")
_Key = tuple[Kernel, int, tuple[int, ...]]
_Counts = tuple[int, float, int]  # launches, host seconds, launches that found their weights
_Numbers = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]


@dataclass
class Recorder:
    """Holds the run once its block has ended; `error` may be set inside."""

    run: Run = field(init=False)
    error: str = ""


@contextmanager
def recorded(
    command: str, inputs: int = 0, wanted: str = "", launches: int = 1
) -> Iterator[Recorder]:
    """Records everything that this process runs on its cards inside the block.

    Args:
        inputs: bytes of memory that may be kept to replay launches; the first launches of every
            kernel with new sizes are kept while there is room. 0 keeps none.
        wanted: keep launches only of kernels with this in their name.
        launches: how many launches of a kernel with the same sizes may be kept.
    """
    recorder = Recorder()
    watch = _Watch(_Keeper(inputs, wanted, launches) if inputs else None)
    _C.drain()  # what was launched before does not count
    before, fallbacks = _counts(), Counter(_C.fallbacks())
    refused = {text: len(refused_sizes(text)) for text, _ in kernel_texts()}
    position = _C.start_spans()
    _C.watch_launches(watch)
    start = time.perf_counter()
    try:
        yield recorder
    finally:
        _C.watch_launches(None)
        spans = _C.stop_spans(position)
        recorder.run = Run(
            command=command,
            versions=versions(),
            settings=shown_settings(),
            card=SPYRE_CARD_V1.numbers(),
            host_seconds=time.perf_counter() - start,
            kernels=tuple(_kernels(before, refused, watch)),
            spans=tuple(_spans(spans)),
            fallbacks=tuple(_fallbacks(fallbacks)),
            error=recorder.error,
        )


def versions() -> dict[str, str]:
    """What made a run: of openspyre, torch, Python, the program format, the kernels' ISA."""
    return {
        "openspyre": openspyre.__version__,
        "torch": _built.TORCH_VERSION,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.platform(),
        "program format": str(VERSION),
        "isa": isa(),
    }


def _counts() -> dict[_Key, _Counts]:
    return {
        (kernel, variant, sizes): (count, seconds, kept)
        for _, kernel in kernel_texts()
        for variant, sizes, count, seconds, _, kept in kernel.records()
    }


def _kernels(
    before: dict[_Key, _Counts], refused_before: dict[str, int], watch: _Watch
) -> Iterator[SavedKernel]:
    for text, kernel in kernel_texts():
        uses = tuple(_uses(kernel, before, watch))
        variants = tuple(Variant(*variant) for variant in kernel.variants())
        refused = refused_sizes(text)[refused_before.get(text, 0) :]
        if uses or refused:
            launches = tuple(watch.kept(kernel))
            yield SavedKernel(kernel.name, text, variants, uses, launches, refused)


def _uses(kernel: Kernel, before: dict[_Key, _Counts], watch: _Watch) -> Iterator[Use]:
    for variant, sizes, count, seconds, number, kept in kernel.records():
        earlier, spent, found = before.get((kernel, variant, sizes), (0, 0.0, 0))
        if count > earlier:
            report = kernel.report(variant, sizes)
            places = watch.places(kernel, variant, sizes)
            yield Use(
                variant, sizes, count - earlier, seconds - spent, number, report, places,
                kept - found,
            )  # fmt: skip


def _spans(found: list[tuple[str, int, int, int, int, int, int, int, int]]) -> Iterator[Span]:
    first = min((span[5] for span in found), default=0)
    for name, device, engine, stream, use, start, end, host_start, host_end in found:
        yield Span(
            name, device, ENGINES[engine], stream, use, start - first, end - first,
            host_start, host_end,
        )  # fmt: skip


def _fallbacks(before: Counter[str]) -> Iterator[Fallback]:
    reasons = _C.fallback_reasons()
    for op, calls in sorted((Counter(_C.fallbacks()) - before).items(), key=lambda item: -item[1]):
        yield Fallback(op, calls, reasons.get(op, ""))


class _Watch:
    """Called around every launch: counts where launches come from, and lets the keeper keep."""

    def __init__(self, keeper: _Keeper | None) -> None:
        self._keeper = keeper
        self._places: dict[_Key, Counter[str]] = {}

    def __call__(self, kernel: Kernel, variant: int, numbers: _Numbers, after: bool) -> None:
        if not after:
            counts = self._places.setdefault((kernel, variant, numbers[1]), Counter())
            counts[calling_place()] += 1
        if self._keeper is not None:
            self._keeper(kernel, variant, numbers, after)

    def places(self, kernel: Kernel, variant: int, sizes: tuple[int, ...]) -> dict[str, int]:
        """How many launches came from every line."""
        return dict(self._places.get((kernel, variant, sizes), {}))

    def kept(self, kernel: Kernel) -> list[Launch]:
        return self._keeper.kept.get(kernel, []) if self._keeper is not None else []


class _Keeper:
    """Keeps the memory of launches, before and after; called around every launch."""

    def __init__(self, room: int, wanted: str, most: int) -> None:
        self.room, self.wanted, self.most = room, wanted, most
        self.kept: dict[Kernel, list[Launch]] = {}
        self._seen: Counter[_Key] = Counter()
        self._regions: dict[Kernel, Region] = {}
        self._open: dict[int, Callable[[], Launch]] = {}  # by thread

    def __call__(self, kernel: Kernel, variant: int, numbers: _Numbers, after: bool) -> None:
        if after:
            if finished := self._open.pop(threading.get_ident(), None):
                self.kept.setdefault(kernel, []).append(finished())
            return
        key = (kernel, variant, numbers[1])
        if self._seen[key] == self.most or self.wanted not in kernel.name:
            return
        self._seen[key] += 1
        self._open[threading.get_ident()] = self._begun(kernel, variant, numbers)

    def _begun(self, kernel: Kernel, variant: int, numbers: _Numbers) -> Callable[[], Launch]:
        addresses, sizes, scalars = numbers
        number = sum(self._seen.values())
        numerics = str(Numerics.of_words(_C.numerics()))
        region = self._region(kernel)
        spans = argument_spans(region, dict(zip(region.symbols, sizes, strict=True)))
        reached = [(a + low, a + high) for a, (low, high) in zip(addresses, spans, strict=True)]
        ranges = _joined(reached)
        total = sum(high - low for low, high in ranges)
        if total > self.room:
            why = f"its memory has {total} bytes, {self.room} may still be kept"
            return lambda: Launch(variant, sizes, scalars, (), (), why, number=number)
        self.room -= total
        before = [_C.read_memory(low, high - low) for low, high in ranges]
        places = tuple(
            _place(ranges, span, address) for span, address in zip(reached, addresses, strict=True)
        )

        def finished() -> Launch:
            stick = int(SPYRE_CARD_V1.stick_bytes)
            blocks = tuple(
                Block(low % stick, data, _C.read_memory(low, high - low))
                for (low, high), data in zip(ranges, before, strict=True)
            )
            return Launch(variant, sizes, scalars, places, blocks, "", numerics, number)

        return finished

    def _region(self, kernel: Kernel) -> Region:
        if kernel not in self._regions:
            texts: dict[Any, str] = {loaded: text for text, loaded in kernel_texts()}
            self._regions[kernel] = parse_kernel(texts[kernel])
        return self._regions[kernel]


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges that the spans cover: those that overlap or touch are one."""
    ranges: list[tuple[int, int]] = []
    for low, high in sorted(span for span in spans if span[0] < span[1]):
        if ranges and low <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], high))
        else:
            ranges.append((low, high))
    return ranges


def _place(ranges: list[tuple[int, int]], span: tuple[int, int], address: int) -> tuple[int, int]:
    """The number of the range that an argument lies in, and where in it its element zero is."""
    if span[0] == span[1]:
        return -1, 0  # no element
    number = next(n for n, (low, high) in enumerate(ranges) if low <= span[0] < high)
    return number, address - ranges[number][0]
