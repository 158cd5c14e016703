"""vLLM's sampler on the card and on the CPU, as `python -m tests.serve.sampling_run`.

Requests with parameters of all kinds, in one batch and alone, over logits of odd sizes with
infinities, ties, extremes of their dtype and rows that leave one token. What each step of the
sampler makes of them is compared, and printed as lines of JSON; there is no engine and no model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import build_logitsprocs
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

VOCABULARY = 333
DRAWS = {"seeded": 120, "unseeded": 4000}  # requests whose draws are counted
CARD = torch.device("spyre", 0)
PARAMETERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 0.37},
    "hot": {"temperature": 2.0},
    "penalties": {"presence_penalty": 0.7, "frequency_penalty": -1.3, "repetition_penalty": 1.9},
    "repetition below 1": {"repetition_penalty": 0.6, "temperature": 0},
    "min_p": {"min_p": 0.08},
    "top_k": {"top_k": 5},
    "top_k of all": {"top_k": VOCABULARY},
    "top_k of one": {"top_k": 1},
    "top_p": {"top_p": 0.63},
    "a small top_p": {"top_p": 1e-6},
    "top_k and top_p": {"top_k": 40, "top_p": 0.8, "min_p": 0.01, "temperature": 0.9},
    "bad words": {"bad_words_ids": [[4], [8, 9], [11, 12, 13], [3, 11, 12, 17], [5, 6]]},
    "bias": {"logit_bias": {0: 100.0, 7: -100.0, VOCABULARY - 1: 3.25}},
    "min_tokens": {"min_tokens": 9, "stop_token_ids": [1, 5, VOCABULARY - 2]},
    "min_tokens that are there": {"min_tokens": 2, "stop_token_ids": [2]},
    "allowed": {"allowed_token_ids": [0, 5, 90, VOCABULARY - 1]},
    "everything": {
        "temperature": 0.8, "top_k": 100, "top_p": 0.9, "min_p": 0.001, "presence_penalty": 1.0,
        "frequency_penalty": 0.3, "repetition_penalty": 1.2, "logit_bias": {3: 2.0},
        "min_tokens": 20, "stop_token_ids": [6], "bad_words_ids": [[12]],
    },
}  # fmt: skip
_SAID = [8, 8, 3, 11, 12]  # so that three of the bad words are about to be said


def parameters(given: dict[str, Any]) -> SamplingParams:
    chosen = dict(given)
    words = chosen.pop("bad_words_ids", None)
    made = SamplingParams(max_tokens=64, **chosen)
    made._bad_words_token_ids = words  # what vLLM's tokenizer would give
    made._all_stop_token_ids = set(chosen.get("stop_token_ids", ()))
    return made


def request(number: int, asked: SamplingParams, device: torch.device) -> CachedRequestState:
    generator, k = None, number % 40
    if asked.seed is not None:
        generator = torch.Generator(device=device).manual_seed(asked.seed)
    return CachedRequestState(
        str(number), [(5 * i * i + k) % VOCABULARY for i in range(k + 1)], [], asked, generator,
        block_ids=([0],), num_computed_tokens=0, output_token_ids=[k, *_SAID],
    )  # fmt: skip


def batch(device: torch.device, requests: list[SamplingParams]) -> InputBatch:
    """vLLM's batch of requests, whose prompts and answers differ."""
    config = VllmConfig()
    config.scheduler_config.max_num_seqs = len(requests)
    made = InputBatch(
        max_num_reqs=len(requests), max_model_len=128, max_num_batched_tokens=128, device=device,
        vocab_size=VOCABULARY, block_sizes=[16], max_num_blocks_per_req=[8],
        logitsprocs=build_logitsprocs(config, device, False, False),
    )  # fmt: skip
    for n, asked in enumerate(requests):
        made.add_request(request(n, asked, device))
    made.refresh_metadata()
    return made


def logits(dtype: torch.dtype, rows: int) -> Tensor:
    """Rows that no rounding of a sum decides, and rows that are hard."""
    generator = torch.Generator().manual_seed(11)
    made = torch.randn(rows, VOCABULARY, generator=generator) * 4
    top = torch.finfo(dtype).max
    hard = made[::2]
    hard[:, 20:60] = -torch.inf
    hard[0] = 1.5  # all alike
    hard[1] = -torch.inf
    hard[1, 17] = -3.0  # one is left
    hard[2, 5], hard[2, 6] = top, -top
    hard[3] = made[3].round()  # many ties
    hard[4] *= 1e-4
    hard[5, 100:] *= 300
    return made.clamp(-torch.inf, top).to(dtype)


