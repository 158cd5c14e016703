"""vLLM's server on the card, asked by the client of OpenAI as its users do."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
import torch
from openai.types.chat import ChatCompletionMessageFunctionToolCall
from prometheus_client.parser import text_string_to_metric_families

from openspyre.spec import SPYRE_CARD_V1
from tests.serve.served import MODEL, Server, completed, started
from tests.serve.tiny import write_model, write_tokenizer

pytestmark = pytest.mark.timeout(1200)  # the server starts in the first test


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It must end within seconds of SIGTERM."""
    folder = tmp_path_factory.mktemp("served")
    write_model("llama", torch.float32, folder)
    write_tokenizer(folder)
    options = ["--dtype", "float32", "--max-model-len", "200", "--max-num-seqs", "8"]
    options += ["--kv-cache-memory-bytes", str(8 << 20)]
    options += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    compact = {"backend": "xgrammar", "disable_any_whitespace": True}
    options += ["--structured-outputs-config", json.dumps(compact)]
    with started(folder, *options) as ready:
        yield ready
        assert ready.end() == ""


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client() as made:
        yield made


def test_the_model_has_its_name(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_a_stream_gives_what_a_completion_gives(client: openai.OpenAI) -> None:
    whole = completed(client, "The card is")
    parts = client.completions.create(
        model=MODEL, prompt="The card is", max_tokens=8, temperature=0, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert "".join(part.choices[0].text for part in parts) == whole


def test_a_chat_streams(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    whole = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=6, temperature=0
    )
    parts = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=6, temperature=0, stream=True
    )
    said = "".join(part.choices[0].delta.content or "" for part in parts)
    assert said == (whole.choices[0].message.content or "")


def test_a_seed_repeats_its_samples(client: openai.OpenAI) -> None:
    def drawn(seed: int) -> list[str]:
        made = client.completions.create(
            model=MODEL, prompt="ab", max_tokens=6, temperature=0.9, top_p=0.9, seed=seed, n=2,
            extra_body={"ignore_eos": True, "top_k": 50},
        )  # fmt: skip
        return [choice.text for choice in made.choices]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_probabilities_come_with_tokens(client: openai.OpenAI) -> None:
    made = client.completions.create(
        model=MODEL, prompt="ab", max_tokens=3, temperature=0, logprobs=2,
        # by number: bytes that are no text all read the same
        extra_body={"ignore_eos": True, "return_tokens_as_token_ids": True},
    )  # fmt: skip
    found = made.choices[0].logprobs
    assert found is not None
    assert found.token_logprobs is not None
    assert found.top_logprobs is not None
    for own, best in zip(found.token_logprobs, found.top_logprobs, strict=True):
        assert own == pytest.approx(max(best.values()))
        assert own <= 0


def test_a_grammar_decides(client: openai.OpenAI) -> None:
    made = client.completions.create(
        model=MODEL, prompt="ab", max_tokens=9, temperature=0,
        extra_body={"structured_outputs": {"choice": ["yes", "maybe"]}},
    )  # fmt: skip
    assert made.choices[0].text in ("yes", "maybe")


TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
            "required": ["city"],
        },
    },
}
ASKED: Any = {
    "model": MODEL, "messages": [{"role": "user", "content": "How is the weather?"}],
    "temperature": 0, "max_tokens": 90, "parallel_tool_calls": False,
}  # fmt: skip


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}, "auto"]
)
def test_tools_are_called(client: openai.OpenAI, server: Server, choice: Any) -> None:
    """Whole and as a stream. A model that knows no tools is made to call one by a grammar."""
    words = (
        r'<tool_call>\n\{"name": "weather", "arguments": \{"city": "(Rome|Oslo)"\}\}\n</tool_call>'
    )
    more: Any = {"extra_body": {"structured_outputs": {"regex": words}}} if choice == "auto" else {}
    # Without "strict" a call's arguments may be any JSON.
    tool = {**TOOL, "function": {**TOOL["function"], "strict": choice != "auto"}}
    # Between the parts of a call there may be space without end, which this model would write.
    space = {"model": MODEL, "prompt": " \n\t\r", "add_special_tokens": False}
    numbers = httpx.post(f"{server.address}/tokenize", json=space, timeout=60).json()["tokens"]
    no_space = {str(number): -100 for number in numbers}
    asked = {**ASKED, "tools": [tool], "tool_choice": choice, "logit_bias": no_space, **more}
    whole = client.chat.completions.create(**asked)
    (call,) = whole.choices[0].message.tool_calls or []
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    parts = client.chat.completions.create(**asked, stream=True)
    deltas = [one.function for part in parts for one in part.choices[0].delta.tool_calls or []]
    assert "".join(delta.name or "" for delta in deltas if delta) == "weather"
    said = "".join(delta.arguments or "" for delta in deltas if delta)
    assert json.loads(said) == json.loads(call.function.arguments)


