"""Adapters: tokens equal those of models that were merged with them, whatever a batch mixes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from openspyre.vllm.low_rank import expanded, head, shrunk
from tests.serve.adapters import ATTENTION, GATED, write_adapter
from tests.serve.running import output_of
from tests.serve.tiny import prompts, write_model

pytestmark = pytest.mark.timeout(1500)
# Rank, alpha and layers of each: merged and plain ones, some of a merged one, embedding and head.
ADAPTERS: tuple[tuple[int, int, tuple[str, ...]], ...] = (
    (4, 8, (*ATTENTION, *GATED)),
    (8, 4, ("q_proj", "up_proj", "down_proj")),
    (2, 4, ("embed_tokens", "lm_head", "v_proj")),
)
# Fewer places than adapters: they take turns.
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_loras": 2, "max_num_batched_tokens": 32}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Any, Any]:
    """Folders of the model alone and merged; what transformers generates; what the engine did."""
    top = tmp_path_factory.mktemp("adapters")
    write_model("llama", torch.float32, top / "base")
    for n, (rank, alpha, targets) in enumerate(ADAPTERS):
        places = (top / "base", top / f"adapter{n}", top / f"merged{n}")
        write_adapter(*places, rank=rank, alpha=alpha, targets=targets)
    adapters = [str(top / f"adapter{n}") for n in range(len(ADAPTERS))]
    models = [str(top / name) for name in ("base", "merged0", "merged1", "merged2")]
    right = json.loads(output_of("-m", "tests.serve.reference", *models).splitlines()[-1])
    arguments = (models[0], json.dumps(adapters), json.dumps([OPTIONS]))
    done = output_of("-m", "tests.serve.lora_run", *arguments)
    (result,) = (json.loads(line[7:]) for line in done.splitlines() if line.startswith("RESULT "))
    return models, right, result


def test_tokens_are_those_of_merged_models(runs: Any) -> None:
    models, right, done = runs
    for number, tokens in enumerate(done["tokens"]):
        assert tokens == right[number % len(models)][number][0]
    for merged in right[1:]:  # adapters change something
        assert all(a[0] != b[0] for a, b in zip(merged, right[0], strict=True))


def test_nothing_runs_on_the_host_and_no_graph_is_made(runs: Any) -> None:
    done = runs[2]
    assert done["fallbacks"] == [{}]
    assert done["later"] == [{"dynamo": 0, "breaks": 0, "ours": 0, "programs": 0}]


def test_a_prompts_probabilities_are_those_of_its_adapter(runs: Any) -> None:
    models, _, done = runs
    prompt = torch.tensor([prompts()[2]])
    for folder, got in zip(models, done["prompt"], strict=True):
        with torch.no_grad():
            logits = AutoModelForCausalLM.from_pretrained(folder)(prompt).logits[0, :-1]
        wanted = logits.log_softmax(-1).gather(1, prompt[0, 1:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(got), wanted, atol=2e-3, rtol=2e-3)


def test_rows_take_their_own_adapter_only() -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(9, 20, generator=generator).half()
    a = torch.randn(3, 1, 8, 20, generator=generator).half() * 0.2
    b = torch.randn(3, 1, 37, 8, generator=generator).half() * 0.2
    a[0, 0, 2:] = 0  # an adapter of rank 2
    b[1] = torch.nan  # a broken one, which no row has
    slots = torch.tensor([2, -1, 0, 0, 2, -1, -1, 0, 2])
    wanted = torch.zeros(9, 37)
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            wanted[row] = b[slot, 0].float() @ (a[slot, 0].float() @ x[row].float())
    device = [tensor.to("spyre") for tensor in (a, b, slots, x)]
    for function in (added, torch.compile(added)):
        got = function(*device).cpu()
        assert (got[slots < 0] == 0).all()
        torch.testing.assert_close(got.float(), wanted, atol=5e-3, rtol=5e-3)
    logits = torch.ones(9, 37).half().to("spyre")
    head()(logits, device[3], *device[:3])
    torch.testing.assert_close(logits.cpu().float(), wanted + 1, atol=5e-3, rtol=5e-3)


def added(a: torch.Tensor, b: torch.Tensor, slots: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return expanded(shrunk(x, a), b, slots)
