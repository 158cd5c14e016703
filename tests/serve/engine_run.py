"""Engines of vLLM one after the other in one process, as `python -m tests.serve.engine_run`.

Takes a list of options of `vllm.LLM` as JSON and prints what each engine did as one line of JSON,
counts of graphs and fallbacks for each of its workers.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import torch
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory

from openspyre.runtime.programs import compiled_programs
from openspyre.vllm import one_graph
from openspyre.vllm.layers import census
from tests.serve.collectives import wrong_collectives
from tests.serve.reference import NEW_TOKENS
from tests.serve.tiny import prompts


def run(options: dict[str, Any]) -> dict[str, Any]:
    """Serves the prompts twice: the second time, prefixes may come from the cache."""
    alone = options.get("tensor_parallel_size", 1) == 1
    start = counts() if alone else dict.fromkeys(counts(), 0)  # workers are new processes
    engine = LLM(
        skip_tokenizer_init=True, max_model_len=256, max_num_seqs=5, kv_cache_memory_bytes=1 << 22,
        seed=0, **options,
    )  # fmt: skip
    greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts()]
    engine.collective_rpc(reset_fallbacks)
    before = engine.collective_rpc(counts)
    passes = [engine.generate(asked, greedy, use_tqdm=False) for _ in range(2)]
    for few, longest in ((1, 40), (3, 9), (7, 200)):  # other sizes of steps
        engine.generate(mixed(few, longest), varied(few), use_tqdm=False)
    found = {
        "tokens": [[list(r.outputs[0].token_ids) for r in results] for results in passes],
        "cached": sum(r.num_cached_tokens for r in passes[1]),
        "fallbacks": engine.collective_rpc(fallbacks),
        "graphs": [more(start, of_one) for of_one in before],
        "later": list(map(more, before, engine.collective_rpc(counts))),
    }
    found["census"] = [[(m.provider, m.name) for m in of] for of in engine.apply_model(census)]
    found["wrong collectives"] = [] if alone else engine.collective_rpc(wrong_collectives)
    engine.llm_engine.engine_core.shutdown()
    del engine
    cleanup_dist_env_and_memory()
    return found


def mixed(count: int, longest: int) -> list[dict[str, list[int]]]:
    """Prompts of random lengths."""
    drawn = random.Random(count)
    lengths = [drawn.randint(1, longest) for _ in range(count)]
    return [{"prompt_token_ids": [drawn.randint(3, 250) for _ in range(n)]} for n in lengths]


def varied(count: int) -> list[SamplingParams]:
    """Requests that end at different steps; some draw their tokens."""
    return [
        SamplingParams(
            temperature=0.7 * (n % 2), top_k=5 * (n % 3), max_tokens=1 + n, ignore_eos=True,
            detokenize=False,
        )
        for n in range(count)
    ]  # fmt: skip


def more(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    return {name: count - before[name] for name, count in now.items()}


def reset_fallbacks(worker: Any) -> None:
    torch.spyre.reset_fallbacks()


def fallbacks(worker: Any) -> dict[str, int]:
    return dict(torch.spyre.fallbacks())


def counts(worker: Any = None) -> dict[str, int]:
    """Graphs so far: of Dynamo, breaks among them, of attention and tables; and programs."""
    counters = torch._dynamo.utils.counters
    return {
        "dynamo": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
        "ours": one_graph.compiled_graphs(),
        "programs": compiled_programs(),
    }


if __name__ == "__main__":
    for options in json.loads(sys.argv[1]):
        print("RESULT " + json.dumps(run(options)), flush=True)
