"""PyTorch's test files of 2.6.0, which the lane `upstream` runs."""

from __future__ import annotations

from pathlib import Path

from tests.debian_pytorch import V2_6, cache_folder, unpack

NAME = f"Debian's pytorch {V2_6.version}"


def folder_of_tests() -> Path:
    """The folder `test` of PyTorch's sources.

    Raises:
        NoSources: they are not there, and cannot be fetched.
    """
    cache = cache_folder()
    folder = cache / "pytorch-2.6.0"
    if not (folder / "test" / "test_ops.py").exists():
        folder.mkdir(parents=True, exist_ok=True)
        unpack(V2_6, cache, ("test",), folder)
    return folder / "test"
