"""A process that collects the tests of one file, or runs some: a crash costs the one that ran.

Reads a job from a file (see `Job`). Writes one JSON object a line to what was its output, which
the tests' own printing does not reach: `test` for each collected test, `collected`; `start` and
`end` around each test that is run, `absent` for one that was not collected; `done`. A file that
cannot be imported is `broken`.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import json
import os
import sys
import time
import traceback
import unittest
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import torch

from .expected import NotAsExpected
from .identity import Identity, plain_text

_TRACE = 4000  # characters of a traceback that are kept, its end
_REASON = 400
_REPEAT = "\n\nTo execute this test"  # how PyTorch begins to tell of its own script


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker does.

    Attributes:
        file: the test file.
        name: what its tests' ids begin with.
        bootstrap: what registers the device, `module` or `module:function`.
        device: the name that it must register.
        run: what to run, by id; None only collects.
    """

    file: str
    name: str
    bootstrap: str
    device: str
    run: list[str] | None


@dataclass(frozen=True, slots=True)
class Found:
    """A collected test.

    Attributes:
        generic: whether it was generated for the device.
    """

    id: str
    cls: type
    name: str
    test: Identity
    generic: bool


def main(path: str) -> None:
    faulthandler.enable()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    job = Job(**json.loads(Path(path).read_text()))
    own = os.getpid()
    _register(job)

    def tell(event: str, **said: object) -> None:
        if os.getpid() != own:  # a test forked, and its child came back from it
            os._exit(0)
        print(json.dumps({"event": event, **said}), file=answers)

    try:
        module = _loaded(Path(job.file))
    except BaseException as error:  # whatever a file does when it is imported
        reason, trace = _said(error)
        tell("broken", reason=reason, trace=trace)
        _leave(answers)
    found = sorted(_collected(module, job.name), key=lambda test: test.id)
    for test in found:
        tell("test", id=test.id, params=dict(test.test.params), generic=test.generic)
    tell("collected", count=len(found))
    if job.run is not None:
        _run({test.id: test for test in found}, job.run, tell)
    tell("done")
    _leave(answers)


def _leave(answers: TextIO) -> None:
    """Ends without the clean-ups of what a test may have left in any state."""
    answers.flush()
    sys.stderr.flush()
    os._exit(0)


def _register(job: Job) -> None:
    name, _, function = job.bootstrap.partition(":")
    if name:
        module = importlib.import_module(name)
        if function:
            getattr(module, function)()
    registered = torch._C._get_privateuse1_backend_name()
    if registered != job.device:
        sys.exit(f"{job.bootstrap or 'autoload'} registers {registered}, not {job.device}")


def _loaded(file: Path) -> ModuleType:
    sys.path.insert(0, str(file.parent))
    sys.argv = [str(file)]  # PyTorch reads options of the command line
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def _collected(module: ModuleType, file: str) -> Iterator[Found]:
    """Every test of the file, with ids that are unique."""
    found = list(_every(module, file))
    often = Counter(str(test.test) for test in found)
    for test in found:
        if often[str(test.test)] > 1:
            # Generated with objects that have no name.
            params = (*test.test.params, ("case", test.name))
            changed = replace(test.test, params=tuple(sorted(params)))
            yield replace(test, id=f"{file}::{changed}", test=changed)
        else:
            yield test


def _every(module: ModuleType, file: str) -> Iterator[Found]:
    loader = unittest.TestLoader()
    classes = [c for c in vars(module).values() if _is_of(c, module)]
    for cls in dict.fromkeys(classes):
        identities: Mapping[Any, Identity] = getattr(cls, "identities", {})
        for name in loader.getTestCaseNames(cls):
            test = identities.get((cls.__name__, name))
            named = test or Identity(cls.__name__, name)
            yield Found(f"{file}::{named}", cls, name, named, test is not None)


def _is_of(value: object, module: ModuleType) -> bool:
    is_test = isinstance(value, type) and issubclass(value, unittest.TestCase)
    return is_test and value.__module__ == module.__name__


def _run(found: Mapping[str, Found], ids: list[str], tell: Any) -> None:
    """Runs tests class by class, in the order of their ids."""
    by_class: dict[type, list[Found]] = {}
    for id_ in sorted(ids):
        if id_ in found:
            by_class.setdefault(found[id_].cls, []).append(found[id_])
        else:
            tell("absent", id=id_)
    for cls, tests in by_class.items():
        ids_of = {test.name: test.id for test in tests}
        result = _Result(ids_of, tell)
        unittest.TestSuite([cls(test.name) for test in tests]).run(result)
        for id_ in set(ids_of.values()) - result.ended:
            outcome, reason, trace = result.of_class or ("failed", "its class was not set up", "")
            tell("start", id=id_)
            tell("end", id=id_, outcome=outcome, reason=reason, trace=trace, seconds=0.0)


class _Result(unittest.TestResult):
    """Says how each test ended, as soon as it has."""

    def __init__(self, ids: Mapping[str, str], tell: Any) -> None:
        super().__init__()
        self._ids, self._tell = ids, tell
        self._found: list[tuple[str, str, str]] = []
        self._begun = 0.0
        self.ended: set[str] = set()
        self.of_class: tuple[str, str, str] | None = None

    def _id(self, test: Any) -> str:
        return self._ids[test._testMethodName]

    def stop(self) -> None:
        """A test cannot end the run."""

    def startTest(self, test: Any) -> None:
        self._found, self._begun = [], time.monotonic()
        self._tell("start", id=self._id(test))

    def stopTest(self, test: Any) -> None:
        bad = [found for found in self._found if found[0] not in ("passed", "skipped", "xfailed")]
        outcome, reason, trace = (bad or self._found or [("failed", "it told no outcome", "")])[0]
        self.ended.add(self._id(test))
        seconds = round(time.monotonic() - self._begun, 3)
        self._tell(
            "end", id=self._id(test), outcome=outcome, reason=reason, trace=trace, seconds=seconds
        )

    def _add(self, test: Any, outcome: str, reason: str = "", trace: str = "") -> None:
        if hasattr(test, "_testMethodName"):
            self._found.append((outcome, reason, trace))
        else:  # the class around the tests
            self.of_class = outcome, reason, trace

    def addSuccess(self, test: Any) -> None:
        self._add(test, "passed")

    def addSkip(self, test: Any, reason: str) -> None:
        self._add(test, "skipped", plain_text(str(reason))[:_REASON])

    def addError(self, test: Any, err: Any) -> None:
        outcome = "xfail-mismatch" if isinstance(err[1], NotAsExpected) else "failed"
        self._add(test, outcome, *_said(err[1]))

    addFailure = addError

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.addError(test, err)

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self._add(test, "xfailed", *_said(err[1]))

    def addUnexpectedSuccess(self, test: Any) -> None:
        self._add(test, "xpass", "it was expected to fail, and passed")


def _said(error: BaseException) -> tuple[str, str]:
    """An exception in one line, and the end of its traceback."""
    try:
        text = " ".join(plain_text(str(error)).partition(_REPEAT)[0].split())
        trace = plain_text("".join(traceback.format_exception(error)))
    except Exception as second:  # what an exception says of itself may fail as well
        text = trace = f"it cannot be shown: {type(second).__name__}"
    return f"{type(error).__name__}: {text}"[:_REASON], trace[-_TRACE:]


if __name__ == "__main__":
    main(sys.argv[1])
