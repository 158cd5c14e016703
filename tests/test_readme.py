"""What the README claims is so: its commands, its example, its table, its map."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def section(title: str) -> str:
    match = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert match, f"the README has no section {title}"
    return match[1]


def rows(title: str) -> list[list[str]]:
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names_of_tests(path: Path) -> list[str]:
    """The test functions of a file or a folder."""
    files = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
    return [
        node.name
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def test_it_is_short() -> None:
    assert len(README.splitlines()) < 120


@pytest.mark.parametrize("row", rows("What works today"), ids=lambda row: row[0])
def test_every_claim_is_held_by_tests_that_run(row: list[str]) -> None:
    """The suite is green or the claim is not: what is named must exist and not be skipped."""
    (path,) = re.findall(r"`(tests/[\w/.]+)`", row[2])
    held = ROOT / path
    assert names_of_tests(held), f"{path} holds no test"
    files = held.rglob("*.py") if held.is_dir() else [held]
    text = "".join(file.read_text() for file in files)
    for word in ("pytest.skip", "mark.skip", "mark.xfail", "pytest.xfail", "importorskip"):
        assert word not in text, f"{path} has {word}"


def test_the_dtypes_it_names_are_tested() -> None:
    (row,) = (row for row in rows("What works today") if row[0].startswith("dtypes"))
    tested = (ROOT / "tests/compile/test_ops.py").read_text()
    for dtype in row[1].split(", "):
        assert f"torch.{dtype}" in tested, f"no compiled test uses {dtype}"


def test_the_example_runs(tmp_path: Path) -> None:
    match = re.search(r"```python\n(.*?)```", section("Example"), re.DOTALL)
    assert match
    code = match[1]
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert re.search(r"^\w+ \d+ [\d.]+ us of card time$", result.stdout, re.MULTILINE)


def test_the_map_names_what_is_there() -> None:
    named = [path for row in rows("Map") for path in re.findall(r"`([\w/]+)`", row[0])]
    assert named
    for path in named:
        assert (ROOT / path).is_dir(), f"there is no folder {path}"
    packages = {p.parent for p in (ROOT / "src" / "openspyre").glob("*/__init__.py")}
    unnamed = {str(p.relative_to(ROOT)) for p in packages} - set(named)
    assert not unnamed, f"the map leaves out {unnamed}"


def test_files_it_mentions_exist() -> None:
    for path in re.findall(r"`((?:src|docs|tests|csrc)/[\w/.]+)`", README):
        assert (ROOT / path).exists(), f"there is no {path}"


@pytest.mark.parametrize("command", ["demo", "test", "check", "build", "bench", "golden"])
def test_dev_knows_its_commands(command: str) -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "dev", "--help"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0
    assert f"./dev {command}" in result.stdout


def test_dev_refuses_what_it_does_not_know() -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "dev", "tset"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "there is no command 'tset'" in result.stderr


def test_no_affiliation_is_claimed() -> None:
    assert "Not affiliated with IBM" in README
