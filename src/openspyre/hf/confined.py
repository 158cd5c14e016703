"""Running a command that is not trusted: bounded in time, output and what it can write."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from openspyre.hf import confinement
from openspyre.settings import child_environment

_GRACE = 5.0  # seconds that the process between has to end what the command left
_Stamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended.

    Attributes:
        code: its exit code.
        output, errors: what it wrote, up to the limit.
        problem: why its answer does not count: its time was over, or it wrote too much.
        changed: files outside the scratch directory that are not as they were.
    """

    code: int
    output: str
    errors: str
    seconds: float
    problem: str = ""
    changed: tuple[str, ...] = ()


def enforced() -> str:
    """What keeps a command from writing elsewhere on this machine, for people to read."""
    if version := confinement.landlock():
        return (
            f"writes outside the scratch directory are refused by the kernel (Landlock {version})"
        )
    return "the kernel has no Landlock: files are only compared before and after"


def run_confined(
    command: Sequence[str],
    scratch: Path,
    *,
    seconds: float,
    given: str = "",
    most: int = 1 << 20,
    guarded: Sequence[Path] = (),
    environment: dict[str, str] | None = None,
) -> Ran:
    """Runs a command in a scratch directory, which is its HOME and TMPDIR too.

    Args:
        seconds: after which it and all that it has started are killed.
        given: its standard input.
        most: bytes of output after which it is killed.
        guarded: folders that must not change meanwhile, whoever changes them.
    """
    scratch = scratch.resolve()
    before = snapshot(guarded, scratch)
    begun = time.monotonic()
    asking = str(os.getpid())
    between = [sys.executable, "-I", confinement.__file__, asking, str(seconds), str(scratch)]
    places = {"HOME": str(scratch), "TMPDIR": str(scratch)}
    process = subprocess.Popen(
        [*between, *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=child_environment(**places, **(environment or {})),
        start_new_session=True,
    )  # fmt: skip
    feeder = threading.Thread(target=_feed, args=(process.stdin, given.encode()), daemon=True)
    output, errors = (_Reader(pipe, most, process) for pipe in (process.stdout, process.stderr))
    for thread in (feeder, output, errors):
        thread.start()
    try:
        code = process.wait(seconds + _GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    for thread in (feeder, output, errors):
        thread.join(_GRACE)
    problem = ""
    if output.over or errors.over:
        problem = f"it wrote more than {most} bytes"
    elif code == confinement.TIME_OVER:
        problem = f"its {seconds:g} seconds were over"
    changed = differing(before, snapshot(guarded, scratch))
    return Ran(code, output.text, errors.text, time.monotonic() - begun, problem, changed)


def _feed(pipe: IO[bytes] | None, data: bytes) -> None:
    assert pipe is not None
    try:
        with pipe:
            pipe.write(data)
    except OSError:
        return  # who does not read its input may still answer


class _Reader(threading.Thread):
    """Reads a pipe to its end; one byte too many ends the process."""

    def __init__(self, pipe: IO[bytes] | None, most: int, process: subprocess.Popen[bytes]) -> None:
        super().__init__(daemon=True)
        self.pipe, self.most, self.process = pipe, most, process
        self.data, self.over = b"", False

    def run(self) -> None:
        assert self.pipe is not None
        with self.pipe:
            self._read(self.pipe)

    def _read(self, pipe: IO[bytes]) -> None:
        while part := os.read(pipe.fileno(), 1 << 16):
            self.data += part[: self.most - len(self.data)]
            if len(self.data) >= self.most and not self.over:
                self.over = True
                self.process.terminate()

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")


# --- what a command has changed -------------------------------------------------------------------


def snapshot(folders: Sequence[Path], scratch: Path) -> dict[str, _Stamp]:
    """Every file below folders with what changes when it does; Python's caches do not count."""
    found: dict[str, _Stamp] = {}
    for folder in folders:
        for place, inner, files in os.walk(folder):
            inner[:] = [n for n in inner if n != "__pycache__" and Path(place, n) != scratch]
            for name in (*inner, *files):
                path = os.path.join(place, name)
                try:
                    facts = os.lstat(path)
                except OSError:  # it has gone meanwhile
                    continue
                size = 0 if name in inner else facts.st_size
                times = (0, 0) if name in inner else (facts.st_mtime_ns, facts.st_ctime_ns)
                found[path] = (facts.st_ino, size, *times)
    return found


def differing(before: dict[str, _Stamp], after: dict[str, _Stamp]) -> tuple[str, ...]:
    """Files that are new, gone or not as they were."""
    names = before.keys() | after.keys()
    return tuple(sorted(name for name in names if before.get(name) != after.get(name)))
