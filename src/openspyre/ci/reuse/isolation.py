"""Tests of one file in processes that may crash and hang: each costs the test that ran."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openspyre.ci.native.identity import Identity
from openspyre.ci.reuse.planning import Collected
from openspyre.settings import child_environment

_LOG_END = 3000  # characters of a dead process's output that are kept
_BETWEEN_S = 300.0  # a class is set up between tests
_GRACE_S = 3.0  # for a hanging process to say where it is
_LOOK_S = 0.2  # after which a silent process is looked at: a child of it may hold its pipe
_OUTCOMES = frozenset(
    {"passed", "failed", "skipped", "xfailed", "xpass", "xfail-mismatch", "crashed", "hung"}
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how tests run.

    Attributes:
        tests: PyTorch's folder of tests.
        work: a folder for hooks, logs and what tests write.
        import_s: what importing a file may take.
    """

    tests: Path
    work: Path
    device: str
    bootstrap: str
    timeout_s: float
    import_s: float = 900.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How one test ended.

    Attributes:
        outcome: passed, failed, skipped, xfailed, xpass, xfail-mismatch, crashed, hung or
            not-reached.
    """

    id: str
    outcome: str
    reason: str = ""
    trace: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Broken:
    """A file that cannot be imported, and why."""

    reason: str
    trace: str


@dataclass(frozen=True, slots=True)
class HookedFile:
    """A test file under some hooks.

    Attributes:
        hooks: the file that PyTorch runs for the device's base.
        for_custom: whether classes for other devices are generated too.
    """

    path: str
    hooks: Path
    for_custom: bool


def collected(place: Place, file: HookedFile) -> list[Collected] | Broken:
    """The tests of a file; a process that dies is a broken file too."""
    found = []
    process = _Process(place, file, None)
    try:
        while (event := process.event(place.import_s)) is not None:
            match event["event"]:
                case "test":
                    found.append(_collected(event))
                case "broken":
                    return Broken(event["reason"], event["trace"])
                case "done":
                    return found
        return Broken(f"while it was imported, {process.death()}", process.log_end())
    except TimeoutError:
        return Broken(f"importing it took over {place.import_s:g} s", process.log_end())
    finally:
        process.end()


def _collected(event: dict[str, Any]) -> Collected:
    cls, _, rest = event["id"].partition("::")[2].partition("::")
    params = tuple(sorted(event["params"].items()))
    return Collected(event["id"], Identity(cls, rest.partition("[")[0], params), event["generic"])


def run(
    place: Place, file: HookedFile, ids: Sequence[str], over: Callable[[], bool] = lambda: False
) -> Iterator[Ended]:
    """Runs tests, and says of each how it ended as soon as it has.

    Args:
        over: once it is true, no further test begins; those left are not said anything of.
    """
    left = set(ids)
    idle = 0  # processes in a row that died before a test
    while left and not over():
        before = len(left)
        process = _Process(place, file, sorted(left))
        for ended in _one_process(process, place, over):
            left.discard(ended.id)
            yield ended
        idle = 0 if len(left) < before else idle + 1
        if idle == 2 and left and not over():
            why = f"two processes died before any test: {process.last_line or 'without a word'}"
            for id_ in sorted(left):
                yield Ended(id_, "not-reached", why)
            return


def _one_process(process: _Process, place: Place, over: Callable[[], bool]) -> Iterator[Ended]:
    current, seconds, begun = "", place.import_s, 0.0
    try:
        while (event := process.event(seconds)) is not None and event["event"] != "done":
            match event["event"]:
                case "start":
                    current, seconds, begun = event["id"], place.timeout_s, time.monotonic()
                case "end" if (ended := _ended(event)) is not None and ended.id == current:
                    current, seconds = "", _BETWEEN_S
                    yield ended
                    if over():
                        return
                case "absent":
                    yield Ended(event["id"], "not-reached", "this process did not generate it")
                case "broken":
                    return
        if current and event is None:
            took = round(time.monotonic() - begun, 3)
            yield Ended(current, "crashed", process.death(), process.log_end(), took)
    except TimeoutError:
        process.interrupt()
        if current:
            said = f"it did not end within {place.timeout_s:g} s"
            yield Ended(current, "hung", said, process.log_end(), place.timeout_s)
    finally:
        process.end()


def _ended(event: dict[str, Any]) -> Ended | None:
    """How a test ended; None if a worker would not say it so, but something in it did."""
    del event["event"]
    try:
        ended = Ended(**event)
    except TypeError:
        return None
    return ended if ended.outcome in _OUTCOMES else None


class _Process:
    """A worker in a process group of its own.

    Attributes:
        last_line: that it wrote, once it has ended.
    """

    def __init__(self, place: Place, file: HookedFile, ids: Sequence[str] | None) -> None:
        scratch = place.work / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        name = f"{Path(file.path).stem}-{os.getpid()}-{time.monotonic_ns()}"
        job, self._log = scratch / f"{name}.json", scratch / f"{name}.log"
        job.write_text(
            json.dumps({
                "file": str((place.tests / file.path).absolute()), "name": file.path,
                "bootstrap": place.bootstrap, "device": place.device,
                "run": None if ids is None else list(ids),
            })
        )  # fmt: skip
        environment = child_environment(
            TORCH_TEST_DEVICES=str(file.hooks.absolute()),
            PYTORCH_TESTING_DEVICE_FOR_CUSTOM=place.device if file.for_custom else "",
            PYTORCH_TESTING_DEVICE_ONLY_FOR="",
            PYTORCH_TESTING_DEVICE_EXCEPT_FOR="",
            PYTHONHASHSEED="0",
            # A process holds one device: what is installed must not be there before the rules'.
            **({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} if place.bootstrap else {}),
        )
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "openspyre.ci.native.worker", str(job.absolute())],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, cwd=scratch,
                env=environment, start_new_session=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        self._job = job
        self._lines: list[bytes] = [b""]
        self.last_line = ""

    def event(self, seconds: float) -> dict[str, Any] | None:
        """What it says next; None at its end, whoever else holds its pipe.

        Raises:
            TimeoutError: it says nothing for so long.
        """
        until = time.monotonic() + seconds
        while True:
            while len(self._lines) == 1:
                data = self._read(until)
                if not data:
                    return None
                first, *others = (self._lines[0] + data).split(b"\n")
                self._lines = [first, *others]
            if (event := _event(self._lines.pop(0))) is not None:
                return event

    def _read(self, until: float) -> bytes:
        """What it wrote; empty if it closed its pipe, or is gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while True:
                gone = self._process.poll() is not None
                left = max(until - time.monotonic(), 0)
                if selector.select(0 if gone else min(left, _LOOK_S)):
                    return os.read(self._output, 1 << 16)
                if gone:
                    return b""
                if not left:
                    raise TimeoutError

    def interrupt(self) -> None:
        """Has it write where it hangs to its log."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)

    def death(self) -> str:
        try:
            code = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            return "the process closed the pipe by which it tells of tests"
        if code < 0:
            return f"the process died of {_signal(-code)}"
        return f"the process ended with {code}"

    def log_end(self) -> str:
        with open(self._log, "rb") as log:
            log.seek(max(self._log.stat().st_size - 4 * _LOG_END, 0))
            return log.read().decode(errors="replace")[-_LOG_END:]

    def end(self) -> None:
        """Ends it and its group; a child that left the group may still hold the pipe."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.wait()
        self.last_line = ([""] + [line for line in self.log_end().splitlines() if line.strip()])[-1]
        for file in (self._job, self._log):
            file.unlink(missing_ok=True)


def _event(line: bytes) -> dict[str, Any] | None:
    """An event; None for what else a test may write to the pipe."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time signals
        return f"signal {number}"
