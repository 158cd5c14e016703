"""Whether a compiled file is all there.

The loader maps a file that was cut short (a full disk, a broken copy) without complaint, and the
process dies of SIGBUS at the first page behind the file's end. So its length is looked at before.
"""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")  # Elf64_Ehdr after its 16 bytes of identification
_SEGMENT = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr
_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_LITTLE_64 = b"\x7fELF\x02\x01"


def missing_bytes(path: Path) -> int:
    """How many bytes a shared library's file lacks at its end; 0 for what is not 64-bit ELF."""
    with open(path, "rb") as file:
        start = file.read(4096)  # linkers put the table of segments right after the header
    if not start.startswith(_LITTLE_64):
        return 0
    return max(0, _length(start) - path.stat().st_size)


def _length(start: bytes) -> int:
    """How long a file must be for its segments and the table of sections to lie in it."""
    if len(start) < _HEADER.size:
        return _HEADER.size
    header = _HEADER.unpack_from(start)
    segments, sections, (size, count), many = header[4], header[5], header[8:10], header[11]
    ends: list[int] = [segments + size * count, sections + _SECTION.size * many]
    for at in range(segments, min(ends[0], len(start) - _SEGMENT.size + 1), size):
        _, _, offset, _, _, held, _, _ = _SEGMENT.unpack_from(start, at)
        ends.append(offset + held)
    return max(ends)
