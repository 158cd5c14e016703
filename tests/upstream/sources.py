"""PyTorch's test files as Debian ships them: fetched once, kept outside the repository."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from openspyre.settings import settings

VERSION = "2.6.0+dfsg-7"
NAME = f"Debian's pytorch {VERSION}"
_ARCHIVE = "pytorch_2.6.0+dfsg.orig.tar.xz"
_SHA256 = "099a9601bc40d67656e75735c44abedb0fbe92d08817852ab7472eebb7e6ddff"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class NoSources(Exception):
    """They cannot be had here."""


def cache_folder() -> Path:
    """OPENSPYRE_UPSTREAM_CACHE, or a folder in openspyre's own cache."""
    chosen = os.environ.get("OPENSPYRE_UPSTREAM_CACHE", "")
    return Path(chosen) if chosen else settings().cache / "upstream"


def folder_of_tests() -> Path:
    """The folder `test` of PyTorch's sources.

    Raises:
        NoSources: they are not there, and cannot be fetched.
    """
    cache = cache_folder()
    folder = cache / "pytorch-2.6.0" / "test"
    if not (folder / "test_ops.py").exists():
        archive = _fetched(cache)
        folder.parent.mkdir(exist_ok=True)
        _run(
            ["tar", "-xJf", archive, "--strip-components=1", "-C", folder.parent,
             "pytorch-v2.6.0/test"], cache,
        )  # fmt: skip
    return folder


def _fetched(cache: Path) -> Path:
    archive = cache / _ARCHIVE
    if not archive.exists():
        for name in ("lists/partial", "cache/archives/partial"):
            (cache / name).mkdir(parents=True, exist_ok=True)
        line = f"deb-src [signed-by={_KEYRING}] {_mirror()} trixie main\n"
        (cache / "src.list").write_text(line)
        options = [
            f"Dir::Etc::SourceList={cache}/src.list", "Dir::Etc::SourceParts=/dev/null",
            f"Dir::State::Lists={cache}/lists", f"Dir::Cache={cache}/cache",
        ]  # fmt: skip
        apt = ["apt-get", *(word for option in options for word in ("-o", option))]
        _run([*apt, "update"], cache)
        wanted = ["source", "--download-only", "--tar-only", f"pytorch={VERSION}"]
        _run([*apt, *wanted], cache)
    if (digest := hashlib.sha256(archive.read_bytes()).hexdigest()) != _SHA256:
        raise NoSources(f"{_ARCHIVE} has SHA-256 {digest}")
    return archive


def _mirror() -> str:
    """Where packages of this machine come from."""
    places = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    words = [word for p in places if p.is_file() for word in p.read_text().split()]
    for word in words:
        if word.startswith("http") and word.rstrip("/").endswith("/debian"):
            return word
    raise NoSources("this machine has no mirror of Debian")


def _run(words: list[str | Path], where: Path) -> None:
    try:
        done = subprocess.run(words, cwd=where, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoSources(str(error)) from None
    if done.returncode:
        raise NoSources(f"{words[0]}: {done.stderr.strip()[-400:]}")
