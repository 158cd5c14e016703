"""Embeddings, heads and logits in plain PyTorch, whole or cut over the cards of a group."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.distributed import (
    tensor_model_parallel_all_gather,
    tensor_model_parallel_all_reduce,
    tensor_model_parallel_gather,
)


class Embedding(nn.Module):
    """Rows of a table; a card has those of `shard_indices`, of others it gives zeros to the sum."""

    weight: Tensor
    quant_method: Any
    shard_indices: Any
    tp_size: int
    reduce_results: bool
    parallel_group: Any

    def forward(self, ids: Tensor) -> Tensor:
        if self.tp_size == 1:
            return self._rows(ids)
        places, here = self._placed(ids)
        rows = self._rows(places)
        rows = torch.where(here.unsqueeze(-1), rows, torch.zeros_like(rows))
        if not self.reduce_results:
            return rows
        if self.parallel_group is not None:
            total: Tensor = self.parallel_group.all_reduce(rows)
        else:
            total = tensor_model_parallel_all_reduce(rows)
        return total

    def _rows(self, places: Tensor) -> Tensor:
        rows: Tensor = self.quant_method.embedding(self, places)
        return rows

    def _placed(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Where this card keeps each token's row, and whether it has one; 0 where not."""
        own = self.shard_indices
        first, added = own.org_vocab_start_index, own.added_vocab_start_index
        plain = (ids >= first) & (ids < own.org_vocab_end_index)
        later = (ids >= added) & (ids < own.added_vocab_end_index)
        behind = own.org_vocab_end_index - first + own.num_org_vocab_padding - added
        places = torch.where(plain, ids - first, torch.where(later, ids + behind, 0))
        return places, plain | later


class Head(nn.Module):
    """The linear that makes logits; a card has some tokens' rows."""

    weight: Tensor
    bias: Tensor | None
    quant_method: Any

    def forward(self, hidden: Tensor, bias: Tensor | None = None) -> Tensor:
        """This card's share of the logits."""
        share: Tensor = self.quant_method.apply(self, hidden, bias=bias)
        return share


class Logits(nn.Module):
    """Logits of the whole vocabulary, capped and scaled."""

    scale: float
    soft_cap: float | None
    logits_as_input: bool
    org_vocab_size: int
    use_all_gather: bool
    head_dtype: torch.dtype | None

    def forward(
        self,
        lm_head: Any,
        hidden_states: Tensor,
        embedding_bias: Tensor | None = None,
        skip_gather: bool = False,
    ) -> Tensor | None:
        if self.logits_as_input:
            logits: Tensor | None = hidden_states
        else:
            logits = self._get_logits(hidden_states, lm_head, embedding_bias, skip_gather)
        if logits is None:  # another card has them
            return None
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return logits if self.scale == 1.0 else logits * self.scale

    def _get_logits(
        self,
        hidden_states: Tensor,
        lm_head: Any,
        embedding_bias: Tensor | None,
        skip_gather: bool = False,
    ) -> Tensor | None:
        logits: Tensor | None = self._share(lm_head, hidden_states, embedding_bias)
        if skip_gather:
            return logits
        if lm_head.tp_size > 1:
            whole = tensor_model_parallel_all_gather
            logits = (whole if self.use_all_gather else tensor_model_parallel_gather)(logits)
        return None if logits is None else logits[..., : self.org_vocab_size]

    def _share(self, lm_head: Any, hidden: Tensor, bias: Tensor | None) -> Tensor:
        wanted = self.head_dtype or hidden.dtype
        if wanted == hidden.dtype:
            share: Tensor = lm_head.quant_method.apply(lm_head, hidden, bias=bias)
            return share
        bias = None if bias is None else bias.to(wanted)
        return F.linear(hidden.to(wanted), lm_head.weight.to(wanted), bias)
