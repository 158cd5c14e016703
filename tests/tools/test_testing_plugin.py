"""The pytest plugin for other repositories: a mark and two fixtures, in a run of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PLUGIN = "openspyre.testing.plugin"
DOCUMENT = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
TESTS = """\
import pytest
import torch

from openspyre.testing import spyre


def norm(device):
    torch.manual_seed(0)
    x = torch.randn(4, 100).half().to(device)
    return torch.nn.functional.layer_norm(x, (100,))


@pytest.mark.spyre(max_fallbacks=0, atol=2e-3, rtol=2e-3)
def test_right(spyre_device):
    return norm(spyre_device)


@spyre(atol=1e-12, rtol=0)
def test_too_strict(spyre_device):
    return {"out": norm(spyre_device).float() * (1 + 1e-3 * (spyre_device == "spyre"))}


@spyre(max_fallbacks=0)
def test_falls_back(spyre_device):
    x = torch.tensor([0.0, 1.0, 2.0]).to(spyre_device)
    return torch.unique(x, dim=0)


@spyre(max_fallbacks=1)
def test_may_fall_back(spyre_device):
    return torch.unique(torch.tensor([0.0, 1.0, 2.0]).to(spyre_device), dim=0)


@spyre(max_card_us=0.001, max_compiles=0)
def test_takes_too_long(spyre_device):
    @torch.compile
    def double(x):
        return x + x

    return double(torch.ones(300).to(spyre_device))


@spyre(max_compiles=1, max_card_us=1e6)
def test_called(on_spyre):
    linear = torch.nn.Linear(8, 3)
    given = on_spyre(torch.compile(linear), torch.ones(2, 8))
    assert given.device.type == "cpu"
    torch.testing.assert_close(given, linear(torch.ones(2, 8)))


@spyre()
def test_own_assertions(spyre_device):
    assert torch.ones(2).to(spyre_device).sum().item() == (3 if spyre_device == "spyre" else 2)


@spyre()
def test_numbers_and_none(spyre_device):
    return [norm(spyre_device).shape[0], None, "text"]


def test_without_a_mark(spyre_device):
    assert torch.ones(2, device=spyre_device).device.type == "spyre"
"""


def run(folder: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A run of pytest in a folder that knows nothing of this repository, with this plugin alone:
    where the package is installed, pytest would load it a second time.
    """
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-q", *words]
    return subprocess.run(
        [*command, "--rootdir", str(folder), "test_it.py"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=200,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip


def test_pytest_finds_it_where_the_package_is_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert list(project["entry-points"]["pytest11"].values()) == [PLUGIN]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "test_document.py").write_text(EXAMPLE)
    result = run(folder, TESTS, "test_document.py", "-rA", "--strict-markers")
    assert "no tests ran" not in result.stdout, result.stderr
    return result.stdout


def part(output: str, name: str) -> str:
    """What a run says of the failure of one test."""
    return output.split(f"_ {name} _")[1].split("\n____")[0]


@pytest.mark.parametrize(
    "name",
    ["right", "may_fall_back", "called", "numbers_and_none", "without_a_mark"],
)
def test_passes(output: str, name: str) -> None:
    assert f"PASSED test_it.py::test_{name}" in output


@pytest.mark.parametrize("name", ["norm", "model"])
def test_what_the_document_shows(output: str, name: str) -> None:
    assert f"PASSED test_document.py::test_{name}" in output


@pytest.mark.parametrize("name", ["too_strict", "falls_back", "takes_too_long", "own_assertions"])
def test_fails(output: str, name: str) -> None:
    assert f"FAILED test_it.py::test_{name}" in output


def test_a_difference_is_shown(output: str) -> None:
    said = part(output, "test_too_strict")
    assert "spyre and cpu differ" in said
    assert "Greatest absolute difference" in said


def test_a_fallback_is_named_with_its_line(output: str) -> None:
    said = part(output, "test_falls_back")
    assert "1 call ran on the CPU (max_fallbacks=0)" in said
    assert "aten::unique_dim, 1 call: " in said
    assert "test_it.py:26 return torch.unique(x, dim=0)" in said


def test_card_time_is_shown_by_kernel(output: str) -> None:
    said = part(output, "test_takes_too_long")
    assert "us of card time (max_card_us=0.001):" in said
    assert "us in 1 launch" in said
    assert "add" in said
    assert "1 graph compiled (max_compiles=0)" in said


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("max_fallback=0", "mark spyre knows no max_fallback; it has max_fallbacks"),
        ("3", "mark spyre takes options by name only"),
        ("max_card_us=-1", "max_card_us=-1 is no limit"),
        ("max_compiles='two'", "max_compiles='two' is no limit"),
    ],
)
def test_a_wrong_mark_is_an_error(tmp_path: Path, mark: str, said: str) -> None:
    text = f"import pytest\n\n@pytest.mark.spyre({mark})\ndef test(spyre_device):\n    pass\n"
    result = run(tmp_path, text)
    assert result.returncode == 4
    assert said in result.stdout + result.stderr


def test_other_runs_do_not_load_torch(tmp_path: Path) -> None:
    text = "import sys\n\ndef test():\n    assert 'torch' not in sys.modules\n"
    result = run(tmp_path, text)
    assert result.returncode == 0, result.stdout
