"""The device tests run in a process that has the device; some start processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import openspyre

openspyre.require()
SOURCES = Path(openspyre.__file__).resolve().parent.parent


def fresh_python(
    code: str, folder: Path, *, path: tuple[Path, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs code in a Python that can import openspyre and has not loaded the device."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OPENSPYRE_") or name == "OPENSPYRE_DEBUG"
    }
    paths = os.pathsep.join(map(str, (*path, SOURCES)))
    fixed = {
        "PYTHONPATH": paths,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "OPENSPYRE_CACHE_PROGRAMS": "off",
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, **fixed, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`fresh_python` in a folder of the test's own."""

    def run(
        code: str, *, path: tuple[Path, ...] = (), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return fresh_python(code, tmp_path, path=path, **environment)

    return run


@pytest.fixture
def counted() -> None:
    """Fallback counts start at zero."""
    torch.spyre.reset_fallbacks()
