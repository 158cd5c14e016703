"""What stage 1 writes: one record per test, per piece of test machinery, per entry of a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from .errors import SelectionError

SCHEMA = "selection/1"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Test:
    """One test method before any device, op or dtype is chosen.

    Attributes:
        id: `file::Class::method`, the file relative to the folder of tests; `*` for tests whose
            names are computed.
        line, end: where it stands in `at`, which is another file for an inherited test.
        body, signature, decorators, of_class, generation, instantiation: hashes.
        helpers: names that it reaches helpers by, and the hash of what is behind each.
        infra: the same for the test machinery.
        imports: names of what is not ours, and where they come from.
        guards: texts of its decorators and of its class's, without those that generate.
        generated_by: texts of the decorators that generate.
        generic: it is made once per device type.
        only_for, except_for: device types written out where it is.
        tables: lists of ops that it is generated from; `path::name`, or `path::name/Class`.
        calls: functions of the library that it calls, with modules written out.
        called: last parts of the names of all that it calls.
    """

    id: str
    at: str
    line: int
    end: int
    body: str
    signature: str
    decorators: str
    of_class: str
    generation: str
    instantiation: str
    helpers: Mapping[str, str]
    infra: Mapping[str, str]
    imports: Mapping[str, str] = field(default_factory=dict)
    guards: tuple[str, ...] = ()
    generated_by: tuple[str, ...] = ()
    generic: bool = False
    inherited: bool = False
    only_for: tuple[str, ...] = ()
    except_for: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    called: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        return self.id.split("::")[0]

    @property
    def cls(self) -> str:
        return self.id.split("::")[1]

    @property
    def method(self) -> str:
        return self.id.split("::")[2]


@dataclass(frozen=True, slots=True)
class Broken:
    """A file that does not parse: its tests are not known."""

    path: str
    test_file: bool
    error: str
    line: int
    hash: str


@dataclass(frozen=True, slots=True)
class Machinery:
    """A definition in the files that all tests run in."""

    path: str
    name: str
    hash: str
    line: int

    @property
    def key(self) -> str:
        return f"{self.path}::{self.name}"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a table of ops; `reached` is the hash of what its arguments reach."""

    table: str
    maker: str
    name: str
    variant: str
    hash: str
    reached: str
    line: int

    @property
    def full_name(self) -> str:
        return f"{self.name}.{self.variant}" if self.variant else self.name


@dataclass(frozen=True, slots=True)
class Enumeration:
    """All of one ref.

    Attributes:
        other: blobs of all files that are no Python of the tests.
        tests_in: the folder of tests.
    """

    ref: str
    commit: str
    tests: tuple[Test, ...] = ()
    broken: tuple[Broken, ...] = ()
    machinery: tuple[Machinery, ...] = ()
    entries: tuple[Entry, ...] = ()
    other: Mapping[str, str] = field(default_factory=dict)
    tests_in: str = ""

    def by_id(self) -> dict[str, Test]:
        return {test.id: test for test in self.tests}


_KINDS: Mapping[str, type[Any]] = {
    "test": Test, "broken": Broken, "machinery": Machinery, "entry": Entry,
}  # fmt: skip


def to_json(value: Any) -> str:
    """One line, the same for equal values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=True)


def enumeration_text(found: Enumeration) -> str:
    """The lines of `enum.jsonl`."""
    head = {
        "schema": SCHEMA, "ref": found.ref, "commit": found.commit, "other": found.other,
        "tests_in": found.tests_in,
    }  # fmt: skip
    lines = [to_json(head)]
    parts: tuple[tuple[str, Iterable[Any]], ...] = (
        ("test", found.tests), ("broken", found.broken), ("machinery", found.machinery),
        ("entry", found.entries),
    )  # fmt: skip
    for kind, records in parts:
        lines += [to_json({"is": kind, **asdict(record)}) for record in records]
    return "\n".join(lines) + "\n"


def enumeration_of(text: str, name: str = "enumeration") -> Enumeration:
    """Reads `enum.jsonl`.

    Raises:
        SelectionError: it is not one.
    """
    try:
        head, *lines = map(json.loads, text.splitlines())
        if head["schema"] != SCHEMA:
            raise ValueError(f"its schema is {head['schema']}")
        found: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
        for line in lines:
            kind = line.pop("is")
            found[kind].append(record_of(_KINDS[kind], line))
        return Enumeration(
            head["ref"], head["commit"], tuple(found["test"]), tuple(found["broken"]),
            tuple(found["machinery"]), tuple(found["entry"]), head["other"], head["tests_in"],
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SelectionError(
            f"{name} is no enumeration", why=repr(error), hint="enumerate again"
        ) from None


def record_of(kind: type[T], line: Mapping[str, Any]) -> T:
    """A record out of its JSON object; lists become tuples.

    Raises:
        ValueError: it has other fields.
    """
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    if extra := set(line) - known:
        raise ValueError(f"unknown fields {sorted(extra)}")
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in line.items()})


def read_text(path: Path) -> str:
    """A file that an earlier stage left.

    Raises:
        SelectionError: there is none.
    """
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SelectionError(
            f"{path} cannot be read", why=str(error), hint="run the stage before it first"
        ) from None
