"""Other people's entry points with the device's name in them, and nothing else changed."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator, cpu_offload
from accelerate.state import AcceleratorState
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, pipeline

from openspyre.hf.weights import fetch
from openspyre.runtime.profiler import Profile, profile

SENTENCES = [
    "A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby.",
    "Yes",
]  # fmt: skip
# A reaction, whose every token the model finds again where it is masked.
REACTION = "CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1"
TOKEN = re.compile(
    r"\[[^\]]+]|Br?|Cl?|[NOSPFIbcnosp().=#+\\/:~@?*$-]|>>?|%[0-9]{2}|[0-9]"
)  # as rxnmapper cuts SMILES


@pytest.fixture(scope="module")
def minilm() -> Path:
    return fetch("minilm")


@pytest.fixture
def measured() -> Iterator[Profile]:
    """Ends with the check that the card did the work, all of it."""
    with profile() as found:
        yield found
    assert sum(kernel.launches for kernel in found.kernels)
    assert not found.fallbacks


# --- sentence-transformers ------------------------------------------------------------------------


def test_sentence_transformers(minilm: Path, measured: Profile) -> None:
    expected = SentenceTransformer(str(minilm), device="cpu").encode(SENTENCES)
    cosines = expected[:3] @ expected[:3].T
    published = [cosines[0, 1], cosines[0, 2], cosines[1, 2]]
    np.testing.assert_allclose(published, [0.7553, -0.1050, -0.0610], atol=1e-4)

    model = SentenceTransformer(str(minilm), device="spyre")
    assert model.device.type == "spyre"
    got = model.encode(SENTENCES, batch_size=2)
    np.testing.assert_allclose(got, expected, atol=5e-6)
    kept = model.encode(SENTENCES, convert_to_tensor=True, normalize_embeddings=True)
    assert kept.device.type == "spyre"
    similar = model.similarity(kept, kept)
    np.testing.assert_allclose(similar.cpu(), expected @ expected.T, atol=5e-6)


def test_sentence_transformers_in_half(minilm: Path, measured: Profile) -> None:
    def model(device: str, dtype: str) -> SentenceTransformer:
        return SentenceTransformer(str(minilm), device=device, model_kwargs={"dtype": dtype})

    exact = model("cpu", "float32").encode(SENTENCES)
    half = model("cpu", "float16").encode(SENTENCES).astype(np.float32)
    got = model("spyre", "float16").encode(SENTENCES).astype(np.float32)
    assert np.abs(got - exact).max() <= 2 * np.abs(half - exact).max()


# --- transformers ---------------------------------------------------------------------------------


def test_pipeline_of_an_encoder(minilm: Path, measured: Profile) -> None:
    rows = [
        pipeline("feature-extraction", model=str(minilm), device=device)(SENTENCES)
        for device in ("cpu", "spyre")
    ]
    for expected, got in zip(*rows, strict=True):
        torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), atol=5e-5, rtol=0)


def test_pipeline_of_a_decoder(measured: Profile) -> None:
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    for device, dtype in (("cpu", "float32"), ("spyre", "float16")):
        generator = pipeline(
            "text-generation", model=str(fetch("smollm2")), device=device, dtype=dtype
        )
        assert generator.model.dtype == getattr(torch, dtype)
        said = generator(chat, max_new_tokens=16, do_sample=False)[0]["generated_text"][-1]
        assert said == {"role": "assistant", "content": "The capital of France is Paris."}


def test_masked_reactions(measured: Profile) -> None:
    folder = fetch("rxnmapper")
    known = {token: i for i, token in enumerate((folder / "vocab.txt").read_text().split("\n"))}
    ids = torch.tensor([known[t] for t in ("[CLS]", *TOKEN.findall(REACTION), "[SEP]")])
    count = len(ids) - 2
    assert count == 35
    masked = ids.repeat(count, 1)
    rows = torch.arange(count)
    masked[rows, rows + 1] = known["[MASK]"]

    def logits(device: str, dtype: torch.dtype) -> torch.Tensor:
        model = AutoModelForMaskedLM.from_pretrained(folder, dtype=dtype).eval().to(device)
        with torch.inference_mode():
            return model(masked.to(device)).logits.cpu().float()

    exact, half, got = (
        logits("cpu", torch.float32), logits("cpu", torch.float16), logits("spyre", torch.float16),
    )  # fmt: skip
    assert torch.equal(got[rows, rows + 1].argmax(1), ids[1:-1])
    assert (got - exact).abs().max() <= 2 * (half - exact).abs().max()


# --- placement ------------------------------------------------------------------------------------


def hidden(model: torch.nn.Module) -> torch.Tensor:
    """Of ids that lie where the model's embedding does, or move there."""
    offloaded = next(model.parameters()).is_meta
    ids = torch.arange(2000, 2014, device="cpu" if offloaded else model.device).reshape(2, 7)
    with torch.inference_mode():
        return model(ids).last_hidden_state.cpu()


@pytest.fixture(scope="module")
def expected(minilm: Path) -> torch.Tensor:
    return hidden(AutoModel.from_pretrained(minilm))


@pytest.mark.parametrize(
    "placed",
    ["spyre", "spyre:0", {"": "spyre"}, {"embeddings": "cpu", "encoder": "spyre", "pooler": "cpu"}],
    ids=str,
)
def test_device_map(
    minilm: Path, expected: torch.Tensor, placed: object, measured: Profile
) -> None:
    model = AutoModel.from_pretrained(minilm, device_map=placed)
    assert model.encoder.layer[0].output.dense.weight.device.type == "spyre"
    torch.testing.assert_close(hidden(model), expected, atol=5e-5, rtol=0)


def test_device_map_takes_little_more_than_the_weights() -> None:
    """It first takes one block as large as all weights: their tensors must come out of it."""
    gc.collect()
    torch.spyre.empty_cache()
    before = torch.spyre.memory_allocated(), torch.spyre.memory_reserved()
    torch.spyre.reset_peak_memory_stats()
    model = AutoModelForCausalLM.from_pretrained(
        fetch("smollm2"), device_map="spyre", dtype="float16"
    )
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    assert weights <= torch.spyre.memory_allocated() - before[0] < 1.01 * weights
    assert torch.spyre.max_memory_reserved() - before[1] < 1.3 * weights


def test_weights_that_stay_on_the_host(
    minilm: Path, expected: torch.Tensor, measured: Profile
) -> None:
    model = cpu_offload(AutoModel.from_pretrained(minilm), execution_device="spyre")
    assert next(model.parameters()).device.type == "meta"
    torch.testing.assert_close(hidden(model), expected, atol=5e-5, rtol=0)


def test_accelerator(monkeypatch: pytest.MonkeyPatch, measured: Profile) -> None:
    """Training through accelerate; the environment names the device, as for any new one."""

    def losses() -> list[float]:
        torch.manual_seed(0)
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = Accelerator()
        model = torch.nn.Linear(8, 4)
        data = torch.utils.data.TensorDataset(torch.randn(12, 8))
        model, optimizer, loader = accelerator.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.1),
            torch.utils.data.DataLoader(data, batch_size=4),
        )  # fmt: skip
        found = []
        for (x,) in loader:
            assert x.device.type == accelerator.device.type
            loss = model(x).pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            found.append(accelerator.gather(loss.detach()).item())
        devices.append(accelerator.device.type)
        return found

    devices: list[str] = []
    on_cpu = losses()
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "spyre")
    try:
        on_card = losses()
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    assert devices == ["cpu", "spyre"]
    assert on_card == pytest.approx(on_cpu, abs=1e-6)
