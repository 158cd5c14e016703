"""Typed values out of a mapping, with every problem noted at its line instead of raised."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable
from typing import Any, TypeVar

from openspyre.ci.reuse.located import At, Located

T = TypeVar("T")
D = TypeVar("D")
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
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
        """A field that must be there, and not be an empty text."""
        if name not in self._left or self._left[name].value == "":
            self.wrong(f"{self._what} needs {name!r}", self.place(name))
            self._left.pop(name, None)
            return default
        return self.take(name, kind, default)

    def choice(self, name: str, known: Iterable[str], default: str) -> str:
        at = self.place(name)
        found = self.take(name, str, default)
        if found != default and found not in known:
            self.wrong(f"{name} is one of {', '.join(known)}, not {found!r}", at)
            return default
        return found

    def at_least(self, least: int, name: str, default: D) -> int | D:
        """A whole number that is not smaller, and may be missing."""
        at = self.place(name)
        found: int | None = self.take(name, int, None)
        if found is not None and found < least:
            self.wrong(f"{name} is {least} or more, not {found}", at)
        return default if found is None else found

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

    def matching(self, name: str, form: str, what: str, *, needed: bool = False) -> str:
        """A text of a form, which `what` says in words."""
        at = self.place(name)
        found = self.need(name, str, "") if needed else self.take(name, str, "")
        if found and not (re.fullmatch(form, found) and found.isprintable()):
            self.wrong(f"{name} is {what}, not {found!r}", at)
        return found

    def pattern(self, name: str) -> str:
        at, found = self.place(name), self.take(name, str, "")
        try:
            searched = re.compile(found)
        except (re.error, OverflowError, RecursionError) as error:
            self.wrong(f"{name} is no regular expression: {error}", at)
            return found
        if all(searched.search(text) for text in ("", "\0\n")):
            said = f"{found!r} is in any text" if found else "it is empty"
            self.wrong(f"{name} says nothing: {said}; '^$' is a text without characters", at)
        return found

    def part(self, name: str) -> Fields | None:
        """The fields of a field, if it is there."""
        node = self._left.pop(name, None)
        return None if node is None else Fields(node, self._problems, name)

    def items(self, name: str) -> list[Located]:
        """A list, which may be missing, or have its name alone."""
        node = self._left.pop(name, None)
        return [] if node is None or node.value is None else self._typed(node, name, list, [])

    def scalars(self, name: str) -> dict[str, Any]:
        """A mapping of names to plain values: texts, numbers, true and false, nothing."""
        node = self._left.pop(name, None)
        if node is None:
            return {}
        found = self._typed(node, name, dict, {})
        for key, value in found.items():
            if not key.isidentifier():
                self.wrong(f"{name}: {key!r} is no name of a parameter", value.at)
            if not isinstance(value.value, str | int | float | None):
                self.wrong(f"{name} maps to plain values; quote what is a text", value.at)
        if not found:
            self.wrong(f"{name} is empty; leave it out to mean any", node.at)
        return {key: value.value for key, value in found.items()}

    def place(self, name: str) -> At:
        return self._left[name].at if name in self._left else self.at

    def left(self) -> tuple[str, ...]:
        """The names of fields that nobody has taken."""
        return tuple(self._left)

    def end(self) -> None:
        """Nothing else may be there."""
        for name, node in self._left.items():
            self.wrong(f"{self._what} has no field {name!r}", node.at)

    def _typed(self, node: Located, name: str, kind: type[T], default: T) -> T:
        value: Any = node.value
        if kind is float and _is_number(value):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.wrong(f"{name} is {_NAMES.get(kind, kind.__name__)}, not {_said(value)}", node.at)
            return default
        if isinstance(value, float) and not math.isfinite(value):
            self.wrong(f"{name} is a finite number, not {value}", node.at)
            return default
        return value


def _is_number(value: object) -> bool:
    """Whether it can be read as a float: YAML takes 1e-3 for a text."""
    if isinstance(value, str):
        return _EXPONENT.fullmatch(value) is not None
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1000


def _said(value: object) -> str:
    return _NAMES[type(value)] if isinstance(value, (dict, list)) else repr(value)
