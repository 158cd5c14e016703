"""Stock `generate` on the card, in each of its modes: the tokens that the CPU gives.

The models are tiny and random; `lane_generate.py` has a trained one. Both sides compute in
float32, and weights are spread so far that no two logits come near each other.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessor,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from openspyre.runtime.profiler import profile

SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "initializer_range": 0.2,
}  # fmt: skip
TOKENS = 10


@dataclass(frozen=True, slots=True)
class Pair:
    """The same model on the CPU and on the card."""

    cpu: PreTrainedModel
    card: PreTrainedModel

    def both(self, ids: torch.Tensor, **how: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens of each; padding on the left is masked."""
        outputs = []
        for model in (self.cpu, self.card):
            there = ids.to(model.device)
            mask = (there != 0).long()
            outputs.append(
                model.generate(input_ids=there, attention_mask=mask, max_new_tokens=TOKENS, **how)
            )
        return outputs[0], outputs[1].cpu()


def pair(model: PreTrainedModel) -> Pair:
    return Pair(model.eval(), copy.deepcopy(model).eval().to("spyre"))


@pytest.fixture(scope="module")
def llama() -> Pair:
    torch.manual_seed(0)
    return pair(LlamaForCausalLM(LlamaConfig(**SIZES)))


@pytest.fixture(scope="module")
def mistral() -> Pair:
    torch.manual_seed(1)
    return pair(MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8)))


@pytest.fixture
def on_the_card() -> Iterator[set[str]]:
    """Ends with the check that no op but those in the set has left the card."""
    allowed: set[str] = set()
    with profile() as measured:
        yield allowed
    assert set(measured.fallbacks) <= allowed
    assert sum(kernel.launches for kernel in measured.kernels)


def prompts(*lengths: int) -> torch.Tensor:
    """Random ids, each row padded on the left to the longest."""
    generator = torch.Generator().manual_seed(sum(lengths))
    rows = torch.randint(3, 300, (len(lengths), max(lengths)), generator=generator)
    for row, length in zip(rows, lengths, strict=True):
        row[: max(lengths) - length] = 0
    return rows