def test_many_at_once_and_some_that_leave(client: openai.OpenAI, server: Server) -> None:
    alone = [completed(client, "x" * n, 12) for n in (1, 30, 90)]

    def leaves(_: int) -> None:
        parts = client.completions.create(
            model=MODEL, prompt="a long answer", max_tokens=150, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        next(iter(parts))
        parts.close()

    with ThreadPoolExecutor(12) as pool:
        left = pool.map(leaves, range(4))
        together = pool.map(lambda n: completed(client, "x" * n, 12), (1, 30, 90) * 3)
        assert list(together) == alone * 3
        list(left)
    assert not any(server.settled().values())


def test_the_card_has_metrics(client: openai.OpenAI, server: Server) -> None:
    before = settled(server.address)
    completed(client, "The card is", 5)
    after = settled(server.address)
    more = {name: value - before.get(name, 0) for name, value in after.items()}
    steps = more["openspyre:step_card_seconds_count"]
    assert steps == 5
    assert more['openspyre:step_card_seconds_bucket{le="+Inf"}'] == steps
    seconds = more["openspyre:step_card_seconds_sum"]
    assert more["openspyre:card_cycles_total"] == pytest.approx(
        seconds * SPYRE_CARD_V1.clock_ghz * 1e9, rel=1e-3
    )
    assert 1e-6 < seconds / steps < 1e-2
    assert more["openspyre:card_launches_total"] >= steps
    assert more["openspyre:card_busy_seconds_total"] > 0
    used, reserved, total = (
        after[f"openspyre:card_memory{kind}_bytes"] for kind in ("_used", "_reserved", "")
    )
    assert 8 << 20 < used <= reserved <= total
    assert more["openspyre:compiles_after_warmup_total"] == 0
    assert not any("fallbacks_total" in name for name in more if more[name])


def settled(address: str) -> dict[str, float]:
    """Those of the card once they have not changed for a while: they come a moment later."""
    found: dict[str, float] = {}
    end = time.monotonic() + 60
    while (now := metrics(address)) != found and time.monotonic() < end:
        found = now
        time.sleep(0.5)
    return now


def metrics(address: str) -> dict[str, float]:
    """Those of the card, by name and by the labels that tell values of one card apart."""
    text = httpx.get(f"{address}/metrics", timeout=60).text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("openspyre:"):
                labels = {k: v for k, v in sample.labels.items() if k not in ("engine", "card")}
                shown = ",".join(f'{k}="{v}"' for k, v in sorted(labels.items()))
                found[sample.name + (f"{{{shown}}}" if shown else "")] = sample.value
    return found


def test_errors_say_what_is_wrong(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="other", prompt="ab")
    with pytest.raises(openai.BadRequestError, match="200"):
        completed(client, "x" * 300)
    malformed = httpx.post(f"{server.address}/v1/completions", content=b"{", timeout=60)
    assert malformed.status_code == 400
    assert completed(client, "still here")
