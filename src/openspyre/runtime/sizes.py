"""Classes of sizes: those that share a program. Needs no torch."""

from __future__ import annotations

from openspyre.ir.kernel import Kernel
from openspyre.runtime.strides import stride_symbols

Range = tuple[int, int]
# Of kernels with so many sizes the classes are eight times as wide: they multiply.
_MANY = 4


def limits_of(kernel: Kernel, sizes: tuple[int, ...]) -> dict[str, Range]:
    """The class of a launch's sizes: for every symbol of the kernel the range it stands for,
    as far as the kernel serves it."""
    pairs, wide = zip(kernel.symbols, sizes, strict=True), doublings(kernel)
    limits = {s: _served(size_class(n, wide), n, kernel.limits.get(s)) for s, n in pairs}
    # No decision depends on a stride: one program serves all that the kernel allows.
    return limits | {s: kernel.limits[s] for s in stride_symbols(kernel) if s in kernel.limits}


def doublings(kernel: Kernel) -> int:
    """How wide the classes of a kernel's sizes are: see `size_class`."""
    return 1 if len(set(kernel.symbols) - set(stride_symbols(kernel))) < _MANY else 3


def _served(chosen: Range, size: int, limit: Range | None) -> Range:
    if limit is None or not limit[0] <= size <= limit[1]:
        return chosen
    return max(chosen[0], limit[0]), min(chosen[1], limit[1])


def size_class(size: int, doublings: int = 1) -> Range:
    """The inclusive range of sizes that share a program with `size`.

    Args:
        doublings: how often the lower end of a class is doubled up to its higher end.

    >>> [size_class(n) for n in (0, 1, 2, 3, 100)]
    [(0, 0), (1, 1), (2, 2), (3, 4), (65, 128)]
    >>> [size_class(n, 3) for n in (1, 2, 8, 9, 100)]
    [(1, 1), (2, 8), (2, 8), (9, 64), (65, 512)]
    """
    if size < 0:
        low, high = size_class(-size, doublings)
        return -high, -low
    if size < 2:
        return size, size
    exponent = -(-(size - 1).bit_length() // doublings) * doublings
    return (1 << (exponent - doublings)) + 1, 1 << exponent
