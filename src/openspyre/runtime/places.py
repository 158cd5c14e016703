"""Where in the user's code something came from, as `FILE:LINE code`. Needs no torch.

FILE is relative to the working directory, or to the folder that packages are installed in, where
it is below one of them.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import PurePath
from types import FrameType

_PACKAGES = ("site-packages", "dist-packages")
_MACHINERY = frozenset({"torch", "openspyre", "runpy", "contextlib", "functools", "threading"})
"""Packages whose frames are nobody's own lines: ours, torch's (generated code too), the helpers."""
_TORCH = os.path.join("torch", "")  # how the files of torch are shown, once installed
_FRAME = re.compile(r'File "(.+)", line (\d+)(?:, in .*)?$')
_PLACE = re.compile(r"(.+?):(\d+)(?: (.*))?$", re.DOTALL)


def shown_file(file: str) -> str:
    """A file's path as short as it can be without two files looking the same."""
    return _shown(file, os.getcwd())


@lru_cache(maxsize=4096)
def _shown(file: str, here: str) -> str:
    file = os.fsencode(file).decode(errors="replace")
    parts = PurePath(file).parts
    for n in range(len(parts) - 1, 0, -1):
        if parts[n - 1] in _PACKAGES:
            return str(PurePath(*parts[n:]))
    return os.path.relpath(file, here) if file.startswith(os.path.join(here, "")) else file


def place_in_trace(trace: str) -> str:
    """The innermost line of a stack trace's text, of torch's only where there is no other.

    Empty if there is none.
    """
    lines = [line.strip() for line in trace.strip().splitlines()]
    last = ""
    for k in range(len(lines) - 1, -1, -1):
        if found := _FRAME.match(lines[k]):
            code = lines[k + 1] if k + 1 < len(lines) else ""
            place = f"{shown_file(found[1])}:{found[2]} {code}".strip()
            if not place.startswith(_TORCH):
                return place
            last = last or place
    return last


def split_place(text: str) -> tuple[str, str]:
    """Place and code of a line; no place where the text names none.

    >>> split_place("my models/model.py:5 return torch.softmax(x, -1)")
    ('my models/model.py:5', 'return torch.softmax(x, -1)')
    >>> split_place("add, mul")
    ('', 'add, mul')
    """
    found = _PLACE.match(text)
    return (f"{found[1]}:{found[2]}", found[3] or "") if found else ("", text)


def calling_place() -> str:
    """The line of the user's that this thread is at, or the main thread where it is at none.

    The second is what a thread of autograd's works for. Empty if neither is at one.
    """
    own = sys._getframe(1)
    for frame in _users(own):
        return _place(frame)
    main = sys._current_frames().get(threading.main_thread().ident or 0)
    for frame in _users(main):
        return _place(frame)
    return ""


def _users(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        file = frame.f_code.co_filename
        theirs = root not in _MACHINERY and not file.startswith("<frozen")
        if theirs and not shown_file(file).startswith(_TORCH):  # what torch calls generated code
            yield frame
        frame = frame.f_back


def _place(frame: FrameType) -> str:
    file, line = frame.f_code.co_filename, frame.f_lineno
    code = linecache.getline(file, line, frame.f_globals).strip()
    return f"{shown_file(file)}:{line} {code}".strip()
