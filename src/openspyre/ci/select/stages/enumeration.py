"""Stage 1: all tests of one ref of an upstream repository, by static analysis alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from .canonical import digest
from .describing import tests_of
from .errors import SelectionError
from .git import Repository
from .layout import Layout
from .linking import Links
from .reading import shape_of
from .records import Broken, Entry, Enumeration, Machinery, Test
from .shape import FileShape

Shapes = dict[str, FileShape]


Tell = Callable[[str, float], None]


_EXPECTED = re.compile(r"(\w+\.test\w*?)(?:-\w+)?\.(?:expect|txt|pt|json)$")


def silent(_: str, __: float) -> None:
    """Tells nobody how far it is."""


def enumerate_ref(
    repository: Repository, ref: str, layout: Layout, *, parsed: Shapes | None = None,
    tell: Tell = silent,
) -> Enumeration:  # fmt: skip
    """The tests of a ref.

    Args:
        parsed: shapes by blob; those of another ref are taken as they are, new ones are added.
        tell: is told what is being done and which share of it is done.

    Raises:
        SelectionError: there is no such ref, or no test file in it.
    """
    files = repository.files(ref)
    sources = {p: b for p, b in files.items() if p.endswith(".py") and layout.is_ours(p)}
    parsed = {} if parsed is None else parsed
    new = [blob for blob in dict.fromkeys(sources.values()) if blob not in parsed]
    for number, (blob, data) in enumerate(repository.contents(new)):
        parsed[blob] = shape_of(data)
        tell(f"reading {ref}", number / len(new))
    other = {path: blob for path, blob in files.items() if path not in sources}
    shapes = {path: parsed[blob] for path, blob in sorted(sources.items())}
    found = enumerate_shapes(
        shapes, layout, sources, other, lambda share: tell(f"linking {ref}", share)
    )
    if not found.tests and not found.broken:
        raise SelectionError(
            f"{ref} has no tests in {layout.tests}/", why=f"no {layout.pattern} with a test",
            hint="--tests names the folder of tests; . is the whole repository",
        )  # fmt: skip
    return replace(found, ref=ref, commit=repository.commit(ref))


def enumerate_shapes(
    shapes: Mapping[str, FileShape], layout: Layout, hashes: Mapping[str, str],
    other: Mapping[str, str] | None = None, tell: Callable[[float], None] = lambda _: None,
) -> Enumeration:  # fmt: skip
    """The tests of files whose shapes are known.

    Args:
        hashes, other: hashes of these files' contents, and of all other files, by path.
    """
    links = Links(shapes, layout)
    other = other or {}
    tests: list[Test] = []
    for number, path in enumerate(shapes):
        if layout.is_test_file(path):
            tests += tests_of(links, path)
        tell(number / len(shapes))
    ordered = sorted(tests, key=lambda test: test.id)
    return Enumeration(
        "", "", _with_data(ordered, shapes, other, layout),
        tuple(_broken(links, hashes)), tuple(_machinery(links)), tuple(_entries(links)),
        other, layout.tests,
    )  # fmt: skip


def _with_data(
    tests: Iterable[Test], shapes: Mapping[str, FileShape], other: Mapping[str, str], layout: Layout
) -> tuple[Test, ...]:
    """Data files beside tests are helpers: of the tests whose file names them, or that name one."""
    data: dict[str, list[str]] = {}
    for path, blob in sorted(other.items()):
        if layout.is_ours(path):
            data.setdefault(path.rpartition("/")[2], []).append(blob)
    expected: dict[str, list[str]] = {}
    for name in data:
        if found := _EXPECTED.match(name):
            expected.setdefault(found[1], []).append(name)
    files = {path: shape.file_names & data.keys() for path, shape in shapes.items()}
    result = []
    for test in tests:
        names = [*files[layout.prefix + test.file], *files[test.at]]
        names += expected.get(f"{test.cls}.{test.method}", ())
        if names:
            held = {f"<data:{name}>": digest(data[name]) for name in names}
            test = replace(test, helpers={**test.helpers, **held})
        result.append(test)
    return tuple(result)


def _broken(links: Links, sources: Mapping[str, str]) -> Iterator[Broken]:
    for path, shape in links.shapes.items():
        if shape.error:
            test_file = links.layout.is_test_file(path)
            yield Broken(path, test_file, shape.error, shape.line, sources[path])


def _machinery(links: Links) -> Iterator[Machinery]:
    for path, shape in links.shapes.items():
        if not links.layout.is_infra(path):
            continue
        for name, pieces in sorted(shape.bindings.items()):
            cls = shape.classes.get(name)
            if cls is None:
                yield Machinery(path, name, digest(p.hash for p in pieces), pieces[0].line)
                continue
            yield Machinery(path, name, cls.own.hash, cls.line)
            for method in cls.methods.values():
                text = digest(piece.hash for piece in method.pieces)
                yield Machinery(path, f"{name}.{method.name}", text, method.line)
        if shape.effects:
            text = digest(piece.hash for piece in shape.effects)
            yield Machinery(path, "<module>", text, shape.effects[0].line)


def _entries(links: Links) -> Iterator[Entry]:
    for path, shape in links.shapes.items():
        for table, entries in sorted(shape.tables.items()):
            for entry in entries:
                found = links.joined(path, [entry.piece])
                reached = digest([found.helpers, found.infra])
                yield Entry(
                    f"{path}::{table}", entry.maker, entry.name, entry.variant, entry.piece.hash,
                    reached, entry.piece.line,
                )  # fmt: skip
