"""What a worker tells of its card: a small file that the server reads when metrics are asked for.

The worker is in another process than `/metrics`, and vLLM's statistics of a step have no field for
a platform. The file lies in the run folder beside the counters of `openspyre.runtime.shown`; its
name has the instance of vLLM that both belong to.
"""

from __future__ import annotations

import json
import os
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from openspyre import _C
from openspyre.runtime.programs import compiled_programs
from openspyre.settings import settings
from openspyre.spec import SPYRE_CARD_V1

# Upper ends of the classes of card seconds of a step; one more has those above.
SECONDS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
_PAUSE = 0.1  # seconds from one writing of the file to the next


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A worker's steps since it was ready.

    Attributes:
        seconds: card time of all steps.
        counts: steps by card time, see SECONDS.
        fallbacks: how often each op ran on the CPU.
        compiles: programs that were compiled.
    """

    process: int
    device: int
    rank: int
    counts: tuple[int, ...] = (0,) * (len(SECONDS) + 1)
    seconds: float = 0.0
    fallbacks: Mapping[str, int] | None = None
    compiles: int = 0

    @property
    def cycles(self) -> int:
        """Card time of all steps in cycles of the core clock."""
        return round(self.seconds * SPYRE_CARD_V1.clock_ghz * 1e9)

    def with_step(self, seconds: float) -> StepRecord:
        """The record with one step more."""
        counts = list(self.counts)
        counts[bisect_left(SECONDS, seconds)] += 1
        return replace(self, counts=tuple(counts), seconds=self.seconds + seconds)


class CardMeter:
    """Counts what the steps of a worker cost from here on.

    A step leaves a mark in the card's queue, and waits for nothing. A thread reads the marks that
    the card has passed and writes the file, `_PAUSE` after a step at the latest.
    """

    def __init__(self, instance: str, device: torch.device, rank: int) -> None:
        folder = settings().run
        _remove_dead(folder)
        self.file = folder / f"{instance}-{rank}.steps"
        self.device = device
        self._compiled = compiled_programs()
        self._marks = deque([self._marked()])  # the last one read, then those to read
        self.record = StepRecord(os.getpid(), device.index or 0, rank)
        self._write()
        self._closed = threading.Event()
        self._stepped = threading.Event()
        self._writer = threading.Thread(target=self._write_always, name="card meter", daemon=True)
        self._writer.start()

    def step_ended(self) -> None:
        """Adds a step: what the card did since the one before."""
        self._marks.append(self._marked())
        self._stepped.set()

    def close(self) -> None:
        """Ends the thread and removes the file."""
        self._closed.set()
        self._stepped.set()
        self._writer.join()
        with suppress(OSError):
            self.file.unlink()

    def _marked(self) -> torch.Event:
        mark = torch.Event(self.device, enable_timing=True)
        mark.record()
        return mark

    def _write_always(self) -> None:
        while not self._closed.is_set():
            self._stepped.wait()
            self._stepped.clear()
            self._read()
            self._write()
            if len(self._marks) > 1:
                self._stepped.set()
            self._closed.wait(_PAUSE)  # steps that end meanwhile are written together

    def _read(self) -> None:
        """Adds the steps whose marks the card has passed. (To wait for one would take the card's
        error from whom it belongs to.)"""
        record = self.record
        while len(self._marks) > 1 and self._marks[1].query():
            begin = self._marks.popleft()
            record = record.with_step(begin.elapsed_time(self._marks[0]) / 1000)
        self.record = replace(
            record, fallbacks=dict(_C.fallbacks()), compiles=compiled_programs() - self._compiled
        )

    def _write(self) -> None:
        """Replaces the file; a folder that cannot be written is no reason to stop serving."""
        part = self.file.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part.write_text(json.dumps(asdict(self.record)))
            part.replace(self.file)


def _remove_dead(folder: Path) -> None:
    """Removes what workers left that were killed."""
    for file in folder.glob("*.steps"):
        with suppress(OSError, ValueError, KeyError):
            if not Path(f"/proc/{json.loads(file.read_text())['process']}").exists():
                file.unlink()


def read_records(folder: Path, instance: str) -> Iterator[StepRecord]:
    """What the workers of an instance have written last."""
    for file in sorted(folder.glob(f"{instance}-*.steps")):
        with suppress(OSError):
            found = json.loads(file.read_text())
            yield StepRecord(**found | {"counts": tuple(found["counts"])})
