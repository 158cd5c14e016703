"""Kernel text -> something that runs on a card.

The native `Kernel` object does everything of a warm call. Python is asked only for the program of
a class of sizes that has not been seen: sizes fall into powers of two, 0 and 1 apart, and one
program serves a class.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

from openspyre._C import Kernel, empty_strided_spyre
from openspyre.ir.kernel import Kernel as Region
from openspyre.ir.kernel import Role
from openspyre.ir.text import parse_kernel
from openspyre.runtime.programs import program_bytes
from openspyre.runtime.strides import stride_symbols
from openspyre.spec import SPYRE_CARD_V1

__all__ = ["Kernel", "empty_strided_spyre", "kernels", "load_kernel", "size_class"]

_lock = threading.Lock()
_loaded: dict[str, tuple[Kernel, _Programs]] = {}


def load_kernel(text: str, first: tuple[int, ...] | None = None) -> Kernel:
    """A callable for a kernel: call it with its arguments' tensors, then its size symbols.

    A scalar argument is a number or a CPU tensor with one element. Outputs are written in place,
    in the order of the current stream; the call returns None before the card has finished. An
    error of the card is raised by the next call that waits for it. Equal texts share one callable.

    Args:
        first: sizes of the first call: their program is compiled now.

    Raises:
        InvalidKernel: the text does not parse.
        Unsupported: the program for the first sizes cannot be compiled.
    """
    with _lock:
        if text not in _loaded:
            _loaded[text] = _callable(parse_kernel(text))
        kernel, programs = _loaded[text]
    if first is not None:
        programs.prepare(first)
    return kernel


def kernels() -> Iterator[Kernel]:
    """Every kernel that this process has loaded, in that order."""
    with _lock:
        loaded = tuple(kernel for kernel, _ in _loaded.values())
    yield from loaded


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


Variant = tuple[bytes, tuple[int, ...], tuple[int, ...]]


class _Programs:
    """The programs of a kernel; called with sizes, gives the variant for their class."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self._prepared: dict[tuple[int, ...], Variant] = {}

    def prepare(self, sizes: tuple[int, ...]) -> None:
        """Compile now what the next call with `sizes` will ask for."""
        self._prepared[sizes] = _variant(self.region, sizes)

    def __call__(self, sizes: tuple[int, ...]) -> Variant:
        return self._prepared.pop(sizes, None) or _variant(self.region, sizes)


def _callable(region: Region) -> tuple[Kernel, _Programs]:
    tensors = [region.tensors[name] for name in region.arguments]
    dtypes = [None if t.role is Role.SCALAR else t.dtype.value for t in tensors]
    programs = _Programs(region)
    return Kernel(region.name, tuple(dtypes), len(region.symbols), programs), programs


def _variant(region: Region, sizes: tuple[int, ...]) -> Variant:
    """Program bytes for the class of `sizes`, and the class: lowest and highest of every size."""
    limits = dict(zip(region.symbols, map(size_class, sizes), strict=True))
    # No decision depends on a stride: one program serves all that the kernel allows.
    limits |= {s: region.limits[s] for s in stride_symbols(region) if s in region.limits}
    given = dict(zip(region.symbols, sizes, strict=True))
    program = program_bytes(replace(region, limits=limits), SPYRE_CARD_V1, given)
    low, high = zip(*limits.values(), strict=True) if limits else ((), ())
    return program, low, high
