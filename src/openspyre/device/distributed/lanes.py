"""Threads that do collectives, each in the order in which they were called.

A lane has its own stream. What it submits does not count in card time, because threads of the
host would decide the order: the caller's stream gets the modelled time when it waits.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

from openspyre import _C


@dataclass(frozen=True, slots=True)
class Done:
    """What a collective gave: tensors, when it began and ended in card time (ps), from whom."""

    outputs: list[torch.Tensor]
    begins: int
    ends: int
    source: int = -1


@dataclass(frozen=True, slots=True)
class Job:
    """Something that a lane does for a work object, after what its event says."""

    work: torch.distributed.Work
    device: int
    after: torch.Event
    act: Callable[[], Done]


class Lane:
    """A thread that does jobs one after the other."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._streams: dict[int, torch.Stream] = {}
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Has the job done after all that were submitted before."""
        self._jobs.put(job)

    def end(self) -> None:
        """Lets the thread end after its jobs."""
        self._jobs.put(None)

    def ended(self, seconds: float) -> bool:
        """Whether it has; waits for that so long."""
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        _C.exchange_off_clock(True)
        while job := self._jobs.get():
            self._do(job)
            del job  # its tensors

    def _do(self, job: Job) -> None:
        try:
            stream = self._streams.get(job.device)
            if stream is None:
                stream = self._streams[job.device] = torch.Stream(torch.device("spyre", job.device))
            stream.wait_event(job.after)
            with stream:
                # The user's tensors may be parameters, or made in inference mode; what is chained
                # to the work's future makes tensors of the user's.
                with torch.inference_mode():
                    done = job.act()
                stream.synchronize()
                _C.finish_collective(job.work, done.outputs, done.source, done.begins, done.ends)
        except Exception as error:  # a thread's edge: whoever waits for the work gets it
            _C.fail_collective(job.work, error)
