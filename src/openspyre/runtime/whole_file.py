"""A file that appears whole or not at all, however many write it and whenever one is killed."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

PARTIAL = ".partial"
"""How the names of unfinished files end."""


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file beside its place and renames it.

    Raises:
        OSError: the folder is missing, full or not writable; nothing is left in it.
    """
    descriptor, partial = tempfile.mkstemp(PARTIAL, dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise
