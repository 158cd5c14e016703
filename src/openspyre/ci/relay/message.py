"""JSON of strangers: read within limits, and taken apart with an error that names the field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import NoReturn

from openspyre.errors import SpyreError

DEPTH_LIMIT = 64  # GitHub's payloads are seven deep


class InvalidMessage(SpyreError, ValueError):
    """A message of the relay, or for it, that has not the published form."""


@dataclass(frozen=True, slots=True)
class Node:
    """A value in a message, and where it stands. What is not as asked raises InvalidMessage."""

    value: object
    path: str

    def wrong(self, why: str) -> NoReturn:
        raise InvalidMessage(f"{self.path} is not as published", why=why)

    def mapping(self) -> Mapping[str, object]:
        if not isinstance(self.value, dict):
            self.wrong(f"it is {_kind(self.value)}, not an object")
        return self.value

    def field(self, name: str) -> Node:
        found = self.optional(name)
        return found if found is not None else self.wrong(f"it has no {name}")

    def optional(self, name: str) -> Node | None:
        """The field; None where it is missing or null."""
        value = self.mapping().get(name)
        return None if value is None else Node(value, f"{self.path}.{name}")

    def items(self, limit: int) -> Iterator[Node]:
        if not isinstance(self.value, list):
            self.wrong(f"it is {_kind(self.value)}, not an array")
        if len(self.value) > limit:
            self.wrong(f"it has {len(self.value)} entries, more than {limit}")
        return (Node(value, f"{self.path}[{i}]") for i, value in enumerate(self.value))

    def text(self, limit: int = 1000) -> str:
        if not isinstance(self.value, str):
            self.wrong(f"it is {_kind(self.value)}, not a string")
        if not 0 < len(self.value) <= limit:
            self.wrong(f"it has {len(self.value)} characters, not 1 to {limit}")
        return self.value

    def matching(self, pattern: re.Pattern[str], what: str) -> str:
        text = self.text()
        if not pattern.fullmatch(text):
            self.wrong(f"it is not {what}")
        return text

    def one_of(self, known: Sequence[str]) -> str:
        text = self.text()
        if text not in known:
            self.wrong(f"it is none of {', '.join(known)}")
        return text

    def number(self, low: int, high: int) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            self.wrong(f"it is {_kind(self.value)}, not a whole number")
        if not low <= self.value <= high:
            self.wrong(f"it lies outside {low} to {high}")
        return self.value

    def moment(self) -> float:
        """A time in ISO 8601, in seconds since 1970; without a zone it is UTC."""
        try:
            found = datetime.fromisoformat(self.text(40))
        except ValueError:
            self.wrong("it is not a time in ISO 8601")
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            self.wrong(f"it is {_kind(self.value)}, not true or false")
        return self.value


def read_message(raw: bytes, name: str, limit: int) -> Node:
    """The JSON in `raw`: UTF-8, no key twice, finite numbers, neither too long nor too deep.

    Raises:
        InvalidMessage: it is something else.
    """
    if len(raw) > limit:
        raise InvalidMessage(f"{name} is too long", why=f"{len(raw)} bytes, more than {limit}")
    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_once_each,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except UnicodeDecodeError as error:
        raise InvalidMessage(f"{name} is not UTF-8", why=f"at byte {error.start}") from None
    except RecursionError:
        raise InvalidMessage(f"{name} is nested too deep") from None
    except ValueError as error:  # json.JSONDecodeError, a key twice, a number of 5000 digits
        raise InvalidMessage(f"{name} is not JSON", why=str(error)[:200]) from None
    if _deeper(value, DEPTH_LIMIT):
        raise InvalidMessage(f"{name} is nested too deep", why=f"more than {DEPTH_LIMIT} levels")
    return Node(value, name)


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has one key twice")
    return found


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):  # 1e999: Python reads it, and cannot write it again as JSON
        raise ValueError("a number is too large")
    return value


def _deeper(value: object, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [inner for outer in level for inner in _inside(outer)]
    return bool(level)


def _inside(value: object) -> Iterator[object]:
    match value:
        case dict():
            yield from value.values()
        case list():
            yield from value


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"