def steps(sampler: Sampler, given: Tensor, chosen: SamplingMetadata) -> dict[str, Tensor]:
    """What the sampler does before it draws, step by step."""
    found = {"log-probabilities": sampler.compute_logprobs(given)}
    now = sampler.apply_logits_processors(given.to(torch.float32), chosen, False)
    found["processed"] = now.clone()
    found["greedy"] = sampler.greedy_sample(now)
    if chosen.temperature is not None:
        now = sampler.apply_temperature(now, chosen.temperature, chosen.all_random)
        found["by temperature"] = now.clone()
        for processor in chosen.logitsprocs.argmax_invariant:
            now = processor.apply(now)
        found["above min_p"] = now.clone()
        now = apply_top_k_top_p(now, chosen.top_k, chosen.top_p)
        found["cut"] = now.sort(dim=-1).values  # which of equal ones are cut is open
        found["probabilities"] = found["cut"].softmax(dim=-1, dtype=torch.float32)
    ranked = sampler.gather_logprobs(found["log-probabilities"], 7, found["greedy"])
    found["ranks"] = ranked.selected_token_ranks
    found["best"] = ranked.logprobs
    return found


def differences(got: Tensor, right: Tensor) -> dict[str, float]:
    """How many elements are lost or infinite on one side only; the largest relative error."""
    here = got.cpu()
    if not here.dtype.is_floating_point:
        return {"other": int((here != right).sum())}
    odd = ~torch.isfinite(here) | ~torch.isfinite(right)
    other = int(((here != right) & odd).sum())
    error = (here.double() - right.double()).abs() / right.double().abs().clamp(min=1e-30)
    return {"other": other, "error": float(error[~odd].max()) if (~odd).any() else 0.0}


def compared(dtype: torch.dtype, names: list[str]) -> dict[str, Any]:
    """One batch of requests, step by step."""
    sampler = Sampler()
    given = logits(dtype, max(len(names), 12))[: len(names)]
    requests = [PARAMETERS[name] for name in names]
    sides = []
    for device in (CARD, torch.device("cpu")):
        of_side = batch(device, [parameters(one) for one in requests]).sampling_metadata
        torch.spyre.reset_fallbacks()
        sides.append(steps(sampler, given.to(device), of_side))
        if device == CARD:
            fallbacks = dict(torch.spyre.fallbacks())
    card, cpu = sides
    found = {name: differences(card[name], cpu[name]) for name in cpu}
    return {"dtype": str(dtype), "names": names, "fallbacks": fallbacks, "steps": found}


def drawn() -> dict[str, Any]:
    """How often each token is drawn, and how likely it is; what a few seeds give twice."""
    row = torch.linspace(-2, 2, 12)
    row[5] = -torch.inf
    found: dict[str, Any] = {"expected": (row / 0.8).softmax(-1).tolist()}

    def tokens(seeds: Sequence[int | None]) -> Tensor:
        asked = [SamplingParams(temperature=0.8, seed=seed) for seed in seeds]
        chosen = batch(CARD, asked).sampling_metadata
        return Sampler()(row.repeat(len(seeds), 1).to(CARD), chosen).sampled_token_ids.cpu()[:, 0]

    torch.spyre.reset_fallbacks()
    for name, count in DRAWS.items():
        got = tokens(range(count) if name == "seeded" else [None] * count)
        found[name] = torch.bincount(got, minlength=12).tolist()
    found["repeated"] = [tokens([*range(40), None]).tolist()[:40] for _ in range(2)]
    found["fallbacks"] = dict(torch.spyre.fallbacks())
    return found


def main() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        print("RESULT " + json.dumps(compared(dtype, list(PARAMETERS))), flush=True)
    for name in ("greedy", "penalties", "top_k", "everything"):
        print("RESULT " + json.dumps(compared(torch.float16, [name])), flush=True)
    print("DRAWN " + json.dumps(drawn()), flush=True)


if __name__ == "__main__":
    main()
