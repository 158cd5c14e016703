"""The long lane `generate`: SmolLM2 in float16 on the card says what the CPU says in float32.

`./dev test --long generate`: ten prompts of 64 greedy tokens, compiled, each compared as
`greedy.py` says. Leaves `results/generate.json`.
"""

from __future__ import annotations

import time
from dataclasses import asdict

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from openspyre.hf.weights import SMOLLM2, fetch
from openspyre.runtime.profiler import profile
from tests.models.greedy import flips, reference
from tests.results import commit, write_result

TOKENS = 64
PROMPTS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain to a child why the sky is blue.",
    "Name three uses of a paper clip.",
    "What is 12 times 12?",
    "Translate 'good morning' into German.",
    "Write a Python function that reverses a list.",
    "Give me a recipe for pancakes with eggs, flour and milk, please.",
    "Who wrote the play Hamlet, and when was it written?",
    "Continue: once upon a time, in a small village by a river,",
)


@pytest.mark.timeout(7200)
def test_smollm2_says_what_the_cpu_says() -> None:
    begun = commit()
    folder = fetch("smollm2")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    exact = AutoModelForCausalLM.from_pretrained(folder).eval()
    half = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16).eval()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16).eval().to("spyre")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model.forward = torch.compile(model.forward, dynamic=True)
    rows = []
    start = time.monotonic()
    for prompt in PROMPTS:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            add_generation_prompt=True, return_tensors="pt", return_dict=True,
        )["input_ids"]  # fmt: skip
        expected = reference(exact, half, ids, TOKENS)
        with profile() as measured:
            differing = flips(model, expected)
        rows.append(
            {
                "prompt": prompt,
                "text": tokenizer.decode(expected.ids[0, expected.prompt :]),
                "flips": [{**asdict(flip), "excused": flip.excused} for flip in differing],
                "smallest_gap": float(expected.gaps.min()),
                "largest_error": float(expected.errors.max()),
                "launches": sum(kernel.launches for kernel in measured.kernels),
                "card_us": sum(kernel.microseconds for kernel in measured.kernels),
                "fallbacks": dict(measured.fallbacks),
            }
        )
        print(f"generate: {time.monotonic() - start:.0f} s: {prompt} {differing}", flush=True)
    graphs = int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    found = {
        "weights": SMOLLM2.form, "tokens": TOKENS, "compiled_graphs": graphs, "prompts": rows,
        "host_seconds": time.monotonic() - start,
    }  # fmt: skip
    write_result("generate", found, begun=begun)
    assert all(flip["excused"] for row in rows for flip in row["flips"])
    assert not any(row["fallbacks"] for row in rows)
    assert graphs <= 3
