"""The cards of the processes on this machine, from the counters that they show.

A process that has used a card keeps a file of counters in the run folder (csrc/device/state.h).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"SPYREST1"
_HEAD = struct.Struct("<8sQQ40x")  # magic, process, devices
_CARD = struct.Struct("<5Q24x")  # memory, allocated, reserved, launches, nanoseconds busy


@dataclass(frozen=True, slots=True)
class CardUse:
    """One card of a process.

    Attributes:
        memory, allocated, reserved: bytes: of the card, of tensors, held by the allocator.
        utilisation: the share of the time between two looks in which a program ran.
    """

    process: int
    command: str
    device: int
    memory: int
    allocated: int
    reserved: int
    launches: int
    busy_seconds: float
    utilisation: float = 0.0


def read_states(folder: Path) -> list[CardUse]:
    """Every card that a living process has used; files of dead processes are removed."""
    try:
        files = sorted(folder.glob("*.state"))
    except OSError:
        return []
    return [use for file in files for use in _read(file)]


def _read(file: Path) -> Iterator[CardUse]:
    try:
        data = file.read_bytes()
    except OSError:  # it has just ended
        return
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        return
    _, process, devices = _HEAD.unpack_from(data)
    command = _command(process)
    if command is None:
        with suppress(OSError):
            file.unlink()
        return
    for device in range(min(devices, (len(data) - _HEAD.size) // _CARD.size)):
        memory, allocated, reserved, launches, busy = _CARD.unpack_from(
            data, _HEAD.size + device * _CARD.size
        )
        if memory:
            yield CardUse(
                process, command, device, memory, allocated, reserved, launches, busy / 1e9
            )


def _command(process: int) -> str | None:
    """How a process was started; None if there is none."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    return " ".join(word.decode(errors="replace") for word in words if word) or None
