"""What the relay remembers: states of deliveries and jobs, and how often a repository called."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import RLock

from openspyre.ci.relay.stub.clock import Clock
from openspyre.ci.relay.wire import (
    LEGAL_STEPS,
    RATE_LIMIT,
    RATE_WINDOW,
    STATE_SECONDS,
    ZOMBIE_SECONDS,
    State,
)

_DISPATCH_RUN = 0


class IllegalStep(Exception):
    """A step that the state machine does not have."""


class Down(Exception):
    """The store cannot be reached."""


@dataclass(frozen=True, slots=True)
class Key:
    """Names a delivery to a repository, or with a run and a job one job that it started."""

    delivery_id: str
    repository: str
    run_id: int = _DISPATCH_RUN
    run_attempt: int = 0
    job_name: str = ""

    def __str__(self) -> str:
        job = f":{self.job_name}" if self.job_name else ""
        parts = (self.delivery_id, self.repository, self.run_id, self.run_attempt)
        return "crcr:state:" + ":".join(map(str, parts)) + job

    def dispatch(self) -> Key:
        """The key of the delivery that a job belongs to."""
        return Key(self.delivery_id, self.repository)


@dataclass(frozen=True, slots=True)
class Record:
    """A state, since when, and what the dashboard was told first."""

    state: State
    since: float
    told: object = None


@dataclass(slots=True)
class Store:
    """In memory. `states_down` and `limiter_down` are faults that a test switches on."""

    clock: Clock
    rate_limit: int = RATE_LIMIT
    states_down: bool = False
    limiter_down: bool = False
    records: dict[Key, Record] = field(default_factory=dict)
    calls: dict[str, deque[float]] = field(default_factory=dict)
    lock: RLock = field(default_factory=RLock)

    def state(self, key: Key) -> Record | None:
        """What is remembered of a key; None also where it was too long ago."""
        with self.lock:
            record = self.records.get(key)
            old = record is not None and self.clock.now() - record.since >= STATE_SECONDS
            return None if old else record

    def step(self, key: Key, state: State, told: object = None) -> Record:
        """Takes a key to a state.

        Raises:
            IllegalStep: from where it stands, that is no step of the state machine.
            Down: nothing was stored.
        """
        with self.lock:
            before = self.state(key)
            if (key.run_id == _DISPATCH_RUN) != (state is State.DISPATCHED):
                raise IllegalStep(f"run_id {_DISPATCH_RUN} is a dispatch's, and only that")
            if (before.state if before else None, state) not in LEGAL_STEPS:
                stands = before.state if before else "unknown"
                raise IllegalStep(f"invalid state transition {stands} -> {state}: {key}")
            if self.states_down:
                raise Down("state store")
            self.records[key] = record = Record(state, self.clock.now(), told)
            return record

    def admitted(self, repository: str) -> bool:
        """Whether a call is within the rate; it counts either way.

        Raises:
            Down: nothing was counted.
        """
        with self.lock:
            if self.limiter_down:
                raise Down("rate limit")
            now = self.clock.now()
            calls = self.calls.setdefault(repository, deque())
            calls.append(now)
            while calls[0] <= now - RATE_WINDOW:
                calls.popleft()
            return len(calls) <= self.rate_limit

    def zombies(self) -> Iterator[tuple[Key, Record]]:
        """Takes the jobs that are in progress for too long to their end; gives what they were."""
        with self.lock:
            now = self.clock.now()
            for key, record in list(self.records.items()):
                stuck = record.state is State.IN_PROGRESS and now - record.since >= ZOMBIE_SECONDS
                if stuck and self.state(key) is not None:
                    self.step(key, State.COMPLETED)
                    yield key, record
