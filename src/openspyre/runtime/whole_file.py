"""A file that appears whole or not at all, however many write it and whenever one is killed."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

PARTIAL = ".partial"
"""How the names of unfinished files end."""


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file beside its place and renames it; a device or pipe is written to.

    Raises:
        OSError: the folder is missing, full or not writable; nothing is left in it.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path = path.resolve()  # a link stays
    descriptor, partial = tempfile.mkstemp(PARTIAL, dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise
