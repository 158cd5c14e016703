"""Host memory that processes of one machine share: anonymous, gone with the last who has it.

A process reaches another one's through /proc; where it cannot (another machine, another container)
`attach` raises OSError.
"""

from __future__ import annotations

import mmap
import os
import secrets
from dataclasses import dataclass

import torch

_TOKEN_BYTES = 8
_HEAD = 128  # the token, then words of the user's


@dataclass(frozen=True, slots=True)
class Address:
    """Where other processes find a segment; whole numbers, so that they can be sent."""

    process: int
    descriptor: int
    token: int
    size: int

    def numbers(self) -> list[int]:
        """The fields in order."""
        return [self.process, self.descriptor, self.token, self.size]


class Segment:
    """Bytes that processes share, as a CPU tensor of uint8 and a flag for whoever attaches."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._map = mmap.mmap(descriptor, _HEAD + size)
        whole = torch.frombuffer(self._map, dtype=torch.uint8)
        self.bytes = whole[_HEAD:]
        self._token = whole[:_TOKEN_BYTES].view(torch.int64)
        self._flag = whole[_TOKEN_BYTES : 2 * _TOKEN_BYTES].view(torch.int64)

    @property
    def token(self) -> int:
        """A number that no other segment has."""
        return int(self._token.item())

    @token.setter
    def token(self, value: int) -> None:
        self._token.fill_(value)

    @property
    def taken(self) -> bool:
        """Whether a reader has all it wants of the bytes."""
        return bool(self._flag.item())

    @taken.setter
    def taken(self, value: bool) -> None:
        self._flag.fill_(int(value))


class OwnSegment(Segment):
    """A segment that this process made. Its pages take memory once they are written."""

    def __init__(self, size: int) -> None:
        self._descriptor = os.memfd_create("spyreccl")
        os.ftruncate(self._descriptor, _HEAD + size)
        super().__init__(self._descriptor, size)
        self.token = secrets.randbits(62)
        self.address = Address(os.getpid(), self._descriptor, self.token, size)

    def close(self) -> None:
        """No other process can attach any more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


def attach(address: Address) -> Segment:
    """The segment at an address.

    Raises:
        OSError: this process cannot reach it.
    """
    descriptor = os.open(f"/proc/{address.process}/fd/{address.descriptor}", os.O_RDWR)
    try:
        if os.fstat(descriptor).st_size != _HEAD + address.size:
            raise OSError(f"what lies at {address} is no segment of that size")
        segment = Segment(descriptor, address.size)
    finally:
        os.close(descriptor)
    if segment.token != address.token:
        raise OSError(f"another segment lies at {address}")
    return segment
