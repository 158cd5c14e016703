"""Classes of sizes: those that share a program. Needs no torch."""

from __future__ import annotations

from openspyre.ir.kernel import Kernel
from openspyre.runtime.strides import stride_symbols

Range = tuple[int, int]


def limits_of(kernel: Kernel, sizes: tuple[int, ...]) -> dict[str, Range]:
    """The class of a launch's sizes: for every symbol of the kernel the range it stands for,
    as far as the kernel serves it."""
    pairs = zip(kernel.symbols, sizes, strict=True)
    limits = {s: _served(size_class(n), n, kernel.limits.get(s)) for s, n in pairs}
    # No decision depends on a stride: one program serves all that the kernel allows.
    return limits | {s: kernel.limits[s] for s in stride_symbols(kernel) if s in kernel.limits}


def _served(chosen: Range, size: int, limit: Range | None) -> Range:
    if limit is None or not limit[0] <= size <= limit[1]:
        return chosen
    return max(chosen[0], limit[0]), min(chosen[1], limit[1])


def size_class(size: int) -> Range:
    """The inclusive range of sizes that share a program with `size`.

    >>> [size_class(n) for n in (0, 1, 2, 3, 100)]
    [(0, 0), (1, 1), (2, 2), (3, 4), (65, 128)]
    """
    if size < 0:
        low, high = size_class(-size)
        return -high, -low
    if size < 2:
        return size, size
    high = 1 << (size - 1).bit_length()
    return high // 2 + 1, high
