"""Engines that follow the tokens which transformers gives, as `python -m tests.serve.follow_run`.

Reads {"model", "asked": [{"prompt", "tokens"}], "engines": [options of vllm.LLM]} as JSON, and
prints for each engine, as a line of JSON, where its greedy tokens differ. Behind a token that does,
it goes on from the token that was expected.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.sampling_params import RequestOutputKind


@dataclass(slots=True)
class Followed:
    """A request on the way to its last token; `at` is how many are right or have been put right."""

    prompt: list[int]
    tokens: list[int]
    at: int = 0

    def asked(self) -> list[int]:
        return self.prompt + self.tokens[: self.at]

    def take(self, got: list[int]) -> int | None:
        """Goes on by what an engine gave; the position of the first token that differs."""
        wanted = self.tokens[self.at :]
        same = next((i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b), None)
        position = None if same is None else self.at + same
        self.at = len(self.tokens) if position is None else position + 1
        return position


def follow(engine: LLM, asked: list[dict[str, Any]]) -> dict[str, Any]:
    """All requests in one batch; then those that went another way, from there."""
    requests = [Followed(one["prompt"], one["tokens"]) for one in asked]
    differs, cached, rounds = [], 0, 0
    while left := [n for n, r in enumerate(requests) if r.at < len(r.tokens)]:
        rounds += 1
        outputs = engine.generate(
            [{"prompt_token_ids": requests[n].asked()} for n in left],
            [greedy(len(requests[n].tokens) - requests[n].at) for n in left],
            use_tqdm=False,
        )
        cached += sum(output.num_cached_tokens for output in outputs)
        for n, output in zip(left, outputs, strict=True):
            at = requests[n].take(list(output.outputs[0].token_ids))
            if at is not None:
                differs.append((n, at))
    return {"differs": differs, "cached": cached, "rounds": rounds}


def greedy(count: int) -> SamplingParams:
    return SamplingParams(
        temperature=0, max_tokens=count, ignore_eos=True, detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )  # fmt: skip


def run(model: str, asked: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
    torch.spyre.reset_fallbacks()
    engine = LLM(
        model, skip_tokenizer_init=True, seed=0, disable_log_stats=False, **options
    )  # fmt: skip
    found = follow(engine, asked)
    counters = {m.name: m.value for m in engine.get_metrics() if hasattr(m, "value")}
    found["preemptions"] = counters["vllm:num_preemptions"]
    found["fallbacks"] = dict(torch.spyre.fallbacks())
    engine.llm_engine.engine_core.shutdown()
    del engine
    cleanup_dist_env_and_memory()
    return found


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    for options in given["engines"]:
        found = run(given["model"], given["asked"], options)
        print("RESULT " + json.dumps({"options": options, **found}), flush=True)
