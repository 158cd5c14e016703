"""Many clients at once for a while, some of which leave, ask too much or send what is no JSON."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx
import openai
import pytest

from tests.serve.served import MODEL, Server, completed

TOKENS = 12
LONGEST = 200
PROMPTS = ("x", "The card is", "y" * 40, "a longer prompt " * 7)


@dataclass(slots=True)
class Load:
    """What clients did.

    Attributes:
        done: how many requests of each kind ended as they should.
        wrong: what did not, with its kind.
    """

    server: Server
    seconds: float
    right: dict[str, str]
    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, streams: int) -> None:
        """So many clients, each one request after the other until the time is over."""
        end = time.monotonic() + self.seconds
        with ThreadPoolExecutor(streams) as pool:
            list(pool.map(lambda n: self._client(n, end), range(streams)))

    def _client(self, number: int, end: float) -> None:
        draw = random.Random(number)
        kinds: tuple[Callable[[openai.OpenAI, random.Random], None], ...] = (
            whole, streamed, streamed, left, left, too_long, malformed,
        )  # fmt: skip
        with self.server.client() as client:
            while time.monotonic() < end:
                kind = draw.choice(kinds)
                try:
                    kind(client, draw, self.right)
                except Exception as error:
                    self._note(f"{kind.__name__}: {error!r}", right=False)
                else:
                    self._note(kind.__name__, right=True)

    def _note(self, what: str, *, right: bool) -> None:
        with self.lock:
            if right:
                self.done[what] += 1
            else:
                self.wrong.append(what)


def alone(server: Server) -> dict[str, str]:
    """What each prompt gives when nobody else asks."""
    with server.client() as client:
        return {prompt: completed(client, prompt, TOKENS) for prompt in PROMPTS}


def whole(client: openai.OpenAI, draw: random.Random, right: dict[str, str]) -> None:
    prompt = draw.choice(PROMPTS)
    assert completed(client, prompt, TOKENS) == right[prompt]


def streamed(client: openai.OpenAI, draw: random.Random, right: dict[str, str]) -> None:
    prompt = draw.choice(PROMPTS)
    parts = client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=TOKENS, temperature=0, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert "".join(part.choices[0].text for part in parts) == right[prompt]


def left(client: openai.OpenAI, draw: random.Random, right: dict[str, str]) -> None:
    """A stream that its client leaves half-way."""
    prompt = draw.choice(PROMPTS)
    parts = client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=LONGEST - len(prompt) - 1, temperature=0.8,
        stream=True, extra_body={"ignore_eos": True},
    )  # fmt: skip
    for _ in range(draw.randrange(1, 6)):
        next(parts)
    parts.close()


def too_long(client: openai.OpenAI, draw: random.Random, right: dict[str, str]) -> None:
    with pytest.raises(openai.BadRequestError, match=str(LONGEST)):
        completed(client, "x" * (LONGEST + draw.randrange(1, 500)))


def malformed(client: openai.OpenAI, draw: random.Random, right: dict[str, str]) -> None:
    texts = (b"{", b"", b'{"model": "tiny", "prompt": 3.5}', b"[1, 2", b'{"prompt": "x", "n": "y"}')
    got = httpx.post(
        f"{client.base_url}completions", content=draw.choice(texts), timeout=300,
        headers={"Content-Type": "application/json"},
    )  # fmt: skip
    assert got.status_code in (400, 422), got.text
    assert got.json()["error"]["message"]
