"""What was compiled, on disk, found by a key; any number of processes may use one folder at once.

A file holds one entry and appears whole: it is written beside its place and renamed. Nothing is
locked and nothing is synchronised to the disk, so an entry whose checksum is not right is none.
Files carry the time of their last use; the oldest go when the folder outgrows its limit.

    magic       8 bytes
    key         32 bytes
    checksum    32 bytes: SHA-256 of the data
    data        a program as `ir/binary.py` writes it, patterns as `frontend/patterns.py` does, or
                what `runtime/stages.py` has shown
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path

from openspyre.runtime.whole_file import PARTIAL, write_whole
from openspyre.settings import settings

_MAGIC = b"SPYRE\0C2"
_TALLY = ".written"
_HEADER_BYTES = len(_MAGIC) + 32 + 32
_BLOCK = 4096
"""Bytes: what a small file takes on disk, and what one byte of the tally stands for."""
_SWEEP_PART = 16
"""The folder is looked through each time this part of the limit has been written to it."""
_ABANDONED_SECONDS = 3600
"""A partial file of this age has no writer any more."""


class Kind(Enum):
    """What an entry holds; the value is the end of its file's name."""

    PROGRAM = ".program"
    PATTERN = ".pattern"
    STAGES = ".stages"


@dataclass(frozen=True, slots=True)
class Contents:
    """How many programs and eager patterns there are, and what all of them take, in bytes."""

    programs: int
    patterns: int
    bytes: int


_ENTRIES = tuple(kind.value for kind in Kind)


class ProgramCache:
    """A folder of entries.

    A folder that cannot be used is an empty cache: the first failure to write warns, and later
    entries are not written.

    Args:
        folder: made when the first entry is kept, for this user alone.
        limit: bytes the entries may take.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._writable = True

    def find(self, key: str, kind: Kind = Kind.PROGRAM) -> bytes | None:
        """The data kept under a key (64 hex digits)."""
        path = self._path(key, kind)
        try:
            if not self._trusted():
                return None
            entry = path.read_bytes()
        except OSError:
            return None
        data = entry[_HEADER_BYTES:]
        if entry[:_HEADER_BYTES] != _header(key, data):
            self.discard(key, kind)
            return None
        with suppress(OSError):  # a folder that can only be read serves as well
            os.utime(path)
        return data

    def keep(self, key: str, data: bytes, kind: Kind = Kind.PROGRAM) -> None:
        """Writes an entry, unless it alone exceeds the limit or writing has failed before."""
        entry = _header(key, data) + data
        if not self._writable or _on_disk(len(entry)) > self.limit:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._trusted():
                raise PermissionError("the folder belongs to another user")
            write_whole(self._path(key, kind), entry)
            if self._written(len(entry)) > self.limit // _SWEEP_PART:
                self._sweep()
        except OSError as error:
            self._writable = False
            warnings.warn(
                f"openspyre keeps no compiled programs in {self.folder}: {error}; "
                "choose another folder with OPENSPYRE_CACHE",
                stacklevel=2,
            )

    def discard(self, key: str, kind: Kind = Kind.PROGRAM) -> None:
        """Removes an entry that turned out not to be right."""
        with suppress(OSError):
            self._path(key, kind).unlink()

    def contents(self) -> Contents:
        """What is there now."""
        sizes = {kind: [s.st_size for _, s in self._files(kind.value)] for kind in Kind}
        total = sum(map(sum, sizes.values()))
        return Contents(len(sizes[Kind.PROGRAM]), len(sizes[Kind.PATTERN]), total)

    def clear(self) -> Contents:
        """Removes every entry, and what killed writers left. Returns what was there.

        Raises:
            OSError: a file cannot be removed.
        """
        removed = self.contents()
        for path, _ in self._files(*_ENTRIES, PARTIAL, _TALLY):
            path.unlink(missing_ok=True)
        return removed

    def _path(self, key: str, kind: Kind) -> Path:
        return self.folder / (key + kind.value)

    def _trusted(self) -> bool:
        """Programs of another user are not run (those of the administrator are)."""
        return self.folder.stat().st_uid in (0, os.getuid())

    def _written(self, size: int) -> int:
        """Bytes that all processes have written since the last sweep, `size` now.

        The tally is the length of a file: appending is atomic, and the content means nothing.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = os.open(self.folder / _TALLY, flags, 0o600)
        try:
            os.write(descriptor, b"." * (_on_disk(size) // _BLOCK))
            return os.fstat(descriptor).st_size * _BLOCK
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Removes the entries unused for longest, so that the next sweep finds no excess."""
        os.truncate(self.folder / _TALLY, 0)
        aim = self.limit - self.limit // _SWEEP_PART
        taken = 0
        for path, status in sorted(self._files(*_ENTRIES), key=lambda f: -f[1].st_mtime_ns):
            taken += _on_disk(status.st_size)
            if taken > aim:
                path.unlink(missing_ok=True)
        for path, status in self._files(PARTIAL):
            if time.time() - status.st_mtime > _ABANDONED_SECONDS:
                path.unlink(missing_ok=True)

    def _files(self, *ends: str) -> Iterator[tuple[Path, os.stat_result]]:
        try:
            entries = list(os.scandir(self.folder))
        except OSError:
            return
        for entry in entries:
            if not entry.name.endswith(ends):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # another process was faster
                continue
            yield Path(entry.path), status


def _header(key: str, data: bytes) -> bytes:
    return _MAGIC + bytes.fromhex(key) + hashlib.sha256(data).digest()


def _on_disk(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def chosen_cache() -> ProgramCache:
    """The cache that the settings describe, whether or not they let it be used."""
    chosen = settings()
    return ProgramCache(chosen.cache / "programs", chosen.cache_limit)


@cache
def program_cache() -> ProgramCache | None:
    """The cache of this process; None when the settings switch it off."""
    return chosen_cache() if settings().cache_programs else None
