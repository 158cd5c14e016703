"""Processes of their own for what imports vLLM, which changes a process for good."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

from openspyre.settings import child_environment

ROOT = Path(__file__).parents[2]


def environment(**variables: str) -> dict[str, str]:
    """This process's environment for vLLM, without the network."""
    return child_environment(VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="WARNING", **variables)


def output_of(*command: str, **variables: str) -> str:
    """What Python prints for a command line; its own engine lies in the process."""
    variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment(**variables), text=True,
        check=False, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def with_entry_points(folder: Path) -> str:
    """A PYTHONPATH on which every entry point of pyproject.toml is found, installed or not."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = []
    for group, points in declared.items():
        lines.append(f"[{group}]")
        known = {point.name for point in entry_points(group=group)}
        lines += [f"{name} = {value}" for name, value in points.items() if name not in known]
    made = folder / "openspyre_declared-0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: openspyre-declared\nVersion: 0\n")
    (made / "entry_points.txt").write_text("\n".join(lines))
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
