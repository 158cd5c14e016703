"""The main job's numbers: stock MiniLM in fp16 on the card, against the CPU in fp32."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch

from openspyre.hf.weights import fetch
from openspyre.runtime.profiler import profile
from openspyre.tools.embedding import Encoder, load_encoder

SIZES = [(b, s) for b in (1, 3, 8) for s in (5, 64, 100, 128)]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load_encoder(fetch("minilm"))


@pytest.fixture(scope="module")
def compiled(encoder: Encoder) -> Iterator[torch.nn.Module]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = copy.deepcopy(encoder.model).half().to("spyre")
    yield torch.compile(model, dynamic=True)
    torch._dynamo.reset()


def padded(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids with a real padding mask: row i is shorter by i tokens, down to one."""
    generator = torch.Generator().manual_seed(1000 * batch + length)
    ids = torch.randint(1000, 30000, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, batch):
        kept = max(1, length - 3 * row)
        mask[row, kept:] = 0
        ids[row, kept:] = 0
    return ids, mask


@pytest.mark.parametrize(("batch", "length"), SIZES)
def test_embeddings_agree(
    encoder: Encoder, compiled: torch.nn.Module, batch: int, length: int
) -> None:
    ids, mask = padded(batch, length)
    with torch.inference_mode():
        exact = encoder.model(input_ids=ids, attention_mask=mask).last_hidden_state
        half_model = copy.deepcopy(encoder.model).half()
        half = half_model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        on_card = {"input_ids": ids.to("spyre"), "attention_mask": mask.to("spyre")}
        compiled(**on_card)
        with profile() as measured:
            hidden = compiled(**on_card).last_hidden_state
        got = hidden.cpu().float()
    assert not measured.fallbacks
    assert 1 <= sum(kernel.launches for kernel in measured.kernels) <= 4
    assert not got.isnan().any()
    kept = mask.bool()
    error = (got - exact)[kept].abs().max()
    assert error <= 2 * (half - exact)[kept].abs().max()
    cosine = torch.nn.functional.cosine_similarity(
        encoder.pool(got, mask), encoder.pool(exact, mask)
    )
    assert cosine.min() >= 0.99995


def test_few_graphs(compiled: torch.nn.Module) -> None:
    """All the sizes above together took at most four Dynamo graphs."""
    assert 1 <= torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 4
