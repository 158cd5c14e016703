"""What a step tells its attention layers, and the launches that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionMetadataBuilder, CommonAttentionMetadata

from openspyre.vllm.paged import Form, rectangles, write_and_attend, write_and_decode
from openspyre.vllm.size_boxes import Limits, attend_boxes, decode_boxes

Given = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""A layer's output, query, key, value and cache."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Requests that one launch takes, as views and tables on the card.

    Attributes:
        tokens: theirs in the step.
        tables: see `paged.write_and_attend`.
        one_each: whether they have one new token each, as `paged.write_and_decode` takes them.
    """

    tokens: slice
    tables: tuple[Tensor, ...]
    one_each: bool

    @property
    def rows(self) -> tuple[Tensor, ...]:
        """What `paged.write_and_decode` takes of the tables."""
        return self.tables[0], self.tables[3]


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a step, the same for all layers whose tensors have one form.

    Attributes:
        tokens: those that attend.
        written: those whose keys and values are written, to `slots`.
    """

    graph: Callable[..., Any]
    tokens: slice
    written: slice
    slots: Tensor
    tables: tuple[Tensor, ...]

    def __call__(self, *given: Tensor) -> None:
        self.graph(*self.arguments(*given))

    def arguments(
        self, out: Tensor, query: Tensor, key: Tensor, value: Tensor, cache: Tensor
    ) -> tuple[Tensor, ...]:
        """What the graph takes of a layer's tensors and of the step's."""
        of, new = self.tokens, self.written
        return out[of], query[of], key[new], value[new], cache, self.slots, *self.tables


@dataclass(frozen=True, slots=True)
class SpyreStep:
    """What a step tells its attention layers.

    Attributes:
        tokens: all of them; what lies behind them is padding.
        slots: where each token's keys and values go.
        nowhere: the slot of a token that is not written.
    """

    tokens: slice
    slots: Tensor
    nowhere: Tensor
    rectangles: tuple[Rectangle, ...]
    limits: Limits
    _launches: dict[object, tuple[Launch, ...]] = field(default_factory=dict)

    def launches(self, form: Form, given: Given, *, writes: bool) -> tuple[Launch, ...]:
        """The launches of a layer; the first layer whose tensors have these forms makes them.

        Args:
            writes: whether keys and values are written, or another layer has done so.
        """
        forms = (form, writes, *((x.shape, x.stride(), x.dtype) for x in given))
        found = self._launches.get(forms)
        if found is None:
            found = self._launches[forms] = tuple(self._made(form, given, writes))
        return found

    def make_ready(self, form: Form, given: Given) -> None:
        """Makes the graphs and programs of a layer for all steps within the limits."""
        one, blocks = self.rectangles[0], given[-1].shape[0]
        for graph, tables, boxes in (
            (write_and_attend(form), one.tables, attend_boxes(self.limits, blocks)),
            (write_and_decode(form), one.rows, decode_boxes(self.limits, blocks)),
        ):
            launch = Launch(graph, self.tokens, self.tokens, self.slots, tables)
            graph.make_ready(boxes, *launch.arguments(*given))

    def _made(self, form: Form, given: Given, writes: bool) -> Iterator[Launch]:
        for number, one in enumerate(self.rectangles):
            graph = write_and_decode(form) if one.one_each else write_and_attend(form)
            written, slots = slice(0, 1), self.nowhere
            if writes and not number:  # of all tokens: a request may share blocks of another one
                written, slots = self.tokens, self.slots
            tables = one.rows if one.one_each else one.tables
            launch = Launch(graph, one.tokens, written, slots, tables)
            yield replace(launch, graph=graph.prepared(*launch.arguments(*given)))


class SpyreMetadataBuilder(AttentionMetadataBuilder[SpyreStep]):
    """Makes a step's rectangles from the tables that the host has; waits for nothing."""

    def __init__(self, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1)
        chosen = vllm_config.scheduler_config
        self.limits = Limits(
            chosen.max_num_seqs, chosen.max_num_batched_tokens,
            vllm_config.model_config.max_model_len, kv_cache_spec.block_size,
        )  # fmt: skip
        most = max(self.limits.tokens, 2)
        self.numbers = torch.arange(most, dtype=torch.int32, device=device)
        self.nowhere = torch.full((1,), -1, dtype=torch.int64, device=device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> SpyreStep:
        common = common_attn_metadata
        bounds = common.query_start_loc_cpu.numpy()
        contexts = common.seq_lens_cpu_upper_bound.tolist()
        runs = rectangles(np.diff(bounds).tolist(), contexts, self.limits.tokens)
        made = tuple(self._rectangle(common, bounds, contexts, *run) for run in runs)
        tokens = slice(0, common.num_actual_tokens)
        return SpyreStep(tokens, common.slot_mapping[tokens], self.nowhere, made, self.limits)

    def _rectangle(
        self,
        common: CommonAttentionMetadata,
        bounds: np.ndarray[Any, Any],
        contexts: list[int],
        first: int,
        end: int,
    ) -> Rectangle:
        queries = np.diff(bounds[first : end + 1])
        width, tokens = int(queries.max()), int(queries.sum())
        one_each = width == 1 and tokens == end - first
        width = width if one_each else max(width, 2)  # a program of rectangles has two and more
        pages = -(-max(contexts[first:end]) // self.kv_cache_spec.block_size)
        tables = (
            common.block_table_tensor[first:end, :pages],
            common.query_start_loc[first:end],
            common.query_start_loc[first + 1 : end + 1],
            common.seq_lens[first:end],
            self.numbers[:width],
            cells_of(self.numbers, queries, width),
        )
        return Rectangle(slice(int(bounds[first]), int(bounds[end])), tables, one_each)


def cells_of(numbers: Tensor, queries: np.ndarray[Any, Any], width: int) -> Tensor:
    """Of each token of a rectangle, its row * the number of columns + its column.

    Args:
        numbers: 0, 1, ... on the card, for as many tokens as there may be.
        queries: new tokens of each row.
        width: the number of columns.
    """
    tokens = int(queries.sum())
    if tokens == width * len(queries):
        return numbers[:tokens]
    behind = np.repeat(np.cumsum(width - queries) - (width - queries), queries)
    return torch.from_numpy((np.arange(tokens) + behind).astype(np.int32)).to(numbers.device)
