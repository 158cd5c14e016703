"""Programs on disk, found by a key; any number of processes may use one folder at once.

A file holds one program and appears whole: it is written beside its place and renamed. Nothing is
locked and nothing is synchronised to the disk, so whoever reads must be ready for bytes that are
not right. Files carry the time of their last use; the oldest go when the folder outgrows its limit.

    magic       8 bytes
    key         32 bytes
    length      8 bytes, little-endian: bytes of the program
    program     as `ir/binary.py` writes it, with its own checksum
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from openspyre.settings import settings

_MAGIC = b"SPYRE\0P1"
_ENTRY = ".program"
_PARTIAL = ".partial"
_TALLY = ".written"
_BLOCK = 4096
"""Bytes: what a small file takes on disk, and what one byte of the tally stands for."""
_SWEEP_PART = 16
"""The folder is looked through each time this part of the limit has been written to it."""
_ABANDONED_SECONDS = 3600
"""A partial file of this age has no writer any more."""


@dataclass(frozen=True, slots=True)
class Contents:
    """How many programs there are and what they take, in bytes."""

    entries: int
    bytes: int


class ProgramCache:
    """A folder of programs.

    A folder that cannot be used is an empty cache: the first failure to write warns, and later
    programs are not written.

    Args:
        folder: made when the first program is kept, for this user alone.
        limit: bytes the programs may take.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._writable = True

    def find(self, key: str) -> bytes | None:
        """The program kept under a key (64 hex digits); its checksum has not been verified."""
        path = self._path(key)
        try:
            if not self._trusted():
                return None
            data = path.read_bytes()
        except OSError:
            return None
        program = data[len(_header(key, 0)) :]
        if data != _header(key, len(program)) + program:
            self.discard(key)
            return None
        with suppress(OSError):  # a folder that can only be read serves as well
            os.utime(path)
        return program

    def keep(self, key: str, program: bytes) -> None:
        """Writes a program, unless it alone exceeds the limit or writing has failed before."""
        data = _header(key, len(program)) + program
        if not self._writable or _on_disk(len(data)) > self.limit:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._trusted():
                raise PermissionError("the folder belongs to another user")
            self._write(key, data)
            if self._written(len(data)) > self.limit // _SWEEP_PART:
                self._sweep()
        except OSError as error:
            self._writable = False
            warnings.warn(
                f"openspyre keeps no compiled programs in {self.folder}: {error}; "
                "choose another folder with OPENSPYRE_CACHE",
                stacklevel=2,
            )

    def discard(self, key: str) -> None:
        """Removes a program that turned out not to be right."""
        with suppress(OSError):
            self._path(key).unlink()

    def contents(self) -> Contents:
        """What is there now."""
        sizes = [status.st_size for _, status in self._files(_ENTRY)]
        return Contents(len(sizes), sum(sizes))

    def clear(self) -> Contents:
        """Removes every program, and what killed writers left. Returns what was there.

        Raises:
            OSError: a file cannot be removed.
        """
        removed = self.contents()
        for suffix in (_ENTRY, _PARTIAL, _TALLY):
            for path, _ in self._files(suffix):
                path.unlink(missing_ok=True)
        return removed

    def _path(self, key: str) -> Path:
        return self.folder / (key + _ENTRY)

    def _trusted(self) -> bool:
        """Programs of another user are not run (those of the administrator are)."""
        return self.folder.stat().st_uid in (0, os.getuid())

    def _write(self, key: str, data: bytes) -> None:
        descriptor, partial = tempfile.mkstemp(_PARTIAL, dir=self.folder)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
            os.replace(partial, self._path(key))
        except BaseException:
            with suppress(OSError):
                os.unlink(partial)
            raise

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
        """Removes the programs unused for longest, so that the next sweep finds no excess."""
        os.truncate(self.folder / _TALLY, 0)
        aim = self.limit - self.limit // _SWEEP_PART
        taken = 0
        for path, status in sorted(self._files(_ENTRY), key=lambda f: -f[1].st_mtime_ns):
            taken += _on_disk(status.st_size)
            if taken > aim:
                path.unlink(missing_ok=True)
        for path, status in self._files(_PARTIAL):
            if time.time() - status.st_mtime > _ABANDONED_SECONDS:
                path.unlink(missing_ok=True)

    def _files(self, suffix: str) -> Iterator[tuple[Path, os.stat_result]]:
        try:
            entries = list(os.scandir(self.folder))
        except OSError:
            return
        for entry in entries:
            if not entry.name.endswith(suffix):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # another process was faster
                continue
            yield Path(entry.path), status


def _header(key: str, length: int) -> bytes:
    return _MAGIC + bytes.fromhex(key) + struct.pack("<Q", length)


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
