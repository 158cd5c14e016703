"""Drafts of speculation: what followed the last few tokens when a request had them before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from vllm.config import VllmConfig

Tokens = np.ndarray[Any, np.dtype[np.int32]]


def continuation(tokens: Tokens, shortest: int, longest: int, most: int) -> Tokens:
    """The tokens, at most so many, behind the first place that ends as all tokens end.

    The longest ending counts, of `shortest` to `longest` tokens; empty if none has been before.
    """
    for length in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        windows = np.lib.stride_tricks.sliding_window_view(tokens[:-1], length)
        found = np.flatnonzero((windows == tokens[-length:]).all(1))
        if len(found):
            behind = int(found[0]) + length
            return tokens[behind : behind + most]
    return tokens[:0]


class NgramDrafts:
    """What vLLM's runner asks for drafts; it needs no compiler of its own, as vLLM's does."""

    def __init__(self, config: VllmConfig) -> None:
        chosen = config.speculative_config
        if chosen is None or not chosen.prompt_lookup_min or not chosen.prompt_lookup_max:
            raise ValueError("n-gram drafts without lengths of n-grams")
        self.shortest, self.longest = chosen.prompt_lookup_min, chosen.prompt_lookup_max
        self.most = chosen.num_speculative_tokens
        self.model_length = config.model_config.max_model_len

    def load_model(self, *arguments: Any, **others: Any) -> None:
        """Nothing: there is no model."""

    def propose(
        self,
        sampled: list[list[int]],
        counts: np.ndarray[Any, Any],
        tokens: Tokens,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Drafts for each request; none where it is still in its prompt.

        Args:
            sampled: the tokens of this step of each request.
            counts: how many tokens each request has now.
            tokens: of each request, in rows.
        """
        made: list[list[int]] = []
        for row, (new, count) in enumerate(zip(sampled, counts.tolist(), strict=False)):
            most = min(self.most, self.model_length - count)
            known = tokens[row, :count]
            asked = bool(new) and most > 0
            made.append(
                continuation(known, self.shortest, self.longest, most).tolist() if asked else []
            )
        return made
