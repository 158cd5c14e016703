"""Engines of vLLM one after the other in one process, as `python -m tests.serve.engine_run`.

Takes a list of options of `vllm.LLM` as JSON and prints what each engine did as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory

from openspyre.vllm import one_graph
from tests.serve.reference import NEW_TOKENS
from tests.serve.tiny import prompts


def run(options: dict[str, Any]) -> dict[str, Any]:
    """Serves the prompts twice: the second time, prefixes may come from the cache."""
    start = counts()
    engine = LLM(
        skip_tokenizer_init=True, max_model_len=256, max_num_seqs=5, kv_cache_memory_bytes=1 << 22,
        seed=0, **options,
    )  # fmt: skip
    greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts()]
    torch.spyre.reset_fallbacks()
    before = counts()
    passes = [engine.generate(asked, greedy, use_tqdm=False) for _ in range(2)]
    found = {
        "tokens": [[list(r.outputs[0].token_ids) for r in results] for results in passes],
        "cached": sum(r.num_cached_tokens for r in passes[1]),
        "fallbacks": torch.spyre.fallbacks(),
        "graphs": {name: now - start[name] for name, now in before.items()},
        "later": {name: now - before[name] for name, now in counts().items()},
    }
    engine.llm_engine.engine_core.shutdown()
    del engine
    cleanup_dist_env_and_memory()
    return found


def counts() -> dict[str, int]:
    """Graphs so far: of Dynamo, breaks among them, of attention and tables."""
    counters = torch._dynamo.utils.counters
    return {
        "dynamo": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
        "ours": one_graph.compiled_graphs(),
    }


if __name__ == "__main__":
    for options in json.loads(sys.argv[1]):
        print("RESULT " + json.dumps(run(options)), flush=True)
