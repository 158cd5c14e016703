"""YAML whose every value knows its line and column, and the list of all that is wrong with it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from openspyre.errors import SpyreError


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
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = At(str(path), mark.line + 1, mark.column + 1) if mark else path
        raise InvalidRules([f"{at}: {error.problem or error}"]) from None
    if node is None:
        raise InvalidRules([f"{path}:1:1: the file is empty"])
    problems: list[str] = []
    found = _located(node, str(path), problems, frozenset())
    if problems:
        raise InvalidRules(problems)
    return found


def _located(node: yaml.Node, file: str, problems: list[str], around: frozenset[int]) -> Located:
    at = At(file, node.start_mark.line + 1, node.start_mark.column + 1)
    if id(node) in around:
        problems.append(f"{at}: an alias that contains itself")
        return Located(None, at)
    around |= {id(node)}
    match node:
        case yaml.MappingNode():
            return Located(dict(_items(node, file, problems, around)), at)
        case yaml.SequenceNode():
            return Located([_located(n, file, problems, around) for n in node.value], at)
        case _:
            return Located(_scalar(node, at, problems), at)


def _items(
    node: yaml.MappingNode, file: str, problems: list[str], around: frozenset[int]
) -> Iterator[tuple[str, Located]]:
    seen: set[str] = set()
    for key, value in node.value:
        at = At(file, key.start_mark.line + 1, key.start_mark.column + 1)
        name = str(key.value)
        if not isinstance(key, yaml.ScalarNode) or name in seen:
            problems.append(f"{at}: the key {name!r} stands here twice, or is no word")
        seen.add(name)
        yield name, _located(value, file, problems, around)


def _scalar(node: yaml.Node, at: At, problems: list[str]) -> object:
    try:
        value: object = yaml.SafeLoader("").construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        problems.append(f"{at}: {error}")
        return None
    return value.date() if isinstance(value, datetime.datetime) else value
