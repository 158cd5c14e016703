"""Each gap of PyTorch's native test hooks, shown on plain PyTorch, and our base without it.

A test of the plain side turns red when PyTorch closes the gap: then ours can go.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import openspyre.ci.native

CI = Path(__file__).parent
NATIVE = Path(openspyre.ci.native.__file__).parent

EMPTY = "ValueError: An empty op_list was passed to @ops. Note that t"
BROKEN = "AttributeError: 'NoneType' object has no attribute '__name__"
UNKNOWN = "SkipTest: Unknown device type"
# What is asked, what plain PyTorch 2.13 does, what our base does.
GAPS = [
    ("1: no op is left", EMPTY, ["test_b_openreg"]),
    ("1: an empty list", EMPTY, EMPTY),
    ("2: ops left in the decorator", 1, 2),
    ("3: skipped of the first op's tests", "1 of 2", "2 of 2"),
    ("4: classes", ["TestOnePRIVATEUSE1", "TestTwoOPENREG"], ["TestOneOPENREG", "TestTwoOPENREG"]),
    (
        "5: tests",
        ["test_a_add_openreg_float64", "test_b_add_openreg_float32"],
        ["test_b_add_openreg_float32"],
    ),
    ("6: tests", ["test_c_openreg"], ["test_a_openreg", "test_c_openreg"]),
    ("8: parameters", 3, 3),
    ("8: with any arguments", BROKEN, BROKEN),
    ("9: classes for openreg", 0, 1),
    ("11: native devices", False, True),
    ("12: a large test", UNKNOWN, UNKNOWN),  # upstream's to mend
    ("13: as expected", "expectedFailures", "expectedFailures"),
    ("13: another failure", "expectedFailures", "failures"),
    ("13: another text", "expectedFailures", "failures"),
    ("13: a pass", "unexpectedSuccesses", "unexpectedSuccesses"),
    ("13: a skip", "passed", "failures"),
    ("14: tests", ["test_a_openreg_float32", "test_a_openreg_float64"], ["test_a_openreg_float32"]),
]


def answers(side: str) -> dict[str, Any]:
    found = subprocess.run(
        [sys.executable, "-m", "tests.ci.hook_gaps", side],
        cwd=CI.parents[1], capture_output=True, text=True, check=False,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},  # it registers another device
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return answers("plain")


@pytest.fixture(scope="module")
def ours() -> dict[str, Any]:
    return answers("ours")


@pytest.mark.parametrize(("gap", "there", "here"), GAPS, ids=[gap for gap, _, _ in GAPS])
def test_a_gap(
    plain: dict[str, Any], ours: dict[str, Any], gap: str, there: object, here: object
) -> None:
    assert (plain[gap], ours[gap]) == (there, here)


@pytest.mark.parametrize("file", sorted(NATIVE.glob("*.py")), ids=lambda p: p.name)
def test_what_belongs_upstream_imports_nothing_of_ours(file: Path) -> None:
    allowed = {*sys.stdlib_module_names, "torch"}
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import(names=names):
                assert {name.name.partition(".")[0] for name in names} <= allowed
            case ast.ImportFrom(module=str(module), level=0):
                assert module.partition(".")[0] in allowed
            case ast.ImportFrom(level=level):
                assert level == 1


def test_no_device_is_named_outside_data() -> None:
    """Code knows no device: rules and tables do."""
    for folder in ("native", "reuse"):
        for file in sorted((NATIVE.parent / folder).glob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    named = re.search(r"(?<![\w.-])spyre(?![\w-])", node.value)
                    assert named is None, f"{file.name}:{node.lineno}"
