"""Classes of sizes: those that share a program. Needs no torch."""

from __future__ import annotations

from openspyre.ir.kernel import Kernel
from openspyre.runtime.strides import stride_symbols


def limits_of(kernel: Kernel, sizes: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    """The class of a launch's sizes: for every symbol of the kernel the range it stands for."""
    limits = dict(zip(kernel.symbols, map(size_class, sizes), strict=True))
    # No decision depends on a stride: one program serves all that the kernel allows.
    return limits | {s: kernel.limits[s] for s in stride_symbols(kernel) if s in kernel.limits}


def size_class(size: int) -> tuple[int, int]:
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
