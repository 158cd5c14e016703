"""What an earlier run found is used again only where the same would be found now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from openspyre.ci.reuse import journal
from openspyre.ci.reuse.isolation import Ended, Place
from openspyre.ci.reuse.journal import Journal, journal_key, product_digest

FILE = b"the test file and its hooks"


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that registers a device."""
    folder = tmp_path / "a_product"
    (folder / "lib").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError  # it is looked at, not imported\n")
    (folder / "lib" / "table.bin").write_bytes(b"1")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def key(place: Place) -> str:
    product_digest.cache_clear()  # a process has one
    return journal_key(place, FILE)


@pytest.fixture
def place(tmp_path: Path, product: Path) -> Place:
    return Place(tmp_path, tmp_path / "work", "other", "a_product:register", 60.0)


def test_a_key_is_of_all_that_decides(
    place: Place, product: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = key(place)
    assert key(place) == first
    assert key(replace(place, work=place.work / "elsewhere")) == first
    keys = {first, journal_key(place, FILE + b"!")}
    keys |= {key(replace(place, device="another")), key(replace(place, timeout_s=1.0))}
    keys |= {
        key(replace(place, bootstrap="a_product:other")),
        key(replace(place, bootstrap="json")),
    }
    (product / "lib" / "table.bin").write_bytes(b"2")
    keys.add(key(place))
    (product / "lib" / "more.py").write_text("")
    keys.add(key(place))
    monkeypatch.setattr(journal, "version", lambda _: "2.99")
    keys.add(key(place))
    assert len(keys) == 9


def test_compiled_files_of_python_decide_nothing(place: Place, product: Path) -> None:
    first = key(place)
    (product / "__pycache__").mkdir()
    (product / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"1")
    assert key(place) == first


@pytest.mark.parametrize("bootstrap", ["no_such_module_anywhere:f", "json", "", "a.b.c"])
def test_every_bootstrap_has_a_digest(bootstrap: str) -> None:
    assert len(product_digest(bootstrap)) == 64


def test_a_changed_product_begins_anew(place: Place, product: Path) -> None:
    path, ended = place.work / "a.jsonl", Ended("a.py::A::b", "passed")
    with Journal(path, key(place), resume=True) as before:
        before.add(ended)
    assert Journal(path, key(place), resume=True).earlier == {ended.id: ended}
    (product / "__init__.py").write_text("# mended\n")
    assert Journal(path, key(place), resume=True).earlier == {}
