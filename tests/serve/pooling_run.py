"""Engines of vLLM that pool, one after the other, as `python -m tests.serve.pooling_run`.

Takes a list of options of `vllm.LLM` as JSON and prints what each engine did as a line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from vllm import LLM
from vllm.distributed import cleanup_dist_env_and_memory

from tests.serve.engine_run import counts, fallbacks, more, reset_fallbacks
from tests.serve.pooled import LONGEST, QUERY, TEXTS


def run(options: dict[str, Any]) -> dict[str, Any]:
    """Asks for all that the model gives of the texts, four of them at a time."""
    start = counts()
    engine = LLM(
        runner="pooling", max_model_len=LONGEST, max_num_seqs=4, kv_cache_memory_bytes=1 << 22,
        seed=0, **{"max_num_batched_tokens": 128, **options},
    )  # fmt: skip
    engine.collective_rpc(reset_fallbacks)
    before = counts()
    found: dict[str, Any] = {"values": asked(engine)}
    found["fallbacks"] = engine.collective_rpc(fallbacks)
    found["graphs"], found["later"] = more(start, before), more(before, counts())
    engine.llm_engine.engine_core.shutdown()
    del engine
    cleanup_dist_env_and_memory()
    return found


def asked(engine: LLM) -> dict[str, list[list[float]]]:
    texts = list(TEXTS)
    found = {}
    if "embed" in engine.supported_tasks:
        found["embed"] = [r.outputs.embedding for r in engine.embed(texts, use_tqdm=False)]
    if "classify" in engine.supported_tasks:
        found["classify"] = [r.outputs.probs for r in engine.classify(texts, use_tqdm=False)]
    if len(found.get("classify", [[0]])[0]) == 1:
        scores = engine.score(QUERY, texts, use_tqdm=False)
        found["score"] = [[r.outputs.score] for r in scores]
    return found


if __name__ == "__main__":
    for options in json.loads(sys.argv[1]):
        print("RESULT " + json.dumps(run(options)), flush=True)
