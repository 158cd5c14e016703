"""Kernel text -> something that runs on a card.

The native `Kernel` object does everything of a warm call. Python is asked only for the program of
a class of sizes that has not been seen: sizes fall into powers of two, 0 and 1 apart, and one
program serves a class.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from openspyre._C import Kernel, empty_strided_spyre
from openspyre.compiler.pipeline import compile_kernel
from openspyre.ir.binary import encode
from openspyre.ir.kernel import Kernel as Region
from openspyre.ir.kernel import Role
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1

__all__ = ["Kernel", "empty_strided_spyre", "kernels", "load_kernel", "size_class"]

_lock = threading.Lock()
_loaded: dict[str, Kernel] = {}


def load_kernel(text: str) -> Kernel:
    """A callable for a kernel: call it with its arguments' tensors, then its size symbols.

    A scalar argument is a number or a CPU tensor with one element. Outputs are written in place,
    the call returns None when the card has finished. Equal texts share one callable.

    Raises:
        InvalidKernel: the text does not parse.
    """
    with _lock:
        if text not in _loaded:
            _loaded[text] = _callable(parse_kernel(text))
        return _loaded[text]


def kernels() -> Iterator[Kernel]:
    """Every kernel that this process has loaded, in that order."""
    with _lock:
        loaded = tuple(_loaded.values())
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


def _callable(region: Region) -> Kernel:
    tensors = [region.tensors[name] for name in region.arguments]
    dtypes = [None if t.role is Role.SCALAR else t.dtype.value for t in tensors]
    return Kernel(region.name, tuple(dtypes), len(region.symbols), partial(_variant, region))


def _variant(
    region: Region, sizes: tuple[int, ...]
) -> tuple[bytes, tuple[int, ...], tuple[int, ...]]:
    """Program bytes for the class of `sizes`, and the class: lowest and highest of every size."""
    limits = dict(zip(region.symbols, map(size_class, sizes), strict=True))
    program = compile_kernel(replace(region, limits=limits), SPYRE_CARD_V1)
    low, high = zip(*limits.values(), strict=True) if limits else ((), ())
    return encode(program), low, high