class NoMultiplesOfSeven(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(torch.arange(320, device=scores.device) % 7 == 0, -torch.inf)


class Listener:
    """A streamer; it is given tokens on the host."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        assert value.device.type == "cpu"
        self.heard += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "static": {"cache_implementation": "static"},
    "beams": {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.5},
    "repetition": {
        "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 5,
        "bad_words_ids": [[5], [7, 8]], "suppress_tokens": [4, 9],
    },
    "user's own": {"logits_processor": [NoMultiplesOfSeven()]},
    "many ends": {"eos_token_id": list(range(2, 120))},
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_tokens_of_a_batch_padded_on_the_left(
    llama: Pair, mode: str, on_the_card: set[str]
) -> None:
    expected, got = llama.both(prompts(16, 11, 1), do_sample=False, **MODES[mode])
    assert got.shape[1] > 17  # or nothing is generated
    assert torch.equal(got, expected)


@pytest.mark.parametrize("cache", [None, "static"])
def test_a_sliding_window(mistral: Pair, cache: str | None, on_the_card: set[str]) -> None:
    """Of 8 tokens, which the prompt overflows in one row and the tokens in the other."""
    for lengths in ((13, 4), (3,)):
        expected, got = mistral.both(prompts(*lengths), do_sample=False, cache_implementation=cache)
        assert torch.equal(got, expected)


def test_a_streamer_hears_every_token(llama: Pair, on_the_card: set[str]) -> None:
    listener = Listener()
    ids = prompts(9)
    made = llama.card.generate(
        input_ids=ids.to("spyre"), do_sample=False, max_new_tokens=TOKENS, streamer=listener
    )
    assert listener.heard == made[0].tolist()
    assert listener.ended


@pytest.mark.parametrize("helper", ["assistant_model", "prompt_lookup_num_tokens"])
def test_assisted(llama: Pair, helper: str, on_the_card: set[str]) -> None:
    """Candidates of another model or of the prompt change the steps, not the tokens."""
    ids = prompts(5).repeat(1, 3)
    plain, _ = llama.both(ids, do_sample=False)
    for model in (llama.cpu, llama.card):
        there = ids.to(model.device)
        value = copy.deepcopy(model) if helper == "assistant_model" else 3
        made = model.generate(
            input_ids=there, do_sample=False, max_new_tokens=TOKENS, **{helper: value}
        )
        assert torch.equal(made.cpu(), plain)


def test_scores_and_hidden_states(llama: Pair, on_the_card: set[str]) -> None:
    ids = prompts(6)
    outputs = [
        model.generate(
            input_ids=ids.to(model.device), do_sample=False, max_new_tokens=4, output_scores=True,
            output_hidden_states=True, return_dict_in_generate=True,
        )
        for model in (llama.cpu, llama.card)
    ]  # fmt: skip
    expected, got = outputs
    assert len(got.scores) == 4
    for here, there in zip(expected.scores, got.scores, strict=True):
        torch.testing.assert_close(there.cpu(), here, atol=1e-4, rtol=1e-4)
    for here, there in zip(expected.hidden_states[3], got.hidden_states[3], strict=True):
        torch.testing.assert_close(there.cpu(), here, atol=1e-4, rtol=1e-4)


def test_embeddings_instead_of_ids(llama: Pair, on_the_card: set[str]) -> None:
    ids = prompts(7)
    expected, _ = llama.both(ids, do_sample=False)
    embedded = llama.card.get_input_embeddings()(ids.to("spyre"))
    made = llama.card.generate(inputs_embeds=embedded, do_sample=False, max_new_tokens=TOKENS)
    assert torch.equal(made.cpu(), expected[:, ids.shape[1] :])


def test_sampling_is_repeatable_and_has_the_cpus_distribution(
    llama: Pair, on_the_card: set[str]
) -> None:
    """The device draws its own numbers, so that tokens of a seed are not the CPU's."""
    ids, kept, draws = prompts(8), 6, 1500
    how = {"do_sample": True, "top_k": kept, "top_p": 1.0, "temperature": 3.0}

    def sampled(seed: int, tokens: int, count: int) -> torch.Tensor:
        torch.manual_seed(seed)
        made = llama.card.generate(
            input_ids=ids.to("spyre"), max_new_tokens=tokens, num_return_sequences=count, **how
        )
        return made[:, ids.shape[1] :].cpu()

    first = sampled(1, TOKENS, 2)
    assert torch.equal(sampled(1, TOKENS, 2), first)
    assert not torch.equal(sampled(2, TOKENS, 2), first)

    with torch.inference_mode():
        best = (llama.cpu(ids).logits[0, -1] / 3.0).topk(kept)
    shares = best.values.softmax(0)
    tokens = sampled(3, 1, draws).flatten()
    counts = torch.stack([(tokens == token).sum() for token in best.indices])
    assert int(counts.sum()) == draws  # none but the kept ones
    spread = (draws * shares * (1 - shares)).sqrt()
    assert ((counts - draws * shares).abs() <= 5 * spread).all()


def test_few_compilations() -> None:
    """At most three graphs from the first prompt to the last token of all, as with any cache."""
    torch.manual_seed(2)
    both = pair(LlamaForCausalLM(LlamaConfig(**{**SIZES, "num_hidden_layers": 1})))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    both.card.forward = torch.compile(both.card.forward, dynamic=True)
    with profile() as measured:
        for length in (5, 17, 1):
            expected, got = both.both(
                prompts(length), do_sample=False, min_new_tokens=TOKENS,
                cache_implementation="static",
            )  # fmt: skip
            assert torch.equal(got, expected)
    assert not measured.fallbacks
    assert 1 <= torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 3
    torch._dynamo.reset()
