"""Processes of their own for what imports vLLM, which changes a process for good."""

from __future__ import annotations

import subprocess
import sys
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
