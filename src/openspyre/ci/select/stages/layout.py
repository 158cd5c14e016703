"""Where in an upstream repository tests, helpers and the test machinery lie."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

_INFRA = (
    "common_utils.py", "common_device_type.py", "common_dtype.py",
    "common_methods_invocations.py", "opinfo/*", "conftest.py", "run_test.py",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """Folders and names.

    Attributes:
        tests: the folder of tests; ids are relative to it; "" or "." is the whole repository.
        helpers: folders of modules that tests import, and the folder they are imported from.
        pattern: names of files whose classes are collected.
        infra: what all tests run in, as endings of paths; `dir/*` is a folder.
        roots: folders that module names start from.
    """

    tests: str = "test"
    helpers: tuple[str, ...] = ("torch/testing",)
    pattern: str = "test_*.py"
    infra: tuple[str, ...] = _INFRA
    roots: tuple[str, ...] = ("", "test")

    @property
    def prefix(self) -> str:
        """What paths of tests begin with."""
        name = self.tests.strip("/")
        return "" if name in ("", ".") else f"{name}/"

    def is_test_file(self, path: str) -> bool:
        inside = path.startswith(self.prefix)
        return inside and fnmatch.fnmatchcase(path.rpartition("/")[2], self.pattern)

    def is_infra(self, path: str) -> bool:
        return any(_ends(path, name) for name in self.infra)

    def is_ours(self, path: str) -> bool:
        """Whether a file belongs to the tests at all, helpers included."""
        starts = (self.prefix, *(f"{folder}/" for folder in self.helpers))
        return any(path.startswith(start) for start in starts)

    def name(self, path: str) -> str:
        """A test file's name in ids."""
        return path.removeprefix(self.prefix)

    def modules(self, path: str, module: str) -> list[str]:
        """Files that a module named in a file may be, likeliest first."""
        folder = path.rpartition("/")[0]
        up = len(module) - len(module.lstrip("."))
        tail = module.lstrip(".").replace(".", "/")
        if up:
            parts = folder.split("/")[: len(folder.split("/")) - up + 1]
            starts = ["/".join(parts)]
        else:
            starts = [folder, self.prefix.rstrip("/"), *self.roots]
        found = []
        for start in dict.fromkeys(starts):
            stem = "/".join(filter(None, (start, tail)))
            found += [f"{stem}.py", f"{stem}/__init__.py"]
        return found


def _ends(path: str, name: str) -> bool:
    if name.endswith("/*"):
        return f"/{name[:-1]}" in f"/{path}"
    return f"/{path}".endswith(f"/{name}")
