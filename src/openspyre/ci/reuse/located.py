"""YAML whose every value knows its line and column, and the list of all that is wrong with it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from openspyre.errors import SpyreError

_LEVELS = 7


@dataclass(frozen=True, slots=True, order=True)
class At:
    """A place in a file; lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Located:
    """A scalar, a list of Located, or a mapping of str to Located."""

    value: Any
    at: At


class InvalidRules(SpyreError, ValueError):
    """All that is wrong with a set of rules, one problem a line."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        super().__init__("\n".join([f"the rules do not hold: {count}", *problems]))


def read_yaml(path: Path) -> Located:
    """The one document of a file.

    Raises:
        InvalidRules: it is no YAML, or has a key twice.
        SpyreError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpyreError(f"cannot read {path}", why=str(error)) from None
    problems: list[str] = []
    found = None
    try:
        node = _node(text, path)
        if node is None:
            raise InvalidRules([f"{path}:1:1: the file is empty"])
        found = _Reading(str(path), problems).located(node)
    except RecursionError:
        problems.append(f"{path}:1:1: it is nested too deep: rules need {_LEVELS} levels")
    if found is None or problems:
        raise InvalidRules(problems)
    return found


def plain(node: Located) -> Any:
    """The value without its places, as other readers of YAML give it."""
    match node.value:
        case dict():
            return {key: plain(value) for key, value in node.value.items()}
        case list():
            return [plain(item) for item in node.value]
    return node.value


def _node(text: str, path: Path) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = At(str(path), mark.line + 1, mark.column + 1) if mark else path
        raise InvalidRules([f"{at}: {error.problem or error}"]) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position].split("\n")
        at = At(str(path), len(before), len(before[-1]) + 1)
        code = f"U+{ord(text[error.position]):04X}"
        why = f'{code} is no character of YAML; in a text it is written "\\u{code[2:]}"'
        raise InvalidRules([f"{at}: {why}"]) from None


class _Reading:
    """One document. What several aliases stand for is read once: they cannot multiply."""

    def __init__(self, file: str, problems: list[str]) -> None:
        self._file, self._problems = file, problems
        self._known: dict[int, Located] = {}
        self._around: set[int] = set()

    def located(self, node: yaml.Node) -> Located:
        if id(node) in self._known:
            return self._known[id(node)]
        at = self._at(node)
        if id(node) in self._around:
            self._problems.append(f"{at}: an alias that contains itself")
            return Located(None, at)
        self._around.add(id(node))
        match node:
            case yaml.MappingNode():
                found = Located(dict(self._items(node)), at)
            case yaml.SequenceNode():
                found = Located([self.located(inner) for inner in node.value], at)
            case _:
                found = Located(self._scalar(node, at), at)
        self._around.remove(id(node))
        self._known[id(node)] = found
        return found

    def _at(self, node: yaml.Node) -> At:
        return At(self._file, node.start_mark.line + 1, node.start_mark.column + 1)

    def _items(self, node: yaml.MappingNode) -> Iterator[tuple[str, Located]]:
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._problems.append(f"{self._at(key)}: a key is a word, not several")
                continue
            name = str(key.value)
            if name in seen:
                self._problems.append(f"{self._at(key)}: the key {name!r} stands here twice")
            seen.add(name)
            yield name, self.located(value)

    def _scalar(self, node: yaml.Node, at: At) -> object:
        try:
            value: object = yaml.SafeLoader("").construct_object(node)
            str(value).encode()  # neither half of a surrogate pair nor a number without end
        except yaml.YAMLError as error:
            problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else error
            self._problems.append(f"{at}: {problem}")
            return None
        except UnicodeEncodeError as error:
            self._problems.append(f"{at}: {error.reason}: half of a character")
            return None
        # PyYAML does not look at what stands behind an explicit tag.
        except (ValueError, LookupError, AttributeError, OverflowError) as error:
            self._problems.append(f"{at}: {node.value[:40]!r} is no {node.tag[18:]}: {error}")
            return None
        return value.date() if isinstance(value, datetime.datetime) else value
