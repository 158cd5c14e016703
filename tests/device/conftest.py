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


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs code in a fresh Python that can import openspyre and has not loaded the device."""

    def run(
        code: str, *, path: tuple[Path, ...] = (), **environment: str
    ) -> subprocess.CompletedProcess[str]:
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
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture
def counted() -> None:
    """Fallback counts start at zero."""
    torch.spyre.reset_fallbacks()
