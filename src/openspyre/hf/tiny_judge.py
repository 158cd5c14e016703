"""Whether numbers of the card are the CPU's: bounds that come from the CPU's own rounding.

The reference is the CPU in float32. How far the same model is from it on the CPU when it is
rounded (in float16, and in float32 with weights moved by a float16 rounding) says how far a right
run may be. Where that is so much that a wrong result would pass, float16 decides nothing, and
the trial compares in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

FACTOR = 4.0  # a run that sums in another order may be this much further off than the CPU's own
DECIDES = 0.25  # of the reference's spread: a bound beyond it lets wrong numbers pass
SMALLEST = {torch.float16: 4 * 2.0**-11, torch.bfloat16: 4 * 2.0**-8, torch.float32: 1e-4}
Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Allowed:
    """What may differ from the reference.

    Attributes:
        each: largest absolute error, for each tensor.
        decides: a result that is wrong would exceed them.
    """

    each: tuple[float, ...]
    decides: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a comparison found.

    Attributes:
        problem: "" where all is right.
        worst: the largest error, as a share of what was allowed.
    """

    problem: str
    worst: float


def allowed(reference: Tensors, own: Sequence[Tensors], dtype: torch.dtype) -> Allowed:
    """The bounds that runs of the CPU itself, rounded like the card's, give.

    Args:
        own: of each run the tensors, as those of the reference.
    """
    each, decides = [], True
    for i, exact in enumerate(reference):
        there = exact.isfinite()
        size = float(exact[there].abs().max()) if there.any() else 0.0
        error = max((_error(run[i], exact) for run in own), default=0.0)
        bound = max(FACTOR * error, SMALLEST[dtype] * size)
        spread = float(exact[there].std()) if there.sum() > 1 else size
        each.append(bound)
        decides &= math.isfinite(bound) and bound <= max(DECIDES * spread, SMALLEST[dtype] * size)
    return Allowed(tuple(each), decides)


def judged(found: Tensors, reference: Tensors, bounds: Allowed) -> Verdict:
    """Compares tensors; infinities and NaN must stand in the same places."""
    if len(found) != len(reference):
        return Verdict(f"{len(found)} tensors instead of {len(reference)}", math.inf)
    worst = 0.0
    for i, (mine, exact) in enumerate(zip(found, reference, strict=True)):
        if mine.shape != exact.shape:
            return Verdict(
                f"output {i} is {list(mine.shape)} instead of {list(exact.shape)}", math.inf
            )
        error = _error(mine, exact)
        if error > bounds.each[i]:
            return Verdict(
                f"output {i} is off by {error:.3g}, allowed {bounds.each[i]:.3g}",
                error / bounds.each[i] if bounds.each[i] else math.inf,
            )
        worst = max(worst, error / bounds.each[i] if bounds.each[i] else 0.0)
    return Verdict("", worst)


def flipped(found: torch.Tensor, exact: torch.Tensor, own: Sequence[torch.Tensor]) -> list[bool]:
    """Tokens that differ from the reference's, and whether rounding excuses each.

    One is excused where the reference's best two logits are no further apart than what the CPU's
    own rounded runs move the logits of that token by.

    Args:
        found, exact, own: logits [steps, batch, vocabulary].
    """
    differs = found.argmax(-1) != exact.argmax(-1)
    best = exact.topk(2, -1).values
    gap = best[..., 0] - best[..., 1]
    moved = torch.stack([(run - exact).abs().amax(-1) for run in own]).amax(0)
    return [bool(x) for x in (gap <= 2 * moved)[differs]]


def _error(mine: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest difference; infinite where finite stands for not finite, or sizes differ."""
    if mine.shape != exact.shape or not mine.numel():
        return 0.0 if mine.shape == exact.shape else math.inf
    there = exact.isfinite()
    same = (mine == exact) | (mine.isnan() & exact.isnan())
    if not bool(same[~there].all()) or not bool(mine[there].isfinite().all()):
        return math.inf
    return float((mine - exact)[there].abs().max()) if there.any() else 0.0
