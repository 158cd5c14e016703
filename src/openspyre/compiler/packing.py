"""Offsets for buffers with lifetimes: best fit, largest first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from openspyre.compiler.addressing import rounded_up


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes that are taken from time `first` to time `last`, both included."""

    offset: int
    bytes: int
    first: int
    last: int


def best_fit(bytes_: int, first: int, last: int, taken: Iterable[Span], granule: int) -> int:
    """The offset in the smallest gap that holds `bytes_` for a lifetime, or above everything."""
    live = sorted((s.offset, s.bytes) for s in taken if s.first <= last and first <= s.last)
    best, least, free = -1, 0, 0
    for offset, size in live:
        gap = offset - free
        if gap >= bytes_ and (best < 0 or gap < least):
            best, least = free, gap
        free = max(free, rounded_up(offset + size, granule))
    return best if best >= 0 else free


def highest_fit(bytes_: int, taken: Iterable[Span], end: int, granule: int) -> int | None:
    """The highest offset, below `end`, that is free whatever the time; None if there is none."""
    for span in sorted(taken, key=lambda s: -(s.offset + s.bytes)):
        offset = (end - bytes_) // granule * granule
        if offset >= span.offset + span.bytes:
            return offset
        end = min(end, span.offset)
    offset = (end - bytes_) // granule * granule
    return offset if offset >= 0 else None


def packed(
    items: Sequence[tuple[int, int, int]], granule: int, taken: Sequence[Span] = ()
) -> tuple[list[int], int]:
    """Offsets for (bytes, first, last) items beside what is taken, and the end of the highest."""
    spans = list(taken)
    offsets = [0] * len(items)
    for number in sorted(range(len(items)), key=lambda n: (-items[n][0], items[n][1], n)):
        size, first, last = items[number]
        offsets[number] = best_fit(size, first, last, spans, granule)
        spans.append(Span(offsets[number], size, first, last))
    ends = [offsets[n] + items[n][0] for n in range(len(items))]
    return offsets, max(ends, default=0)
