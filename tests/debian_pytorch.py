"""PyTorch's sources as Debian ships them: fetched once, kept outside the repository."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openspyre.settings import settings

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class NoSources(Exception):
    """They cannot be had here."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source package of Debian: its archive, and the folder in that."""

    tag: str
    version: str
    suite: str
    archive: str
    folder: str
    sha256: str


V1_13 = Source(
    "v1.13.1", "1.13.1+dfsg-4", "bookworm", "pytorch_1.13.1+dfsg.orig.tar.xz", "pytorch-1.13.1",
    "d0355588b8528566d477e6ebf1b4d9d036a6fd75711339f66b27472ce5879dc7",
)  # fmt: skip
V2_6 = Source(
    "v2.6.0", "2.6.0+dfsg-7", "trixie", "pytorch_2.6.0+dfsg.orig.tar.xz", "pytorch-v2.6.0",
    "099a9601bc40d67656e75735c44abedb0fbe92d08817852ab7472eebb7e6ddff",
)  # fmt: skip


def cache_folder() -> Path:
    """OPENSPYRE_UPSTREAM_CACHE, or a folder in openspyre's own cache."""
    chosen = os.environ.get("OPENSPYRE_UPSTREAM_CACHE", "")
    return Path(chosen) if chosen else settings().cache / "upstream"


def archive_of(source: Source, cache: Path) -> Path:
    """The archive of a source package in a cache; fetched where it is not there.

    Raises:
        NoSources: it is not there and cannot be fetched, or is not what it was.
    """
    archive = cache / source.archive
    if not archive.exists():
        for name in ("lists/partial", "cache/archives/partial"):
            (cache / name).mkdir(parents=True, exist_ok=True)
        line = f"deb-src [signed-by={_KEYRING}] {_mirror()} {source.suite} main\n"
        (cache / "src.list").write_text(line)
        options = [
            f"Dir::Etc::SourceList={cache}/src.list", "Dir::Etc::SourceParts=/dev/null",
            f"Dir::State::Lists={cache}/lists", f"Dir::Cache={cache}/cache",
        ]  # fmt: skip
        apt = ["apt-get", *(word for option in options for word in ("-o", option))]
        run([*apt, "update"], cache)
        wanted = ["source", "--download-only", "--tar-only", f"pytorch={source.version}"]
        run([*apt, *wanted], cache)
    if (digest := hashlib.sha256(archive.read_bytes()).hexdigest()) != source.sha256:
        raise NoSources(f"{source.archive} has SHA-256 {digest}")
    return archive


def _mirror() -> str:
    """Where packages of this machine come from."""
    places = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    words = [word for p in places if p.is_file() for word in p.read_text().split()]
    for word in words:
        if word.startswith("http") and word.rstrip("/").endswith("/debian"):
            return word.rstrip("/")
    raise NoSources("this machine has no mirror of Debian")


def unpack(source: Source, cache: Path, parts: Sequence[str], into: Path) -> None:
    """Folders of a source package, laid into a folder without the package's own."""
    words = ["tar", "-xJf", str(archive_of(source, cache)), "--strip-components=1"]
    run([*words, *(f"{source.folder}/{part}" for part in parts)], into)


def run(words: Sequence[str], where: Path) -> None:
    """Runs a command that fetches or unpacks.

    Raises:
        NoSources: it failed, or is not to be had here.
    """
    print("sources:", " ".join(words[:2]), words[-1], flush=True)
    try:
        done = subprocess.run(words, cwd=where, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoSources(str(error)) from None
    if done.returncode:
        raise NoSources(f"{words[0]}: {done.stderr.strip()[-400:]}")
