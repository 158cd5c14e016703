"""A process between us and a command that we do not trust: runs it, bounded, and ends what it left.

    python confinement.py SECONDS SCRATCH COMMAND [ARGS]...

A program of its own that needs nothing but Python. Where the kernel has Landlock, the command
and all it starts can write, make, remove and cut files below SCRATCH alone, and (from Landlock 6
on) signal nobody else; reading, the network, and the mode, owner and times of files stay free. Its
files have at most 256 MiB. When SECONDS are over, the command has ended or our parent has, every
process that descends from it is killed, also those that have left its group and session.

Exit code: the command's, 124 if its time was over, 125 if it cannot be run.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path

TIME_OVER, NOT_RUN = 124, 125
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # system calls of Landlock, on every architecture
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_SCOPE_SIGNAL = 1 << 1
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty")
_PDEATHSIG, _NO_NEW_PRIVS, _SUBREAPER = 1, 38, 36  # of prctl
_FILE_BYTES = 256 << 20
_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("files", ctypes.c_uint64),
        ("net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def landlock() -> int:
    """The version of Landlock that this kernel has; 0: none."""
    return max(0, int(_libc.syscall(_CREATE, None, 0, 1)))


def restrict_writes(folder: str) -> bool:
    """From now on this process and its children can write below a folder alone; False: cannot."""
    version = landlock()
    if not version:
        return False
    files = _WRITE_FILE | _REMOVE_AND_MAKE
    files |= (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    rules = _Ruleset(files, 0, _SCOPE_SIGNAL if version >= 6 else 0)
    size = ctypes.sizeof(rules) if version >= 6 else 8
    ruleset = int(_libc.syscall(_CREATE, ctypes.byref(rules), size, 0))
    if ruleset < 0:
        return False
    device_files = files & (_WRITE_FILE | _TRUNCATE)
    for path, allowed in ((folder, files), *((name, device_files) for name in _DEVICES)):
        if not os.path.exists(path):
            continue
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = _Beneath(allowed, place)
        added = _libc.syscall(_ADD_RULE, ruleset, 1, ctypes.byref(rule), 0)
        os.close(place)
        if added < 0:
            return False
    _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    restricted = bool(_libc.syscall(_RESTRICT, ruleset, 0) == 0)
    os.close(ruleset)
    return restricted


def descendants(process: int) -> list[int]:
    """All processes below one."""
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = [int(word) for word in task.read_text().split()]
        except OSError:  # it has ended meanwhile
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def _end_all() -> None:
    """Kills what descends from this process until nothing does."""
    while left := descendants(os.getpid()):
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        _reap()
        time.sleep(0.01)


def _reap() -> dict[int, int]:
    """The exit codes of children that have ended."""
    ended: dict[int, int] = {}
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if not process:
            return ended
        ended[process] = os.waitstatus_to_exitcode(status)


def _command(scratch: str, command: list[str]) -> None:
    """In the child: becomes the command."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.chdir(scratch)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if landlock() and not restrict_writes(scratch):
            raise OSError("this kernel has Landlock and refuses it")
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error}", file=sys.stderr, flush=True)
        os._exit(NOT_RUN)


def main(asking: int, seconds: float, scratch: str, command: list[str]) -> int:
    # A signal that waits to be read cannot come at a moment when the command would outlive this.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    _libc.prctl(_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != asking:  # it ended before it could be watched
        return TIME_OVER
    end = time.monotonic() + seconds
    process = os.fork()
    if not process:
        _command(scratch, command)
    for sink in (0, 1):  # only the command holds them: its end is the end of its output
        os.dup2(os.open(os.devnull, os.O_RDWR), sink)
    try:
        while time.monotonic() < end and not signal.sigtimedwait({signal.SIGTERM}, 0.01):
            ended = _reap()
            if process in ended:
                return ended[process] if ended[process] >= 0 else 128 - ended[process]
        return TIME_OVER
    finally:
        _end_all()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:]))
