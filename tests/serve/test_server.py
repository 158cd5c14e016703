"""vLLM's server on the card, asked by the client of OpenAI as its users do."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from openspyre.spec import SPYRE_CARD_V1
from openspyre.tools.serve import server_command
from tests.serve.running import ROOT, environment, with_entry_points
from tests.serve.tiny import write_model, write_tokenizer

pytestmark = pytest.mark.timeout(1200)  # the server starts in the first test
START_SECONDS = 1000
MODEL = "tiny"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the server is; it must end within seconds of SIGTERM."""
    folder = tmp_path_factory.mktemp("served")
    write_model("llama", torch.float32, folder)
    write_tokenizer(folder)
    port = free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", MODEL]
    options += ["--dtype", "float32"]
    options += [
        "--max-model-len",
        "200",
        "--max-num-seqs",
        "8",
        "--kv-cache-memory-bytes",
        str(8 << 20),
    ]
    log = folder / "log"
    with open(log, "w") as out:
        server = subprocess.Popen(
            server_command([str(folder), *options]), cwd=ROOT, stdout=out, stderr=out,
            env=environment(HF_HUB_OFFLINE="1", PYTHONPATH=with_entry_points(folder)),
        )  # fmt: skip
    at = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(at, server, log)
        yield at
        server.send_signal(signal.SIGTERM)
        assert server.wait(120) == 0, log.read_text()[-3000:]
    finally:
        server.kill()
        server.wait()


def wait_until_ready(at: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.get(f"{at}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise AssertionError(log.read_text()[-3000:])


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", timeout=300) as made:
        yield made


def completed(client: openai.OpenAI, prompt: str, tokens: int = 8) -> str:
    options = {"ignore_eos": True}
    made = client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=tokens, temperature=0, extra_body=options
    )
    assert made.usage is not None
    assert made.usage.completion_tokens == tokens
    return made.choices[0].text


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


def test_many_at_once_and_some_that_leave(client: openai.OpenAI, address: str) -> None:
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
    end = time.monotonic() + 60
    while metric(address, "vllm:num_requests_running") and time.monotonic() < end:
        time.sleep(0.1)
    assert metric(address, "vllm:num_requests_running") == 0
    assert metric(address, "vllm:num_requests_waiting") == 0
    assert metric(address, "vllm:kv_cache_usage_perc") == 0


def metric(address: str, name: str) -> float:
    text = httpx.get(f"{address}/metrics", timeout=60).text
    return float(next(x for x in text.splitlines() if x.startswith(f"{name}{{")).split()[-1])


def test_the_card_has_metrics(client: openai.OpenAI, address: str) -> None:
    before = settled(address)
    completed(client, "The card is", 5)
    after = settled(address)
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
    assert after["openspyre:compiles_after_warmup_total"] >= 0
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


def test_errors_say_what_is_wrong(client: openai.OpenAI, address: str) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="other", prompt="ab")
    with pytest.raises(openai.BadRequestError, match="200"):
        completed(client, "x" * 300)
    malformed = httpx.post(f"{address}/v1/completions", content=b"{", timeout=60)
    assert malformed.status_code == 400
    assert completed(client, "still here")
