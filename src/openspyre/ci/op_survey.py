"""Every op of a list tried on the card, in worker processes that may crash and hang."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from openspyre.ci.capability import Row, State
from openspyre.errors import SpyreError

Pair = tuple[str, str]
_START_SECONDS = 600.0  # a worker imports a lot


@dataclass(frozen=True, slots=True)
class Plan:
    """How to try.

    Attributes:
        source: the list, `module:attribute`.
        samples: at most, of each pair.
        seconds: that a pair may take.
        commit: what is tried.
        workers: processes at once.
    """

    source: str
    samples: int
    seconds: float
    commit: str
    workers: int


def surveyed(plan: Plan, jobs: Sequence[tuple[str, list[Pair]]]) -> Iterator[list[Row]]:
    """The rows of every job, an op and its pairs, as they are found."""
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    workers = [_Worker(plan) for _ in range(plan.workers)]
    for worker in workers:
        idle.put(worker)

    def work(op: str, pairs: list[Pair]) -> list[Row]:
        worker = idle.get()
        try:
            return list(worker.tried(op, pairs))
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(plan.workers) as pool:
        futures = [pool.submit(work, op, pairs) for op, pairs in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()
            for worker in workers:
                worker.stop()


class _Worker:
    """One process, started when it is needed and again when it is gone."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._process: subprocess.Popen[str] | None = None

    def tried(self, op: str, pairs: list[Pair]) -> Iterator[Row]:
        """A row for every pair; one that ends the process says how."""
        left = list(pairs)
        while left:
            for variant, dtype, state, reason in self._batch(op, left):
                yield Row(op, variant, dtype, state, reason, self._plan.commit)
                left.remove((variant, dtype))

    def _batch(self, op: str, pairs: list[Pair]) -> Iterator[tuple[str, str, State, str]]:
        process = self._running()
        assert process.stdin is not None
        job = {"op": op, "pairs": pairs, "samples": self._plan.samples}
        current: Pair | None = None
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            while "done" not in (answer := self._answer(process, self._plan.seconds)):
                if "begin" in answer:
                    variant, dtype = answer["begin"]
                    current = variant, dtype
                else:
                    state, reason = answer["verdict"]
                    assert current is not None
                    yield *current, State(state), reason
                    current = None
        except _Gone as gone:
            self.stop()
            if current is not None:
                yield *current, State.RAISED, str(gone)
        except BrokenPipeError:
            self.stop()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        command = [sys.executable, "-m", "openspyre.ci.op_worker", self._plan.source]
        started = self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            self._answer(started, _START_SECONDS)
        except _Gone as gone:
            raise SpyreError(
                "a worker process does not start", why=str(gone), hint=f"run {' '.join(command)}"
            ) from None
        return started

    def _answer(self, process: subprocess.Popen[str], seconds: float) -> dict[str, list[str]]:
        assert process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        watch = threading.Timer(seconds, end)
        watch.start()
        try:
            line = process.stdout.readline()
        finally:
            watch.cancel()
        if line:
            found: dict[str, list[str]] = json.loads(line)
            return found
        if late.is_set():
            raise _Gone(f"it did not end within {seconds:g} s")
        code = process.wait()
        raise _Gone(
            f"the process died of {signal.Signals(-code).name}"
            if code < 0
            else f"the process ended with {code}"
        )

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


class _Gone(Exception):
    """The process ended, or was ended, within a pair."""
