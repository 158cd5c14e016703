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
from openspyre.errors import BrokenInvariant, SpyreError
from openspyre.ir.kernel import Kernel as Region
from openspyre.ir.kernel import Role
from openspyre.ir.text import parse_kernel
from openspyre.runtime.programs import program_bytes
from openspyre.runtime.sizes import limits_of
from openspyre.spec import SPYRE_CARD_V1

__all__ = [
    "Kernel",
    "empty_strided_spyre",
    "kernel_texts",
    "kernels",
    "load_kernel",
    "refused_sizes",
]

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


def kernel_texts() -> Iterator[tuple[str, Kernel]]:
    """The text of every kernel that this process has loaded, and the kernel."""
    with _lock:
        loaded = tuple((text, kernel) for text, (kernel, _) in _loaded.items())
    yield from loaded


def refused_sizes(text: str) -> tuple[tuple[int, ...], ...]:
    """Sizes for which a loaded kernel did not compile."""
    with _lock:
        return tuple(_loaded[text][1].refused)


Variant = tuple[bytes, tuple[int, ...], tuple[int, ...]]


class _Programs:
    """The programs of a kernel; called with sizes, gives the variant for their class."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.refused: list[tuple[int, ...]] = []
        self._prepared: dict[tuple[int, ...], Variant] = {}

    def prepare(self, sizes: tuple[int, ...]) -> None:
        """Compile now what the next call with `sizes` will ask for."""
        self._prepared[sizes] = self._compiled(sizes)

    def __call__(self, sizes: tuple[int, ...]) -> Variant:
        return self._prepared.pop(sizes, None) or self._compiled(sizes)

    def _compiled(self, sizes: tuple[int, ...]) -> Variant:
        try:
            return _variant(self.region, sizes)
        except (SpyreError, BrokenInvariant):
            self.refused.append(sizes)
            raise


def _callable(region: Region) -> tuple[Kernel, _Programs]:
    tensors = [region.tensors[name] for name in region.arguments]
    dtypes = [None if t.role is Role.SCALAR else t.dtype.value for t in tensors]
    programs = _Programs(region)
    return Kernel(region.name, tuple(dtypes), len(region.symbols), programs), programs


def _variant(region: Region, sizes: tuple[int, ...]) -> Variant:
    """Program bytes for the class of `sizes`, and the class: lowest and highest of every size."""
    limits = limits_of(region, sizes)
    given = dict(zip(region.symbols, sizes, strict=True))
    program = program_bytes(replace(region, limits=limits), SPYRE_CARD_V1, given)
    low, high = zip(*limits.values(), strict=True) if limits else ((), ())
    return program, low, high
