"""Binary files read in order, with every length checked against what is there."""

from __future__ import annotations

import struct
from typing import Any

from openspyre.errors import SpyreError


class Reader:
    """Little-endian values of a file in memory, one after another.

    Attributes:
        what: the file, for messages.
        at: the offset of the next byte.
    """

    def __init__(self, what: str, data: memoryview) -> None:
        self.what, self.at = what, 0
        self._data = data

    def bytes(self, count: int) -> memoryview:
        """The next bytes.

        Raises:
            SpyreError: the file ends before.
        """
        if not 0 <= count <= len(self._data) - self.at:
            raise self.malformed(f"it ends {count} bytes after byte {self.at} at the earliest")
        self.at += count
        return self._data[self.at - count : self.at]

    def one(self, form: str) -> Any:
        """The next value, of a format of `struct`."""
        return struct.unpack("<" + form, self.bytes(struct.calcsize("<" + form)))[0]

    def many(self, form: str, count: int) -> tuple[Any, ...]:
        """The next values of a format."""
        size = struct.calcsize("<" + form)
        return struct.unpack(f"<{count}{form}", self.bytes(count * size))

    def malformed(self, why: str) -> SpyreError:
        return SpyreError(f"{self.what} cannot be read", why=why)
