"""Drafts of n-grams, and which of them are accepted, against plain Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from openspyre.vllm.drafts import continuation
from openspyre.vllm.rejection import (
    expand_kernel,
    greedy_kernel,
    random_kernel,
    recovered_kernel,
)

VOCABULARY = 37
DRAFTS = ([2, 0, 3], [1], [0, 0, 4, 4, 1], [3, 3], [0, 0])


@pytest.mark.parametrize(
    ("tokens", "wanted"),
    [
        ([1, 2, 3, 9, 1, 2, 3], [9, 1]),
        ([5, 2, 3, 9, 1, 2, 3], [9, 1]),  # a shorter ending
        ([1, 2, 8, 1, 2, 9, 1, 2], [8, 1]),  # the first place
        ([4, 4, 4], [4]),
        ([1, 2, 3, 4], []),
        ([1], []),
        ([], []),
    ],
)
def test_what_followed_the_longest_ending(tokens: list[int], wanted: list[int]) -> None:
    found = continuation(np.array(tokens, np.int32), 1, 3, 2)
    assert found.tolist() == wanted
    if len(tokens) == 7:
        assert (not len(continuation(np.array(tokens, np.int32), 3, 3, 2))) == (tokens[0] == 5)


def said(
    out: Tensor, counts: list[int], accepted: Tensor, tokens: Tensor, bonus: Tensor, rows: Tensor
) -> Tensor:
    """The output of `rows`, draft by draft."""
    out, behind = out.clone(), 0
    for row, count in enumerate(counts):
        begin, behind = behind, behind + count
        if not rows[row]:
            continue
        for place in range(count):
            out[row, place] = tokens[begin + place]
            if not accepted[begin + place]:
                break
        else:
            out[row, count] = bonus[row, 0]
    return out


@pytest.mark.parametrize("counts", DRAFTS)
def test_drafts_up_to_the_first_rejected_one(counts: list[int]) -> None:
    generator = torch.Generator().manual_seed(len(counts))
    ends, most = torch.tensor(counts).cumsum(0).int(), max(counts)
    number, rows = sum(counts), len(counts)
    drafts = torch.randint(0, 3, (number,), generator=generator).int()
    best = torch.randint(0, 3, (number,), generator=generator)
    bonus = torch.arange(rows)[:, None] + 50
    chosen = torch.rand(rows, generator=generator) > 0.5
    untouched = torch.full((rows, most + 1), -1).int()
    card = [tensor.to("spyre") for tensor in (ends, drafts, best, bonus)]
    for mask in (None, chosen):
        out = untouched.to("spyre")
        greedy_kernel(
            out, *card, None if mask is None else mask.to("spyre"), most, None, None, False
        )
        written = torch.ones(rows, dtype=torch.bool) if mask is None else mask
        assert torch.equal(out.cpu(), said(untouched, counts, drafts == best, best, bonus, written))

    of_rows = torch.repeat_interleave(torch.arange(rows), torch.tensor(counts))
    places = torch.arange(number)
    probabilities = torch.randn(number, VOCABULARY, generator=generator).mul(3).softmax(-1)
    probabilities[:, 2] = 0
    inverses = torch.rand(rows, VOCABULARY, generator=generator) + 0.1
    drawn = torch.zeros(number).int().to("spyre")
    of_card = [tensor.to("spyre") for tensor in (probabilities, inverses)]
    recovered_kernel(drawn, *card[:2], None, *of_card, VOCABULARY, 8192, True, False)
    others = probabilities.clone()
    others[places, drafts.long()] = 0
    instead = (others * inverses[of_rows]).argmax(-1) if number else places
    assert torch.equal(drawn.cpu().long(), instead)

    uniform = torch.rand(number, dtype=torch.float64, generator=generator)
    uniform[::3] = 0  # as float32 may have it: what is impossible stays so
    p = probabilities[places, drafts.long()]
    accepted = (p > 0) & (p >= uniform)
    out = untouched.to("spyre")
    random_kernel(
        out, *card[:2], None, of_card[0], card[3], drawn, uniform.to("spyre"), chosen.to("spyre"),
        most, VOCABULARY, None, True, False,
    )  # fmt: skip
    tokens = torch.where(accepted, drafts.long(), instead)
    assert torch.equal(out.cpu(), said(untouched, counts, accepted, tokens, bonus, ~chosen))

    values = torch.tensor([0.0, 0.5, 2, 0, 1])[:rows]
    for kind in (torch.float32, torch.int64):
        of_kind = values.to(kind)
        repeated = torch.empty(number, dtype=kind).to("spyre")
        expand_kernel(repeated, of_kind.to("spyre"), card[0], 0, 1, 128)
        assert torch.equal(repeated.cpu(), torch.where(of_kind == 0, 1, of_kind)[of_rows])
