"""What is known beside the sources: what a device can do, what is asked of tests, what they did."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import SelectionError

FORWARD, BACKWARD = "fwd", "bwd"
_OUTSIDE = frozenset({"wrong", "raised"})
_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Ability:
    """Dtypes in which an op's results and gradients are right."""

    fwd: frozenset[str]
    bwd: frozenset[str]
    state: str = ""

    @property
    def inside(self) -> bool:
        return bool(self.fwd) and self.state not in _OUTSIDE


@dataclass(frozen=True, slots=True)
class Capability:
    """A device.

    Attributes:
        device: its name, as `only_for` and the ids of tests spell it.
        ops: by the full name of an op, `name.variant`.
        features: what else it has: sparse, complex, quantized, graphs, names of libraries.
    """

    device: str
    ops: Mapping[str, Ability]
    features: frozenset[str] = frozenset()
    devices: int = 1
    digest: str = ""

    @property
    def dtypes(self) -> frozenset[str]:
        return frozenset().union(*(op.fwd for op in self.ops.values()))


def capability_of(found: Any, device: str) -> Capability:
    """A capability table out of its JSON object.

    Raises:
        SelectionError: it is none.
    """
    try:
        ops = {
            name: Ability(_words(op["fwd"]), _words(op["bwd"]), str(op.get("state", "")))
            for name, op in found["ops"].items()
        }
        features = found.get("features", {})
        names = [k for k, v in features.items() if v] if isinstance(features, Mapping) else features
        devices = features.get("devices", 1) if isinstance(features, Mapping) else 1
        return Capability(device, ops, frozenset(names), int(devices), found.get("digest", ""))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SelectionError("this is no capability table", why=repr(error)) from None


def _words(listed: Any) -> frozenset[str]:
    if not isinstance(listed, list) or not all(isinstance(word, str) for word in listed):
        raise ValueError(f"{listed!r} is no list of dtypes")
    return frozenset(listed)


@dataclass(frozen=True, slots=True)
class Asked:
    """One rule of the YAML: what is asked of some tests.

    Attributes:
        test: `file::Class::method`; `*` as method is all of a class.
    """

    id: str
    test: str
    verdict: str
    ops: tuple[str, ...] = ()
    expires: datetime.date | None = None

    def owns(self, id: str) -> bool:
        file_and_class, _, method = self.test.rpartition("::")
        return self.test == id or (method == "*" and id.rpartition("::")[0] == file_and_class)


@dataclass(frozen=True, slots=True)
class Policy:
    """All that the YAML says, as far as a selection asks.

    Attributes:
        bypass: `file::Class` whose guards for other devices are lifted.
        for_custom: files whose `only_for` is lifted.
    """

    rules: tuple[Asked, ...] = ()
    bypass: frozenset[str] = frozenset()
    for_custom: frozenset[str] = frozenset()
    _by_class: dict[str, list[Asked]] = field(default_factory=dict)

    def of(self, id: str) -> list[Asked]:
        """The rules about a test."""
        if not self._by_class:
            for rule in self.rules:
                self._by_class.setdefault(rule.test.rpartition("::")[0], []).append(rule)
        return [rule for rule in self._by_class.get(id.rpartition("::")[0], ()) if rule.owns(id)]

    def is_gate(self, id: str) -> bool:
        return any(rule.verdict == "gate" for rule in self.of(id))


def policy_of(documents: Iterable[Any]) -> Policy:
    """The policy out of loaded YAML documents.

    Raises:
        SelectionError: one is not of the schema.
    """
    rules: list[Asked] = []
    bypass: set[str] = set()
    custom: set[str] = set()
    try:
        for document in documents:
            for file in document.get("files") or ():
                path, guards = file["path"], file.get("guards") or {}
                bypass |= {f"{path}::{name}" for name in guards.get("bypass") or ()}
                custom |= {path} if guards.get("for_custom") else set()
                for rule in file.get("rules") or ():
                    expires = (rule.get("dates") or {}).get("expires")
                    rules.append(
                        Asked(
                            str(rule["id"]), f"{path}::{rule['test']}", rule["verdict"],
                            tuple(rule.get("ops") or ()), _date(expires),
                        )
                    )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SelectionError(
            "the rules are not of their schema", why=repr(error), hint="config check"
        ) from None
    return Policy(tuple(rules), frozenset(bypass), frozenset(custom))


def _date(value: object) -> datetime.date | None:
    if isinstance(value, str):
        return datetime.date.fromisoformat(value)
    return value if isinstance(value, datetime.date) else None


@dataclass(frozen=True, slots=True)
class Past:
    """How often a test passed and failed, how it ended last, and what it takes."""

    passed: int = 0
    failed: int = 0
    last: str = ""
    seconds: float = 0.0

    @property
    def failure(self) -> float:
        """How likely it fails, one failure of two runs assumed."""
        return (self.failed + 1) / (self.passed + self.failed + 2)


@dataclass(frozen=True, slots=True)
class History:
    """Earlier runs, by id of the test method."""

    tests: Mapping[str, Past] = field(default_factory=dict)

    def of(self, id: str) -> Past:
        return self.tests.get(id, Past())

    def seconds(self, id: str) -> float:
        """What a test takes, or what an unknown one is taken for."""
        return self.of(id).seconds or _SECONDS


def history_of(found: Any) -> History:
    """A history out of its JSON object.

    Raises:
        SelectionError: it is none.
    """
    try:
        return History({id: _past(**past) for id, past in found.items()})
    except (TypeError, ValueError, AttributeError) as error:
        raise SelectionError("this is no history", why=repr(error)) from None


def _past(passed: int = 0, failed: int = 0, last: str = "", seconds: float = 0.0) -> Past:
    """A past whose fields came from outside."""
    if any(type(n) is not int or n < 0 for n in (passed, failed)) or not isinstance(last, str):
        raise ValueError(f"passed {passed!r}, failed {failed!r}, last {last!r}")
    if isinstance(seconds, bool) or not 0 <= float(seconds) < math.inf:
        raise ValueError(f"seconds {seconds!r}")
    return Past(passed, failed, last, float(seconds))


def with_outcomes(history: History, outcomes: Sequence[tuple[str, str, float]]) -> History:
    """A history with a run added: id of the test method, passed or failed, seconds; in order."""
    tests = dict(history.tests)
    for id, how, seconds in outcomes:
        old = tests.get(id, Past())
        tests[id] = Past(
            old.passed + (how == "passed"), old.failed + (how != "passed"), how, seconds
        )
    return History(tests)
