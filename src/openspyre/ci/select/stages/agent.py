"""Stage 2, the unsure ones: an outside command may label them; what it cannot cite does not count.

The command gets one JSON object on stdin: `{"batch": [{"id", "source": {"12": "line", ...},
"hunk", "capability"}]}`, and answers with one on stdout: `{"answers": [{"id", "label",
"cited_lines": [12], "why"}]}`. Off unless a command is given.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .canonical import digest
from .relevance import Judged, Label

_MOST_LINES = 400
_VALID = {label.value: label for label in Label if label is not Label.UNSURE}
Ask = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Question:
    """What an agent is shown of one change.

    Attributes:
        source: lines of the test by their numbers.
        hunk: what differs, as text.
        capability: the digest of the table.
    """

    id: str
    source: Mapping[str, str]
    hunk: str
    capability: str

    @property
    def key(self) -> str:
        """Under which an answer is remembered: the same content, the same answer."""
        return digest([json.dumps(asdict(self), sort_keys=True)])


@dataclass(frozen=True, slots=True)
class Consulted:
    """What came of asking.

    Attributes:
        changed: how many labels are other than unsure by it.
        refused: answers that did not count, and why.
        problem: why it was not heard at all; empty if it was.
    """

    labels: tuple[Judged, ...]
    changed: int
    refused: tuple[str, ...] = ()
    problem: str = ""


class NoAnswer(Exception):
    """The agent gave no answer: it failed, was too slow, or may not be asked."""


def question(id: str, source: str, line: int, end: int, hunk: str, capability: str) -> Question:
    """A question about lines of a file."""
    lines = source.splitlines()[line - 1 : min(end, line - 1 + _MOST_LINES)]
    numbered = {str(line + number): text for number, text in enumerate(lines)}
    return Question(id, numbered, hunk, capability)


def command(words: Sequence[str], timeout: float) -> Ask:
    """Asks a program, with the batch on its stdin; it gets so many seconds."""

    def ask(text: str) -> str:
        try:
            done = subprocess.run(
                list(words), input=text.encode(), capture_output=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise NoAnswer(f"no answer within {timeout:g} s") from None
        except OSError as error:
            raise NoAnswer(f"it does not run: {error}") from None
        if done.returncode:
            raise NoAnswer(f"exit code {done.returncode}")
        return done.stdout.decode(errors="replace")

    return ask


def consult(
    labels: Iterable[Judged], questions: Mapping[str, Question], ask: Ask, *, name: str,
    cache: Path | None = None, most: int = 200,
) -> Consulted:  # fmt: skip
    """Asks about the unsure ones. Whatever goes wrong leaves them unsure; no other label changes.

    Args:
        questions: by id of a change; what has none is not asked.
        cache: a folder of earlier answers.
        most: how many are asked at most; beyond it is the cost cap.
    """
    judged = list(labels)
    unsure = {one.id for one in judged if one.label is Label.UNSURE}
    open_ones = [questions[id] for id in sorted(unsure & questions.keys())]
    answers: dict[str, Any] = {}
    asked = []
    for one in open_ones:
        if (known := _remembered(cache, one)) is not None:
            answers[one.id] = known
        else:
            asked.append(one)
    problem = ""
    if len(asked) > most:
        problem = f"{len(asked)} questions are more than the {most} that may be asked"
    elif asked:
        try:
            fresh = _answers(ask(json.dumps({"batch": [asdict(one) for one in asked]})))
            answers |= {id: answer for id, answer in fresh.items() if id not in answers}
        except NoAnswer as error:
            problem = str(error)
    refused: list[str] = []
    accepted: dict[str, Judged] = {}
    for id, answer in sorted(answers.items()):
        if why := _refusal(id, answer, unsure, questions):
            refused.append(f"{id}: {why}")
            continue
        accepted[id] = _labelled(answer, questions[id], name)
        _remember(cache, questions[id], answer)
    result = tuple(
        replace(accepted[one.id], ops=one.ops) if one.id in accepted and one.id in unsure else one
        for one in judged
    )
    return Consulted(result, len(accepted), tuple(refused), problem)


def _answers(text: str) -> dict[str, Any]:
    """By id; an id that is answered twice is not answered.

    Raises:
        NoAnswer: it is not what an answer looks like.
    """
    try:
        listed = json.loads(text)["answers"]
        ids = [answer["id"] for answer in listed]
        return {a["id"]: a for a in listed if isinstance(a["id"], str) and ids.count(a["id"]) == 1}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NoAnswer(f"bad JSON: {error!r}") from None


def _refusal(id: str, answer: Any, unsure: set[str], questions: Mapping[str, Question]) -> str:
    """Why an answer does not count; empty if it does."""
    if id not in unsure or id not in questions:
        return "it was not asked"
    if not isinstance(answer.get("label"), str) or answer["label"] not in _VALID:
        return f"label {answer.get('label')!r} is none"
    cited = answer.get("cited_lines")
    if not isinstance(cited, list) or not cited:
        return "it cites no lines"
    if any(type(n) is not int or str(n) not in questions[id].source for n in cited):
        return f"it cites lines that it was not shown: {cited}"
    return "" if isinstance(answer.get("why"), str) else "it says no reason"


def _labelled(answer: Any, asked: Question, name: str) -> Judged:
    lines = tuple(f"{n}: {asked.source[str(n)]}" for n in answer["cited_lines"])
    return Judged(
        asked.id, _VALID[answer["label"]], "agent", (answer["why"], *lines), decided_by=name
    )


def _remembered(cache: Path | None, asked: Question) -> Any:
    if cache is None or not (path := cache / f"{asked.key}.json").is_file():
        return None
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None  # asked again
    return found if isinstance(found, dict) and found.get("id") == asked.id else None


def _remember(cache: Path | None, asked: Question, answer: Any) -> None:
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        (cache / f"{asked.key}.json").write_text(json.dumps(answer, sort_keys=True))
