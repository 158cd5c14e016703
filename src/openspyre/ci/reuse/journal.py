"""How tests ended, written as they end: a run that is cut short goes on where it was."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TextIO

from openspyre.ci.reuse.isolation import Ended


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
