"""Greedy tokens of vLLM on one card, and on two, equal those of transformers on the CPU.

Requests of mixed length in one batch of five, more than fit at once, twice: what is cached, how
prompts are cut and how large blocks are must change nothing.
"""

from __future__ import annotations

import json
from itertools import accumulate
from operator import and_
from typing import Any

import pytest
import torch

from tests.serve.running import output_of
from tests.serve.tiny import write_model

pytestmark = pytest.mark.timeout(1500)  # six engines start in the first test
CASES: dict[str, tuple[str, torch.dtype, dict[str, Any]]] = {
    "llama-eager-16-chunks": (
        "llama", torch.float32,
        {"enforce_eager": True, "block_size": 16, "max_num_batched_tokens": 32},
    ),
    "qwen3-half-128-no-cache": (
        "qwen3", torch.float16, {"block_size": 128, "enable_prefix_caching": False}
    ),
    "gemma2-64": ("gemma2", torch.float32, {"block_size": 64}),
    "granite-32-drafts": (
        "granite", torch.float32,
        {"block_size": 32, "max_num_batched_tokens": 64, "speculative_config": {
            "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1,
            "prompt_lookup_max": 3,
        }},
    ),
    "granite-bfloat16-16": (
        "granite", torch.bfloat16, {"block_size": 16, "max_num_batched_tokens": 64}
    ),
    "llama-two-cards": (
        "llama", torch.float32,
        {"block_size": 16, "tensor_parallel_size": 2},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """Of each case, what transformers generates and what the engine did."""
    top = tmp_path_factory.mktemp("models")
    folders = []
    for name, (kind, dtype, _) in CASES.items():
        write_model(kind, dtype, top / name)
        folders.append(str(top / name))
    options = [
        {"model": folder, "dtype": str(dtype).removeprefix("torch."), **chosen}
        for folder, (_, dtype, chosen) in zip(folders, CASES.values(), strict=True)
    ]
    right = json.loads(output_of("-m", "tests.serve.reference", *folders).splitlines()[-1])
    arguments = ("-m", "tests.serve.engine_run", json.dumps(options))
    done = output_of(*arguments, OPENSPYRE_DEVICES="2")
    results = [json.loads(line[7:]) for line in done.splitlines() if line.startswith("RESULT ")]
    return dict(zip(CASES, zip(right, results, strict=True), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_tokens_are_those_of_transformers(runs: dict[str, Any], case: str) -> None:
    right, run = runs[case]
    # In 16 bits, two tokens that are as good as equal may change places.
    close = {torch.float16: 0.02, torch.bfloat16: 0.16}.get(CASES[case][1], 0.0)
    compared = 0
    for tokens in run["tokens"]:
        for (wanted, ahead), got in zip(right, tokens, strict=True):
            same = sum(accumulate((a == b for a, b in zip(wanted, got, strict=True)), and_))
            assert same == len(wanted) or ahead[same] < close
            compared += same
    assert compared >= 100
    assert sum(len(set(wanted)) for wanted, _ in right) > 60  # of 96: they vary


@pytest.mark.parametrize("case", CASES)
def test_prefixes_come_from_the_cache(runs: dict[str, Any], case: str) -> None:
    _, run = runs[case]
    chosen = CASES[case][2]
    assert (run["cached"] > 0) == (chosen["block_size"] <= 61 and "no-cache" not in case)


@pytest.mark.parametrize("case", CASES)
def test_nothing_runs_on_the_host(runs: dict[str, Any], case: str) -> None:
    of_workers = runs[case][1]["fallbacks"]
    assert of_workers == [{}] * CASES[case][2].get("tensor_parallel_size", 1)


@pytest.mark.parametrize("case", CASES)
def test_no_graph_and_no_program_is_made_after_warm_up(runs: dict[str, Any], case: str) -> None:
    run = runs[case][1]
    for graphs, later in zip(run["graphs"], run["later"], strict=True):
        assert graphs["breaks"] == 0
        programs = later.pop("programs")
        assert later == {"dynamo": 0, "breaks": 0, "ours": 0}
        # 45 in 15 steps without the rehearsal; steps with drafts are not rehearsed.
        assert programs <= (2 if "eager" in case else 0) or "drafts" in case
        # One more in the first engine of a process: that by which vLLM counts ranks of tokens.
        of_model = 0 if "eager" in case else 1
        assert graphs["dynamo"] - graphs["ours"] - of_model in (0, 1)


def test_collectives_between_cards(runs: dict[str, Any]) -> None:
    assert runs["llama-two-cards"][1]["wrong collectives"] == [[], []]
