"""Typed values out of a mapping, with every problem noted at its line instead of raised."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from typing import Any, TypeVar

from openspyre.ci.reuse.located import At, Located

T = TypeVar("T")
_NAMES: dict[Any, str] = {
    str: "a text", int: "a whole number", float: "a number", bool: "true or false",
    list: "a list", dict: "a mapping", datetime.date: "a date like 2026-12-31",
}  # fmt: skip


class Fields:
    """The fields of a mapping. What is taken twice, or is missing and may be, is the default."""

    def __init__(self, node: Located, problems: list[str], what: str) -> None:
        self._problems, self._what, self.at = problems, what, node.at
        self._left: dict[str, Located] = {}
        if isinstance(node.value, dict):
            self._left = dict(node.value)
        else:
            self.wrong(f"{what} is a mapping", node.at)

    def wrong(self, said: str, at: At | None = None) -> None:
        self._problems.append(f"{at or self.at}: {said}")

    def take(self, name: str, kind: type[T], default: T) -> T:
        """A field that may be missing."""
        node = self._left.pop(name, None)
        return default if node is None else self._typed(node, name, kind, default)

    def need(self, name: str, kind: type[T], default: T) -> T:
        """A field that must be there."""
        if name not in self._left:
            self.wrong(f"{self._what} needs {name!r}")
        return self.take(name, kind, default)

    def choice(self, name: str, known: Iterable[str], default: str) -> str:
        at = self.place(name)
        found = self.take(name, str, default)
        if found != default and found not in known:
            self.wrong(f"{name} is one of {', '.join(known)}, not {found!r}", at)
            return default
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts without repeats."""
        node = self._left.pop(name, None)
        if node is None:
            return ()
        found = tuple(self._typed(n, name, str, "") for n in self._typed(node, name, list, []))
        if len(set(found)) < len(found):
            self.wrong(f"{name} names something twice", node.at)
        if not found:
            self.wrong(f"{name} is empty; leave it out to mean any", node.at)
        return found

    def pattern(self, name: str) -> str:
        at, found = self.place(name), self.take(name, str, "")
        try:
            re.compile(found)
        except re.error as error:
            self.wrong(f"{name} is no regular expression: {error}", at)
        return found

    def part(self, name: str) -> Fields | None:
        """The fields of a field, if it is there."""
        node = self._left.pop(name, None)
        return None if node is None else Fields(node, self._problems, name)

    def items(self, name: str) -> list[Located]:
        node = self._left.pop(name, None)
        return [] if node is None else self._typed(node, name, list, [])

    def scalars(self, name: str) -> dict[str, Any]:
        """A mapping to plain values."""
        node = self._left.pop(name, None)
        found = {} if node is None else self._typed(node, name, dict, {})
        for value in found.values():
            if isinstance(value.value, (dict, list)):
                self.wrong(f"{name} maps to plain values", value.at)
        return {key: value.value for key, value in found.items()}

    def place(self, name: str) -> At:
        return self._left[name].at if name in self._left else self.at

    def end(self) -> None:
        """Nothing else may be there."""
        for name, node in self._left.items():
            self.wrong(f"{self._what} has no field {name!r}", node.at)

    def _typed(self, node: Located, name: str, kind: type[T], default: T) -> T:
        value: Any = node.value
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.wrong(f"{name} is {_NAMES.get(kind, kind.__name__)}, not {_said(value)}", node.at)
            return default
        return value


def _said(value: object) -> str:
    return _NAMES[type(value)] if isinstance(value, (dict, list)) else repr(value)
