"""What became of eager ops, on disk: a process that finds its pattern here loads no Inductor.

An entry belongs to an op and to words of csrc/device/eager_call.h. With those of a pattern of
arguments it is a JSON list of answers, several where sizes had to be as they were; with those of a
structure it is what csrc/device/eager_recall.cpp has recorded. Two processes that add to an entry
at once may lose what one adds, which is then found again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch

from openspyre.frontend import kept_graphs
from openspyre.frontend.eager_call import Form, Inputs, SizeSource, Source
from openspyre.runtime.cache import Kind, program_cache
from openspyre.runtime.programs import COMPILER, sources_digest

_MOST = 32  # answers of an entry: an op may want each of its sizes for itself
_PACKAGE = Path(__file__).parents[1]
# Now, not at first use: the files may change while this process runs what it has loaded.
_FRONTEND = sources_digest(_PACKAGE, "frontend", "_C.so")


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of an op.

    Attributes:
        text: of its kernel; empty where there is none.
        why: why there is none.
        arguments: what the kernel's arguments are.
        symbols: what the kernel's symbols are.
        exact: sizes without which the answer means nothing, each with its value.
    """

    text: str
    why: str
    arguments: tuple[Source, ...] = ()
    symbols: tuple[SizeSource, ...] = ()
    exact: tuple[tuple[SizeSource, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """One call: its tensors on the card, outputs last, and how many launch scalars it has."""

    forms: tuple[Form, ...]
    scalars: int

    @staticmethod
    def of(inputs: Inputs, outputs: Sequence[Form]) -> Asked:
        given = tuple(f for f in inputs.leaves if isinstance(f, Form) and f.on_card)
        return Asked((*given, *outputs), len(inputs.leaves) - len(given))

    def size(self, source: SizeSource) -> int:
        """A size or stride of the call."""
        kind, number, dim = source
        form = self.forms[number]
        return (form.strides if kind else form.sizes)[dim]

    def served_by(self, answer: Answer) -> bool:
        return all(self.size(source) == value for source, value in answer.exact)


def pattern_key(name: str, overload: str, pattern: bytes) -> str:
    """64 hex digits that stand for everything an answer depends on."""
    return _key("answer", name, overload, pattern)


def _key(what: str, name: str, overload: str, words: bytes) -> str:
    torch_build = (torch.__version__, torch.version.git_version)
    facts = (COMPILER, _FRONTEND, torch_build, what, name, overload, words.hex())
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def recalled(name: str, overload: str, structure: bytes) -> bytes:
    """What processes have recorded of calls of an op with one structure; perhaps nothing."""
    kept = program_cache()
    data = kept.find(_key("recall", name, overload, structure), Kind.PATTERN) if kept else None
    return data or b""


def record(name: str, overload: str, structure: bytes, added: bytes) -> None:
    """Adds to that."""
    kept = program_cache()
    if kept is not None:
        data = recalled(name, overload, structure) + added
        kept.keep(_key("recall", name, overload, structure), data, Kind.PATTERN)


def found(key: str, asked: Asked) -> Answer | None:
    """The answer kept for a call, if there is one that serves it."""
    return next((a for a in _answers(key, asked) if asked.served_by(a)), None)


def keep(key: str, asked: Asked, answer: Answer) -> None:
    """Adds an answer; the oldest of too many goes."""
    kept = program_cache()
    if kept is not None:
        answers = [answer, *_answers(key, asked)][:_MOST]
        data = json.dumps([astuple(a) for a in answers]).encode()
        kept.keep(key, data, Kind.PATTERN)


def discard(key: str) -> None:
    """Removes an entry that turned out not to be right."""
    kept = program_cache()
    if kept is not None:
        kept.discard(key, Kind.PATTERN)


def _answers(key: str, asked: Asked) -> list[Answer]:
    kept = None if kept_graphs.wanted() else program_cache()
    data = kept.find(key, Kind.PATTERN) if kept else None
    if data is None:
        return []
    try:
        return [_read(item, asked) for item in json.loads(data)]
    except (ValueError, TypeError, IndexError):
        discard(key)
        return []


def _read(item: Any, asked: Asked) -> Answer:
    """An answer from JSON.

    Raises:
        ValueError, TypeError, IndexError: it is none, or none for such a call.
    """
    text, why, arguments, symbols, exact = item
    answer = Answer(
        str(text),
        str(why),
        tuple((int(kind), int(number)) for kind, number in arguments),
        tuple(_size_source(s) for s in symbols),
        tuple((_size_source(s), int(value)) for s, value in exact),
    )
    for source in (*answer.symbols, *(s for s, _ in answer.exact)):
        asked.size(source)
    for kind, number in answer.arguments:
        if not 0 <= number < (asked.scalars if kind else len(asked.forms)):
            raise IndexError(number)
    return answer


def _size_source(item: Any) -> SizeSource:
    kind, number, dim = map(int, item)
    if min(kind, number, dim) < 0 or kind > 1:
        raise ValueError(item)
    return kind, number, dim
