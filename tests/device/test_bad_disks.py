"""A disk that is full or cannot be written: work goes on, with a warning."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
WORK = """
import torch, openspyre
openspyre.require()
from openspyre.runtime.launch import load_kernel
TEXT = '''kernel add
symbols n
arguments x y
input x: f32[n]
output y: f32[n]
op add map i0:n
  y[i0] <- x[i0] + 1.0
'''
x, y = torch.ones(4).to("spyre"), torch.zeros(4).to("spyre")
load_kernel(TEXT)(x, y, 4)
assert y.tolist() == [2.0] * 4
"""
SMALL_FILES = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (256, 256))\n"


@pytest.mark.parametrize("folder", ["/proc/nowhere", "file/cache"])
def test_a_folder_that_cannot_be_made(run_python: Run, tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("in the way")
    done = run_python(
        WORK,
        OPENSPYRE_CACHE=str(tmp_path / folder),
        OPENSPYRE_RUN=str(tmp_path / folder),
        OPENSPYRE_CACHE_PROGRAMS="on",
    )
    assert done.returncode == 0, done.stderr
    assert "openspyre keeps no compiled programs in" in done.stderr
    assert "OPENSPYRE_CACHE" in done.stderr


def test_a_full_disk(run_python: Run, tmp_path: Path) -> None:
    """No file may grow beyond 256 bytes: as a disk that fills up while a program is written."""
    folders = {
        "OPENSPYRE_CACHE": str(tmp_path / "cache"),
        "OPENSPYRE_RUN": str(tmp_path / "run"),
        "OPENSPYRE_CACHE_PROGRAMS": "on",
    }
    done = run_python(SMALL_FILES + WORK, **folders)
    assert done.returncode == 0, done.stderr
    assert "openspyre keeps no compiled programs in" in done.stderr
    programs = tmp_path / "cache" / "programs"
    assert not list(programs.glob("*.program"))
    assert not list((tmp_path / "run").glob("*.state"))
    again = run_python(WORK, **folders)
    assert again.returncode == 0, again.stderr
    assert "openspyre keeps no" not in again.stderr
    assert list(programs.glob("*.program"))
