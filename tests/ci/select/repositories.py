"""Git repositories made out of texts, the same to the last bit every time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

Files = Mapping[str, str | bytes]
_WHO = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "up"), ("EMAIL", "up@example.com"), ("DATE", "1700000000 +0000"))
}
_PLAIN = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def make_repository(folder: Path, tags: Mapping[str, Files]) -> Path:
    """A bare repository with a commit per tag, in order; each holds just the files named."""
    commands = bytearray()
    for tag, files in tags.items():
        commands += b"commit refs/heads/main\n"
        commands += b"committer up <up@example.com> 1700000000 +0000\ndata 0\n"
        commands += b"deleteall\n"
        for path, text in sorted(files.items()):
            data = text.encode() if isinstance(text, str) else text
            commands += f"M 100644 inline {path}\ndata {len(data)}\n".encode() + data + b"\n"
        commands += f"\nreset refs/tags/{tag}\nfrom refs/heads/main\n\n".encode()
    environment = {**os.environ, **_WHO, **_PLAIN}
    folder.mkdir(parents=True)
    for words, given in (
        (["init", "-q", "--bare", "-b", "main"], b""),
        (["fast-import", "--quiet"], bytes(commands)),
    ):  # fmt: skip
        command = ["git", "-C", str(folder), *words]
        subprocess.run(command, input=given, env=environment, check=True, capture_output=True)
    return folder
