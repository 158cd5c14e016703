"""What transformers generates on the CPU, in a process of its own: vLLM changes its classes.

python -m tests.serve.reference FOLDER... prints, per model, for each prompt its greedy tokens and
how far each of them is ahead of the second.
"""

from __future__ import annotations

import json
import sys

import torch
from transformers import AutoModelForCausalLM

from tests.serve.tiny import prompts

NEW_TOKENS = 12


def generated(model: torch.nn.Module, prompt: list[int]) -> tuple[list[int], list[float]]:
    tokens, ahead = list(prompt), []
    for _ in range(NEW_TOKENS):
        logits = model(torch.tensor([tokens])).logits[0, -1].float()
        first, second = logits.topk(2).values.tolist()
        tokens.append(int(logits.argmax()))
        ahead.append(first - second)
    return tokens[len(prompt) :], ahead


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)  # models so small are slower with more
    results = []
    for folder in sys.argv[1:]:
        model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
        results.append([generated(model, prompt) for prompt in prompts()])
    print(json.dumps(results))
