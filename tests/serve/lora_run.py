"""Engines of vLLM with adapters, as `python -m tests.serve.lora_run`.

Takes a model's folder, a list of adapters' folders and a list of options as JSON; prints for each
engine a line of JSON: tokens of each prompt with the adapter `prompt number % (adapters + 1)`, 0
for none.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.lora.request import LoRARequest

from tests.serve.engine_run import counts, fallbacks, more, reset_fallbacks
from tests.serve.reference import NEW_TOKENS
from tests.serve.tiny import prompts


def run(model: str, adapters: list[str], options: dict[str, Any]) -> dict[str, Any]:
    """Serves the prompts with and without adapters in one batch."""
    engine = LLM(
        model, skip_tokenizer_init=True, max_model_len=256, max_num_seqs=5, block_size=16,
        kv_cache_memory_bytes=1 << 22, seed=0, enable_lora=True, max_lora_rank=8, **options,
    )  # fmt: skip
    chosen = [None, *(LoRARequest(f"a{n}", n + 1, path) for n, path in enumerate(adapters))]
    asked = [{"prompt_token_ids": prompt} for prompt in prompts()]
    whose = [chosen[n % len(chosen)] for n in range(len(asked))]
    greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    engine.collective_rpc(reset_fallbacks)
    before = engine.collective_rpc(counts)
    results = engine.generate(asked, greedy, use_tqdm=False, lora_request=whose)
    found = {
        "tokens": [list(r.outputs[0].token_ids) for r in results],
        "fallbacks": engine.collective_rpc(fallbacks),
        "later": list(map(more, before, engine.collective_rpc(counts))),
        "prompt": prompt_logprobs(engine, asked[2], chosen),
    }
    engine.llm_engine.engine_core.shutdown()
    del engine
    cleanup_dist_env_and_memory()
    return found


def prompt_logprobs(engine: LLM, prompt: Any, chosen: list[Any]) -> list[list[float]]:
    """Log-probabilities of a prompt's tokens with each adapter, all in one batch."""
    wanted = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    asked = [prompt] * len(chosen)
    results = engine.generate(asked, wanted, use_tqdm=False, lora_request=chosen)
    return [
        [next(iter(of_one.values())).logprob for of_one in result.prompt_logprobs[1:]]
        for result in results
    ]


if __name__ == "__main__":
    for options in json.loads(sys.argv[3]):
        found = run(sys.argv[1], json.loads(sys.argv[2]), options)
        print("RESULT " + json.dumps(found), flush=True)
