"""Launches that do not run: so that a program is there before the first launch that needs it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from openspyre import _C
from openspyre.runtime.launch import Kernel, programs_of
from openspyre.runtime.sizes import Range

Called = Callable[[Kernel, tuple[int, ...]], None]
_here = threading.local()


@contextmanager
def in_place_of_launches(called: Called) -> Iterator[None]:
    """Has this thread's launches call a function with the kernel and its sizes, and do nothing.

    What they would have written holds whatever its memory held. Copies from and to the host go on.
    """
    before: Called | None = getattr(_here, "called", None)
    _here.called = called
    _C.launch_in_place(called)
    try:
        yield
    finally:
        _here.called = before
        _C.launch_in_place(before)


@contextmanager
def rehearsing() -> Iterator[None]:
    """Has this thread's launches make their programs ready, and do nothing else."""
    with in_place_of_launches(make_ready):
        yield


def make_ready(kernel: Kernel, sizes: tuple[int, ...]) -> None:
    """The program for the class of these sizes, unless there is one that serves them."""
    if not kernel.serves(sizes):
        kernel.add(programs_of(kernel)(sizes))


def make_ready_for(kernel: Kernel, ranges: Mapping[str, Range], sizes: tuple[int, ...]) -> None:
    """One program for ranges of some symbols; `sizes` are examples, which give the others."""
    kernel.add(programs_of(kernel).serving(ranges, sizes))
