"""Greedy tokens of transformers on the CPU, and engines of vLLM that follow them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch

from tests.lanes import followed
from tests.models.greedy import Reference
from tests.serve.running import environment


def reference(exact: Any, half: Any, prompt: torch.Tensor, count: int) -> Reference:
    """The CPU's tokens, the end of a text like any other, and how far `half` is from its logits."""
    ids, begin = prompt, prompt.shape[1]
    with torch.inference_mode():
        step = exact(ids, use_cache=True)
        for _ in range(count):
            ids = torch.cat([ids, step.logits[:, -1:].argmax(-1)], 1)
            step = exact(ids[:, -1:], past_key_values=step.past_key_values, use_cache=True)
        logits = exact(ids).logits[0, begin - 1 : -1].float()
        error = (half(ids).logits[0, begin - 1 : -1].float() - logits).abs().amax(1)
    best = logits.topk(2).values
    return Reference(ids, begin, best[:, 0] - best[:, 1], error)


def follow(
    folder: Path, expected: list[Reference], engines: list[dict[str, Any]], **variables: str
) -> list[dict[str, Any]]:
    """What `follow_run` finds for the model in a folder, one engine after the other."""
    asked = [
        {"prompt": one.ids[0, : one.prompt].tolist(), "tokens": one.ids[0, one.prompt :].tolist()}
        for one in expected
    ]
    with NamedTemporaryFile("w", suffix=".json") as given:
        json.dump({"model": str(folder), "asked": asked, "engines": engines}, given)
        given.flush()
        done = followed(
            [sys.executable, "-m", "tests.serve.follow_run", given.name], name="serve",
            env=environment(
                VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", **variables
            ),
        )  # fmt: skip
    lines = [line[7:] for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert done.returncode == 0, done.stdout[-4000:]
    return [json.loads(line) for line in lines]
