"""The time of the stub: the host's, or one that a test moves."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Seconds since 1970, and waiting."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class HostClock:
    """The host's time."""

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(slots=True)
class SetClock:
    """A time that stands still until it is set; who sleeps moves it."""

    time: float

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
