"""How tests ended, written as they end: a run that is cut short goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TextIO

from openspyre.ci.reuse.isolation import Ended, Place

_BACKENDS = "torch.backends"  # the entry points that PyTorch's autoload looks for


def journal_key(place: Place, tests: bytes) -> str:
    """What outcomes depend on: under another key they say nothing of what would come now.

    Args:
        tests: the test file and its hooks.
    """
    return hashlib.sha256(product_key(place).encode() + tests).hexdigest()


def product_key(place: Place) -> str:
    """The same for the same device, its code, PyTorch and time per test."""
    under = (place.device, place.bootstrap, f"{place.timeout_s:g}", version("torch"))
    return repr((*under, product_digest(place.bootstrap)))


@cache
def product_digest(bootstrap: str) -> str:
    """Of the code that registers the device: its files, which a commit does not say when dirty.

    Args:
        bootstrap: `module:function`; empty: every backend that PyTorch loads by itself.
    """
    found = hashlib.sha256()
    modules = [bootstrap] if bootstrap else [p.value for p in entry_points(group=_BACKENDS)]
    for name in sorted({module.partition(":")[0].partition(".")[0] for module in modules}):
        for relative, path in sorted(_files(name)):
            found.update(f"{name}/{relative}\0{path.stat().st_size}\0".encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def _files(name: str) -> Iterator[tuple[str, Path]]:
    """The files of a module or package, found without importing it."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return
    if spec is None:
        return
    if spec.origin is not None and Path(spec.origin).is_file():
        yield "", Path(spec.origin)
    for folder in spec.submodule_search_locations or ():
        for path in Path(folder).rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                yield str(path.relative_to(folder)), path


class Journal:
    """The ends of one file's tests.

    Args:
        key: of the file and its hooks; what was written under another is of no use.
        resume: whether to go on; otherwise it begins anew.

    Attributes:
        earlier: what an earlier run wrote under the key, the last for each test.
    """

    def __init__(self, path: Path, key: str, resume: bool) -> None:
        self._path, self._key = path, key
        self.earlier = _read(path, key) if resume else {}
        self._file: TextIO | None = None

    def __enter__(self) -> Journal:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self._path, "w", encoding="utf-8")
        print(json.dumps({"key": self._key}), file=self._file)
        for ended in self.earlier.values():
            self.add(ended)
        return self

    def add(self, ended: Ended) -> None:
        assert self._file is not None
        print(json.dumps(asdict(ended)), file=self._file, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._file is not None:
            self._file.close()


def _read(path: Path, key: str) -> dict[str, Ended]:
    found: dict[str, Ended] = {}
    try:
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        if json.loads(first) != {"key": key}:
            return {}
    except (OSError, ValueError):
        return {}
    for line in lines:
        try:
            ended = Ended(**json.loads(line))
        except (ValueError, TypeError):  # cut short as it was written
            break
        found[ended.id] = ended
    return found
