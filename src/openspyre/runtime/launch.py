"""Kernel text -> something that runs on a card.

The native `Kernel` object does everything of a warm call. Python is asked only for the program of
a class of sizes that has not been seen: sizes fall into powers of two, 0 and 1 apart, and one
program serves a class.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace

import openspyre
from openspyre.errors import BrokenInvariant, SpyreError, Unsupported
from openspyre.ir.kernel import Kernel as Region
from openspyre.ir.kernel import Role
from openspyre.ir.text import parse_kernel
from openspyre.runtime.programs import program_bytes
from openspyre.runtime.sizes import Range, limits_of
from openspyre.spec import SPYRE_CARD_V1

openspyre.require()  # loads torch's libraries, then checks that the extension belongs to them
from openspyre._C import Kernel, empty_strided_spyre  # noqa: E402

__all__ = [
    "Kernel",
    "Programs",
    "empty_strided_spyre",
    "kernel_texts",
    "kernels",
    "load_kernel",
    "programs_of",
    "refused_sizes",
    "variant_for",
]

_lock = threading.Lock()
_loaded: dict[str, tuple[Kernel, Programs]] = {}
_programs: dict[Kernel, Programs] = {}


def load_kernel(text: str) -> Kernel:
    """A callable for a kernel: call it with its arguments' tensors, then its size symbols.

    A scalar argument is a number or a CPU tensor with one element. Outputs are written in place,
    in the order of the current stream; the call returns None before the card has finished. An
    error of the card is raised by the next call that waits for it. Equal texts share one callable.

    A call raises Unsupported where the card cannot run the kernel at its sizes.

    Raises:
        InvalidKernel: the text does not parse.
    """
    with _lock:
        if text not in _loaded:
            kernel, programs = _loaded[text] = _callable(parse_kernel(text))
            _programs[kernel] = programs
        return _loaded[text][0]


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


def programs_of(kernel: Kernel) -> Programs:
    """What makes the programs of a loaded kernel."""
    return _programs[kernel]


def refused_sizes(text: str) -> tuple[tuple[int, ...], ...]:
    """Sizes for which a loaded kernel did not compile."""
    with _lock:
        return tuple(_loaded[text][1].refused)


Variant = tuple[bytes, tuple[int, ...], tuple[int, ...]]


def variant_for(region: Region, sizes: tuple[int, ...]) -> Variant:
    """The program for the class of `sizes`, with its lowest and its highest sizes.

    Raises:
        Unsupported: the card cannot run the kernel at these sizes.
    """
    return Programs(region)(sizes)


class Programs:
    """The programs of a kernel; called with sizes, gives the variant for their class."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.refused: list[tuple[int, ...]] = []
        self._unsupported: dict[tuple[tuple[int, int], ...], Unsupported] = {}

    def __call__(self, sizes: tuple[int, ...]) -> Variant:
        return self._variant(limits_of(self.region, sizes), sizes)

    def serving(self, ranges: Mapping[str, Range], sizes: tuple[int, ...]) -> Variant:
        """The variant for ranges of some symbols, and for the classes of the others' sizes."""
        return self._variant(limits_of(self.region, sizes) | dict(ranges), ())

    def _variant(self, limits: dict[str, Range], sizes: tuple[int, ...]) -> Variant:
        classes = tuple(limits.values())
        given = dict(zip(self.region.symbols, sizes, strict=False))
        try:
            if classes in self._unsupported:
                raise self._unsupported[classes].with_traceback(None)
            kernel = replace(self.region, limits=limits)
            program = program_bytes(kernel, SPYRE_CARD_V1, given)
        except (SpyreError, BrokenInvariant) as error:
            self.refused.append(sizes or tuple(high for _, high in classes))
            if isinstance(error, Unsupported):
                self._unsupported[classes] = error
            raise
        low, high = zip(*classes, strict=True) if classes else ((), ())
        return program, low, high


def _callable(region: Region) -> tuple[Kernel, Programs]:
    tensors = [region.tensors[name] for name in region.arguments]
    dtypes = [None if t.role is Role.SCALAR else t.dtype.value for t in tensors]
    programs = Programs(region)
    return Kernel(region.name, tuple(dtypes), len(region.symbols), programs), programs
