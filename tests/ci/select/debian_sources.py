"""PyTorch 1.13.1 and 2.6.0 as Debian ships their sources, as two tags of one git repository."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

from openspyre.ci.select.stages.git import Repository

BASE, HEAD = "v1.13.1", "v2.6.0"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


@dataclass(frozen=True)
class Source:
    """A source package of Debian and the folder in it."""

    tag: str
    version: str
    suite: str
    archive: str
    folder: str
    sha256: str


SOURCES = (
    Source(
        BASE, "1.13.1+dfsg-4", "bookworm", "pytorch_1.13.1+dfsg.orig.tar.xz", "pytorch-1.13.1",
        "d0355588b8528566d477e6ebf1b4d9d036a6fd75711339f66b27472ce5879dc7",
    ),
    Source(
        HEAD, "2.6.0+dfsg-7", "trixie", "pytorch_2.6.0+dfsg.orig.tar.xz", "pytorch-v2.6.0",
        "099a9601bc40d67656e75735c44abedb0fbe92d08817852ab7472eebb7e6ddff",
    ),
)  # fmt: skip


class NoSources(Exception):
    """The sources cannot be had here."""


def sources_in(cache: Path) -> Repository:
    """The repository of both refs; fetched and made where it is not there."""
    folder = cache / "pytorch.git"
    if not (folder / "complete").exists():
        cache.mkdir(parents=True, exist_ok=True)
        for source in SOURCES:
            _fetch(cache, source)
        _commit(cache, folder)
        (folder / "complete").touch()
    return Repository(folder)


def _mirror() -> str:
    """Where packages of this machine come from."""
    places = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    words = [word for p in places if p.is_file() for word in p.read_text().split()]
    addresses = [word.rstrip("/") for word in words if word.startswith("http")]
    found = [address for address in addresses if address.endswith("/debian")]
    if not found:
        raise NoSources("this machine has no mirror of Debian")
    return found[0]


def _fetch(cache: Path, source: Source) -> None:
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
        name = f"pytorch={source.version}"
        _run([*apt, "update"], cache)
        _run([*apt, "source", "--download-only", "--tar-only", name], cache)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != source.sha256:
        raise NoSources(f"{source.archive} has SHA-256 {digest}")


def _commit(cache: Path, folder: Path) -> None:
    tree = cache / "tree"
    _run(["git", "init", "-q", "-b", "main", str(tree)], cache)
    who = ["-c", "user.name=debian", "-c", "user.email=debian@example.com"]
    for source in SOURCES:
        _run(["git", "rm", "-rq", "--ignore-unmatch", "."], tree)
        parts = [f"{source.folder}/test", f"{source.folder}/torch/testing"]
        _run(["tar", "-xJf", str(cache / source.archive), "--strip-components=1", *parts], tree)
        _run(["git", "add", "-A", "-f"], tree)
        _run(["git", *who, "commit", "-q", "-m", source.tag], tree)
        _run(["git", "tag", source.tag], tree)
    _run(["git", "clone", "-q", "--bare", str(tree), str(folder)], cache)


def _run(words: list[str], where: Path) -> None:
    print("lane selection:", " ".join(words[:2]), words[-1], flush=True)
    try:
        done = subprocess.run(words, cwd=where, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoSources(str(error)) from None
    if done.returncode:
        raise NoSources(f"{words[0]}: {done.stderr.strip()[-400:]}")
