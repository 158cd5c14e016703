"""vLLM's hardware-agnostic path: models of transformers with our layers.

Greedy tokens equal those of transformers, each model is one graph, no step makes another one,
nothing runs on the host, and of each module it is known who provides it. One of the models; all
of them with --long.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.serve.running import output_of
from tests.serve.tiny import write_model

pytestmark = pytest.mark.timeout(1200)  # three engines start in the first test
# Short chunks: fewer classes of sizes to compile programs for.
CASES: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "qwen3": (torch.float32, {"block_size": 16, "max_num_batched_tokens": 16}),
    "granite": (torch.float16, {"block_size": 64, "max_num_batched_tokens": 16}),
    "gemma2": (torch.float32, {"block_size": 16, "max_num_batched_tokens": 16}),
}
ALL = {
    ("openspyre", "LogitsProcessor"), ("openspyre", "MergedColumnParallelLinear"),
    ("openspyre", "QKVParallelLinear"), ("openspyre", "RowParallelLinear"),
    ("openspyre", "ParallelLMHead"), ("vllm, in tree", "Attention"),  # its inside is our backend
}  # fmt: skip
PLAIN = {("openspyre", "VocabParallelEmbedding")}
# It scales its rows, and vLLM makes a class from this one and its own, which asks no registry.
SCALED = {("vllm, in tree", "Gemma2TextScaledWordEmbedding")}
SILU = {("vllm, hardware-agnostic", "SiluAndMul"), ("vllm, hardware-agnostic", "TPAwareRMSNorm")}
GELU = {("openspyre", "GeluAndMul"), ("openspyre", "TPAwareGemmaRMSNorm")}
CENSUS = {
    "qwen3": ALL | PLAIN | SILU, "granite": ALL | PLAIN | SILU, "gemma2": ALL | SCALED | GELU,
}  # fmt: skip


def kinds_of(config: pytest.Config) -> list[str]:
    return list(CASES) if config.getoption("--long") else ["qwen3"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", kinds_of(metafunc.config))


@pytest.fixture(scope="module")
def runs(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Any, Any]]:
    """Of each model, what transformers generates and what the engine did."""
    top = tmp_path_factory.mktemp("models")
    options = []
    kinds = kinds_of(pytestconfig)
    for kind in kinds:
        dtype, chosen = CASES[kind]
        write_model(kind, dtype, top / kind)
        named = {"model": str(top / kind), "dtype": str(dtype).removeprefix("torch.")}
        options.append({**named, "model_impl": "transformers", **chosen})
    folders = [of_one["model"] for of_one in options]
    right = json.loads(output_of("-m", "tests.serve.reference", *folders).splitlines()[-1])
    arguments = ("-m", "tests.serve.engine_run", json.dumps(options))
    done = output_of(*arguments, VLLM_USE_HW_AGNOSTIC="1")
    results = [json.loads(line[7:]) for line in done.splitlines() if line.startswith("RESULT ")]
    return dict(zip(kinds, zip(right, results, strict=True), strict=True))


def test_tokens_are_those_of_transformers(runs: dict[str, Any], kind: str) -> None:
    right, run = runs[kind]
    # In half precision, two tokens that are as good as equal may change places.
    close = 0.02 if CASES[kind][0] is torch.float16 else 0.0
    compared = 0
    for tokens in run["tokens"]:
        for (wanted, ahead), got in zip(right, tokens, strict=True):
            sure = next((n for n, by in enumerate(ahead) if by < close), len(ahead))
            assert got[:sure] == wanted[:sure]
            compared += sure
    assert compared >= 100
    assert sum(len(set(wanted)) for wanted, _ in right) > 60  # of 96: they vary


def test_the_model_is_one_graph_and_stays_so(runs: dict[str, Any], kind: str) -> None:
    run = runs[kind][1]
    (graphs,), (later,) = run["graphs"], run["later"]
    assert graphs["breaks"] == 0
    assert graphs["dynamo"] - graphs["ours"] == 2  # the other one counts ranks: vLLM's sampler
    assert later == {"dynamo": 0, "breaks": 0, "ours": 0, "programs": 0}


def test_nothing_runs_on_the_host(runs: dict[str, Any], kind: str) -> None:
    assert runs[kind][1]["fallbacks"] == [{}]


def test_who_provides_the_modules(runs: dict[str, Any], kind: str) -> None:
    (found,) = runs[kind][1]["census"]
    providers = {tuple(one) for one in found}
    layers = {one for one in providers if one[0] not in ("torch", "transformers")}
    assert layers == CENSUS[kind] | {("vllm, definitions", "TransformersForCausalLM")}
