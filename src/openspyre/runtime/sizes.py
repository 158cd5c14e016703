"""Classes of sizes: those that share a program. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod

from openspyre.compiler.bounds import highest
from openspyre.ir.kernel import Kernel, Role
from openspyre.runtime.strides import stride_symbols

Range = tuple[int, int]
# Of kernels with so many sizes the classes are eight times as wide: they multiply. Not where the
# largest sizes of a class would have a program ask for more than so many bytes.
_MANY = 4
_MOST_BYTES = 1 << 30


def limits_of(kernel: Kernel, sizes: tuple[int, ...]) -> dict[str, Range]:
    """The class of a launch's sizes: for every symbol of the kernel the range it stands for,
    as far as the kernel serves it."""
    return _limits(kernel, sizes, doublings(kernel, sizes))


def doublings(kernel: Kernel, sizes: tuple[int, ...]) -> int:
    """How wide the class of a launch's sizes is, the same for all sizes of it: see `size_class`."""
    wide = _widest(kernel)
    return wide if _made(kernel, _limits(kernel, sizes, wide)) <= _MOST_BYTES else 1


def classes_within(kernel: Kernel, ranges: Mapping[str, Range]) -> Iterator[tuple[int, ...]]:
    """Sizes of a launch for every class that sizes in `ranges` fall into, each symbol at its least.

    A stride is taken as it is least.
    """
    wide, strides = _widest(kernel), stride_symbols(kernel)

    def least(within: Mapping[str, Range], wide: int) -> Iterator[tuple[int, ...]]:
        return product(*(r[:1] if s in strides else _least(*r, wide) for s, r in within.items()))

    for sizes in least(ranges, wide):
        if doublings(kernel, sizes) == wide:
            yield sizes
            continue
        tops = (
            min(size_class(n, wide)[1], r[1]) for n, r in zip(sizes, ranges.values(), strict=True)
        )
        yield from least(dict(zip(ranges, zip(sizes, tops, strict=True), strict=True)), 1)


def _least(low: int, high: int, wide: int) -> Iterator[int]:
    while low <= high:
        yield low
        low = size_class(low, wide)[1] + 1


def _widest(kernel: Kernel) -> int:
    return 1 if len(set(kernel.symbols) - set(stride_symbols(kernel))) < _MANY else 3


def _made(kernel: Kernel, limits: Mapping[str, Range]) -> int:
    """Bytes of what a kernel computes at the largest sizes; its pool has room for as much."""
    return sum(
        prod(highest(extent, limits) for extent in tensor.shape) * tensor.dtype.bytes
        for tensor in kernel.tensors.values()
        if tensor.role in (Role.LOCAL, Role.OUTPUT)
    )


def _limits(kernel: Kernel, sizes: tuple[int, ...], wide: int) -> dict[str, Range]:
    pairs = zip(kernel.symbols, sizes, strict=True)
    limits = {s: _served(size_class(n, wide), n, kernel.limits.get(s)) for s, n in pairs}
    # No decision depends on a stride: one program serves all that the kernel allows.
    return limits | {s: kernel.limits[s] for s in stride_symbols(kernel) if s in kernel.limits}


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
