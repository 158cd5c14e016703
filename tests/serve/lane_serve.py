"""The long lane `serve`: SmolLM2 under vLLM, a server under load, workers that die, small caches.

`./dev test --long serve`, for a shorter or longer load with `--load-seconds 30`. Leaves
`results/serve.json`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from openspyre.hf.weights import SMOLLM2, fetch
from openspyre.settings import settings
from tests.lanes import BEGUN
from tests.models.greedy import Reference
from tests.results import ROOT, write_result
from tests.serve.followed import follow, reference
from tests.serve.load import LONGEST, Load, alone
from tests.serve.mixed_prompts import TEXTS
from tests.serve.served import MODEL, Server, started
from tests.serve.tiny import prompts, write_model, write_tokenizer

pytestmark = pytest.mark.timeout(4 * 3600)
WEIGHTS = settings().cache  # the user's own: that of programs goes elsewhere before a test begins
TOKENS = 12
STREAMS = 64
# Each pair of block size, prefix caching and chunked prefill at least once.
ENGINES = [
    {"block_size": block, "enable_prefix_caching": cached, "enable_chunked_prefill": chunked}
    for block, cached, chunked in (
        (16, True, True), (64, True, False), (128, False, True),
        (16, False, False), (64, False, True), (128, True, False),
    )
]  # fmt: skip
_found: dict[str, Any] = {}


@pytest.fixture(scope="module", autouse=True)
def results() -> Iterator[None]:
    """Leaves what was found; parts that did not run stay as an earlier run left them."""
    yield
    path = ROOT / "results" / "serve.json"
    before = json.loads(path.read_text())["parts"] if path.exists() else {}
    now = {name: {"commit": BEGUN, "found": found} for name, found in _found.items()}
    write_result("serve", {"parts": before | now}, begun=BEGUN)


def test_smollm2_says_what_the_cpu_says() -> None:
    folder = fetch("smollm2")
    assert folder.is_relative_to(WEIGHTS)
    expected = references(folder)
    most = max(one.ids.shape[1] for one in expected)
    engines = [
        {
            "dtype": "float16", "max_model_len": 512, "max_num_seqs": 20,
            "kv_cache_memory_bytes": 1 << 28,
            "max_num_batched_tokens": 192 if one["enable_chunked_prefill"] else 512, **one,
        }
        for one in ENGINES
    ]  # fmt: skip
    assert most <= 512
    done = follow(folder, expected, engines)
    rows = [row(run, expected) for run in done]
    _found["smollm2"] = {
        "weights": SMOLLM2.form, "prompts": [one.prompt for one in expected], "tokens": TOKENS,
        "smallest_gap": min(float(one.gaps.min()) for one in expected),
        "largest_error": max(float(one.errors.max()) for one in expected), "engines": rows,
    }  # fmt: skip
    assert len(rows) == len(ENGINES)
    assert all(flip["excused"] for one in rows for flip in one["flips"])
    assert not any(one["fallbacks"] for one in rows)
    assert all((one["cached"] > 0) == one["enable_prefix_caching"] for one in rows)


def references(folder: Path) -> list[Reference]:
    """What the CPU generates for prompts of mixed length, in float32."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    exact = AutoModelForCausalLM.from_pretrained(folder).eval()
    half = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16).eval()
    torch.set_num_threads(1)  # steps so small are slower with more where others work too
    made = []
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        made.append(reference(exact, half, ids, TOKENS))
        print(f"serve: the CPU goes on behind {ids.shape[1]} tokens", flush=True)
    return made


def row(run: dict[str, Any], expected: list[Reference]) -> dict[str, Any]:
    """What an engine did, for the report."""
    flips = []
    for n, at in run.pop("differs"):
        gap, error = float(expected[n].gaps[at]), float(expected[n].errors[at])
        flips.append(
            {"prompt": n, "position": at, "gap": gap, "error": error, "excused": gap <= error}
        )
    return {**run.pop("options"), **run, "flips": flips}


def tiny(folder: Path) -> list[str]:
    """A tiny model in float32, in whose tokens nothing is excused; options to serve it."""
    write_model("llama", torch.float32, folder)
    write_tokenizer(folder)
    return ["--dtype", "float32", "--max-model-len", str(LONGEST)]


