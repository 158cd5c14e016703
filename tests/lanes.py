"""What the long lanes share: commands that run for minutes and say how far they are."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.results import commit

ROOT = Path(__file__).parents[1]
BEGUN = commit()
EVERY = 20.0  # seconds between lines of progress


def followed(
    command: Sequence[str | Path], *, name: str, cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Runs a command to its end, and prints its last line of output now and then.

    Both streams of its output are in `stdout`.
    """
    start = told = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=cwd, env=env, stdout=output, stderr=output)
        try:
            while process.poll() is None:
                time.sleep(0.2)
                if time.monotonic() - told > EVERY:
                    told = time.monotonic()
                    print(
                        f"{name}: {told - start:.0f} s: {_last_line(output.fileno())}", flush=True
                    )
        finally:
            process.kill()
        output.seek(0)
        text = output.read().decode(errors="replace")
    print(f"{name}: ended after {time.monotonic() - start:.0f} s", flush=True)
    return subprocess.CompletedProcess(list(command), process.returncode, text)


def _last_line(file: int) -> str:
    with open(f"/proc/self/fd/{file}", "rb") as output:
        output.seek(max(output.seek(0, 2) - 4000, 0))
        lines = output.read().decode(errors="replace").split("\n")
    return next((line.strip()[:100] for line in reversed(lines) if line.strip()), "")
