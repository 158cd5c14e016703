"""PyTorch 1.13.1 and 2.6.0 as Debian ships their sources, as two tags of one git repository."""

from __future__ import annotations

from pathlib import Path

from openspyre.ci.select.stages.git import Repository
from tests.debian_pytorch import V1_13, V2_6, run, unpack

BASE, HEAD = V1_13.tag, V2_6.tag


def sources_in(cache: Path) -> Repository:
    """The repository of both refs; fetched and made where it is not there.

    Raises:
        NoSources: they are not there, and cannot be fetched.
    """
    folder = cache / "pytorch.git"
    if not (folder / "complete").exists():
        cache.mkdir(parents=True, exist_ok=True)
        _commit(cache, folder)
        (folder / "complete").touch()
    return Repository(folder)


def _commit(cache: Path, folder: Path) -> None:
    tree = cache / "tree"
    run(["git", "init", "-q", "-b", "main", str(tree)], cache)
    who = ["-c", "user.name=debian", "-c", "user.email=debian@example.com"]
    for source in (V1_13, V2_6):
        run(["git", "rm", "-rq", "--ignore-unmatch", "."], tree)
        unpack(source, cache, ("test", "torch/testing"), tree)
        run(["git", "add", "-A", "-f"], tree)
        run(["git", *who, "commit", "-q", "-m", source.tag], tree)
        run(["git", "tag", source.tag], tree)
    run(["git", "clone", "-q", "--bare", str(tree), str(folder)], cache)
