"""What the runtime needs of a card: memory, programs, launches, times.

`openspyre.card.native.SoftwareCard` implements it; a driver of a real card can do the same and
nothing above changes. Addresses are the card's; sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar, runtime_checkable

from openspyre.card.native import Report

__all__ = ["Driver", "Report"]

P = TypeVar("P")


@runtime_checkable
class Driver(Protocol[P]):
    """One card. `P` is the driver's handle of a loaded program."""

    @property
    def memory_base(self) -> int:
        """Address of the first byte of device memory."""

    @property
    def memory_bytes(self) -> int:
        """Size of device memory."""

    def write(self, address: int, data: bytes) -> None:
        """Copy host bytes to device memory."""

    def read(self, address: int, count: int) -> bytes:
        """Copy device memory to the host."""

    def load(self, address: int, count: int) -> P:
        """Make a program of bytes that lie in device memory.

        Raises:
            InvalidProgram: they are malformed, corrupted or of another version.
        """

    def fill(
        self,
        program: P,
        addresses: Sequence[int],
        sizes: Sequence[int] = (),
        scalars: Sequence[float] = (),
        pool: int = 0,
    ) -> bytes:
        """The symbol block of a launch: step 1 of 3. Step 2 writes it to device memory."""

    def run(self, program: P, block: int) -> None:
        """Run against the symbol block at an address; returns when the card has finished.

        Raises:
            CardError: an index of the user's is out of range, or the program accessed what it
                must not.
        """

    def time(self, program: P, block: bytes) -> Report:
        """What a launch with this symbol block costs. Computes no values."""
