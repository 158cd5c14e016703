"""Greedy tokens of a model on the card against the CPU's, position by position.

A token may differ only where float16 itself leaves it open: where the CPU's best two logits in
float32 are no further apart than the CPU's own float16 run is from them at that position. The
comparison then goes on behind the CPU's token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Flip:
    """A token that is another one on the card.

    Attributes:
        gap: between the CPU's best two logits, float32.
        error: the largest difference of its float16 logits from them.
    """

    position: int
    gap: float
    error: float

    @property
    def excused(self) -> bool:
        return self.gap <= self.error


@dataclass(frozen=True, slots=True)
class Reference:
    """What the CPU generates from a prompt.

    Attributes:
        ids: prompt and tokens [1, n], int64.
        prompt: how many are the prompt's.
        gaps, errors: for each token, as in Flip.
    """

    ids: torch.Tensor
    prompt: int
    gaps: torch.Tensor
    errors: torch.Tensor


def reference(exact: Any, half: Any, prompt: torch.Tensor, count: int) -> Reference:
    """The CPU's tokens in float32, and how far its float16 logits are from them."""
    with torch.inference_mode():
        ids = generated(exact, prompt, count)
        begin = prompt.shape[1]
        logits = exact(ids).logits[0, begin - 1 : -1].float()
        error = (half(ids).logits[0, begin - 1 : -1].float() - logits).abs().amax(1)
    best = logits.topk(2).values
    return Reference(ids, begin, best[:, 0] - best[:, 1], error)


def generated(model: Any, ids: torch.Tensor, count: int) -> torch.Tensor:
    """Exactly `count` tokens behind a prompt, on the CPU whatever the model's device."""
    there = ids.to(model.device)
    made = model.generate(
        input_ids=there, attention_mask=torch.ones_like(there), do_sample=False,
        max_new_tokens=count, min_new_tokens=count,
    )  # fmt: skip
    return made.cpu()


def flips(model: Any, expected: Reference) -> list[Flip]:
    """Where the model's greedy tokens differ; ends at the first flip that is not excused."""
    found: list[Flip] = []
    at, end = expected.prompt, expected.ids.shape[1]
    while at < end:
        got = generated(model, expected.ids[:, :at], end - at)
        differs = (got[0, at:] != expected.ids[0, at:]).nonzero()
        if not len(differs):
            break
        first = at + int(differs[0])
        i = first - expected.prompt
        found.append(Flip(i, float(expected.gaps[i]), float(expected.errors[i])))
        if not found[-1].excused:
            break
        at = first + 1
    return found
