"""Files of a ref, read out of a git repository without a checkout."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import SelectionError


@dataclass(frozen=True, slots=True)
class Changed:
    """A file that differs between two refs; no content on the side where there is none."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Repository:
    """A git repository on disk, bare or not."""

    folder: Path

    def commit(self, ref: str) -> str:
        """The full id of the commit that a ref names.

        Raises:
            SelectionError: there is no such ref, or no such repository.
        """
        if ref.startswith("-"):
            raise SelectionError(f"{ref!r} is no ref of {self.folder}", hint="name a tag or commit")
        return self._git("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}").decode().strip()

    def files(self, ref: str, folders: Iterable[str] = ()) -> dict[str, str]:
        """Path and blob of every file of a ref, links and submodules left out."""
        found = {}
        lines = self._git("ls-tree", "-r", "-z", self.commit(ref), "--", *folders).split(b"\0")
        for line in filter(None, lines):
            head, path = line.split(b"\t", 1)
            mode, kind, blob = head.split()
            if kind == b"blob" and mode != b"120000":
                found[path.decode(errors="surrogateescape")] = blob.decode()
        return found

    def contents(self, blobs: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Each blob with its bytes, in order, through one process."""
        wanted = list(dict.fromkeys(blobs))
        if not wanted:
            return
        with subprocess.Popen(
            ["git", "-C", str(self.folder), "cat-file", "--batch"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            for blob in wanted:
                process.stdin.write(blob.encode() + b"\n")
                process.stdin.flush()
                head = process.stdout.readline().split()
                if len(head) != 3:
                    raise SelectionError(
                        f"git has no object {blob}", hint="fetch the refs without a filter"
                    )
                data = process.stdout.read(int(head[2]))
                process.stdout.read(1)
                yield blob, data

    def mentioning(self, ref: str, text: str, folders: Iterable[str]) -> list[str]:
        """Files of a ref in which a text stands."""
        command = ["git", "-C", str(self.folder), "grep", "-lzF", "-e", text, self.commit(ref)]
        done = subprocess.run([*command, "--", *folders], capture_output=True, check=False)
        names = [name for name in done.stdout.split(b"\0") if name]
        return [name.split(b":", 1)[1].decode(errors="surrogateescape") for name in names]

    def hunk_lines(self, base: str, head: str, path: str) -> list[str]:
        """The changed lines of one file, and the functions that git names beside them."""
        diff = self._git(
            "diff", "--no-color", "--no-ext-diff", "-U0", "--no-renames",
            self.commit(base), self.commit(head), "--", f":(literal){path}",
        ).decode(errors="replace")  # fmt: skip
        body = diff.split("\n@@", 1)
        if len(body) == 1:
            return []
        lines = ("@@" + body[1]).split("\n")
        return [line[1:] if line[:1] in "+-" else line for line in lines if line]

    def _git(self, *words: str) -> bytes:
        try:
            done = subprocess.run(
                ["git", "-C", str(self.folder), *words], capture_output=True, check=False
            )
        except OSError as error:
            raise SelectionError("git does not run", why=str(error), hint="install git") from None
        if done.returncode:
            raise SelectionError(
                f"git {words[0]} failed for {' '.join(words[1:])} in {self.folder}",
                why=done.stderr.decode(errors="replace").strip() or "no such ref",
                hint="name a repository and refs that it has: git -C FOLDER tag",
            )
        return done.stdout