def followed_exactly(folder: Path, *engines: dict[str, Any], **variables: str) -> list[Any]:
    """What engines of a tiny model do, all of whose tokens must be those of transformers."""
    tiny(folder)
    exact = AutoModelForCausalLM.from_pretrained(folder).eval()
    expected = [reference(exact, exact, torch.tensor([ids]), 4 * TOKENS) for ids in prompts()]
    options = {
        "max_model_len": LONGEST, "dtype": "float32", "block_size": 16, "max_num_seqs": 8,
        "kv_cache_memory_bytes": 1 << 22,
    }  # fmt: skip
    done = follow(folder, expected, [{**options, **one} for one in engines], **variables)
    rows = [row(run, expected) for run in done]
    assert [one["flips"] for one in rows] == [[]] * len(engines)
    return rows


def test_a_cache_too_small_for_all(tmp_path: Path) -> None:
    """Requests that are preempted, and begin again, give what they give with room for all."""
    few = {"num_gpu_blocks_override": 18}
    engines = (
        {},
        few,
        {**few, "enable_prefix_caching": False},
        {**few, "max_num_batched_tokens": 24},
    )
    _found["preemption"] = rows = followed_exactly(tmp_path, *engines)
    assert [one["preemptions"] > 0 for one in rows] == [False, True, True, True]


def test_several_cards_give_the_same(tmp_path: Path) -> None:
    """Two and four of them; there are two heads of keys, which two cards each share then."""
    engines = [{"tensor_parallel_size": cards} for cards in (2, 4)]
    _found["cards"] = followed_exactly(tmp_path, *engines, OPENSPYRE_DEVICES="4")


def test_many_clients_for_a_while(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    options = [*tiny(tmp_path), "--max-num-seqs", "24", "--kv-cache-memory-bytes", str(4 << 20)]
    seconds = float(pytestconfig.getoption("--load-seconds"))
    with started(tmp_path, *options) as server:
        load = Load(server, seconds, alone(server))
        load.run(STREAMS)
        held = server.settled()
        again = alone(server)
        _found["load"] = {
            "streams": STREAMS, "seconds": seconds, "done": dict(load.done), "wrong": load.wrong,
            "held_after": held, "preemptions": server.metric("vllm:num_preemptions_total"),
            "ended": server.end() == "",
        }  # fmt: skip
    assert not load.wrong
    assert set(load.done) == {"whole", "streamed", "left", "too_long", "malformed"}
    assert not any(held.values())
    assert again == load.right
    assert _found["load"]["ended"]


@pytest.mark.parametrize("cards", [1, 2, 4])
def test_a_worker_killed(tmp_path: Path, cards: int) -> None:
    """vLLM's server ends when its engine is dead; no client waits for good."""
    options = [*tiny(tmp_path), "--tensor-parallel-size", str(cards)]
    options += ["--kv-cache-memory-bytes", str(4 << 20)]
    with started(tmp_path, *options, OPENSPYRE_DEVICES=str(cards)) as server:
        said = alone(server)
        with ThreadPoolExecutor(8) as pool:
            streams = [pool.submit(endless, server) for _ in range(8)]
            while server.metric("vllm:num_requests_running") < 8:
                time.sleep(0.1)
            os.kill(worker(server), signal.SIGKILL)
            ends = [stream.result(timeout=600) for stream in streams]
        status = server.process.wait(600)
        left = [one.pid for one in psutil.process_iter() if of(server, one)]
    _found.setdefault("worker killed", {})[f"{cards} cards"] = {
        "clients": sorted(set(ends)), "status": status, "processes_left": len(left), "said": said,
    }  # fmt: skip
    assert all(ends)
    assert left == []
    assert said == next(iter(_found["worker killed"].values()))["said"]


def endless(server: Server) -> str:
    """Asks for streams until one fails; what the client is told then."""
    with server.client() as client:
        try:
            while True:
                parts = client.completions.create(
                    model=MODEL, prompt="x", max_tokens=190, stream=True,
                    extra_body={"ignore_eos": True},
                )  # fmt: skip
                for _ in parts:
                    pass
        except (openai.APIError, httpx.TransportError) as error:
            return type(error).__name__


def worker(server: Server) -> int:
    """The process that has a card: of vLLM's, one that started no other of vLLM's."""
    found = psutil.Process(server.process.pid).children(recursive=True)
    ours = [one for one in found if re.search("VLLM::|spawn_main", " ".join(one.cmdline()))]
    parents = {one.ppid() for one in ours}
    return [one.pid for one in ours if one.pid not in parents][-1]


def of(server: Server, process: psutil.Process) -> bool:
    """Whether a process that runs is one of a server's."""
    try:
        alive = process.status() != psutil.STATUS_ZOMBIE
        return alive and os.getpgid(process.pid) == server.process.pid
    except (psutil.NoSuchProcess, ProcessLookupError):
        return False
