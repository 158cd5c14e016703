"""Changes outside the tests: which ops the changed lines of product source name."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .diff import Diff
from .git import Repository
from .knowledge import Capability
from .relevance import is_source

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENDINGS = (
    "_kernel", "_stub", "_out", "_backward", "_backward_out", "_cpu", "_cuda", "_impl", "_meta",
    "_structured", "_symint", "_forward", "_ref", "_", "",
)  # fmt: skip
_STARTS = ("structured_", "at_", "_", "")


def ops_named(lines: Iterable[str], ops: Iterable[str]) -> frozenset[str]:
    """The ops, by full name, whose names stand in lines: `add` in `add_kernel` or `at::add`."""
    by_word: dict[str, set[str]] = {}
    for op in ops:
        base = op.split(".")
        by_word.setdefault(base[0], set()).add(op)
        if base[0] in ("nn", "linalg", "fft", "special", "sparse"):
            by_word.pop(base[0])
            by_word.setdefault("_".join([base[0], *base[1:2]]), set()).add(op)
            by_word.setdefault(base[2] if base[:2] == ["nn", "functional"] and len(base) > 2
                               else base[1] if len(base) > 1 else op, set()).add(op)  # fmt: skip
    found: set[str] = set()
    for word in {word for line in lines for word in _WORD.findall(line)}:
        for stem in _stems(word):
            found |= by_word.get(stem, set())
    return frozenset(found)


def _stems(word: str) -> set[str]:
    """`structured_add_out` may be about `add`, and so may `AddKernel`: all that it may be about."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).lower()
    found = set()
    for text in (word, snake):
        for start in _STARTS:
            if text.startswith(start):
                rest = text[len(start) :]
                found |= {rest.removesuffix(end) for end in _ENDINGS}
    return found - {""}


def product_ops(
    repository: Repository,
    base: str,
    head: str,
    diff: Diff,
    capability: Capability,
    most: int = 200,
) -> dict[str, tuple[str, ...]]:  # fmt: skip
    """For each change of product source, the ops that its hunks name; none is "any".

    Args:
        most: files that are looked into; where more changed, all of them may concern any op.
    """
    changes = [c.id for c in diff.changes if c.kind == "product" and is_source(c.id)]
    if len(changes) > most:
        return dict.fromkeys(changes, ())
    found = {}
    for id in changes:
        lines = repository.hunk_lines(base, head, id.partition("::")[2])
        found[id] = tuple(sorted(ops_named(lines, capability.ops)))
    return found
