"""Tests that must fail in one way: anything else, a pass and a skip included, is a failure."""

from __future__ import annotations

import re
import unittest
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from .hooks import Expect


class NotAsExpected(AssertionError):
    """A test that is expected to fail failed in another way, or was skipped."""


def expecting(test: Callable[..., Any], expected: Expect, rule: str) -> Callable[..., Any]:
    """The test as one that must fail as expected.

    unittest's own mark is strict but takes any exception. Here another one, or a skip, is
    raised once more from a clean-up, which no mark covers.
    """

    @wraps(test)
    def run(self: unittest.TestCase, *args: Any, **kwargs: Any) -> Any:
        try:
            return test(self, *args, **kwargs)
        except unittest.SkipTest as skip:
            said = f"{rule}: it skips ({skip}) where it should raise {expected.type}"
            self.addCleanup(_fail, said)
            raise AssertionError(said) from skip
        except Exception as error:  # what a test raises is what is judged
            if not any(_is(e, expected) for e in _chain(error)):
                said = f"{rule}: not {expected.type} with /{expected.match}/"
                self.addCleanup(_fail, f"{said} but {type(error).__name__}: {error}", error)
            raise

    run.__unittest_expecting_failure__ = True  # type: ignore[attr-defined]
    return run


def _fail(said: str, cause: BaseException | None = None) -> None:
    raise NotAsExpected(said) from cause


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes: @ops wraps what a sample raises."""
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__cause__


def _is(error: BaseException, expected: Expect) -> bool:
    names = {name for kind in type(error).__mro__ for name in (kind.__name__, _qualified(kind))}
    return expected.type in names and re.search(expected.match, str(error)) is not None


def _qualified(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
