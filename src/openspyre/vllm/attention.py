"""vLLM's attention backend for the card: what it can, what a step tells it, a layer's call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import KVCacheLayout

from openspyre.errors import Unsupported
from openspyre.vllm.layouts import keep_layouts
from openspyre.vllm.paged import (
    Form,
    attend,
    decode,
    rectangles,
    write,
    write_and_attend,
    write_and_decode,
)


class SpyreAttentionBackend(AttentionBackend):
    """Paged attention of a decoder, in one launch where one rectangle holds the step."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16"]
    forward_includes_kv_cache_update = True

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[SpyreAttention]:
        return SpyreAttention

    @staticmethod
    def get_builder_cls() -> type[SpyreMetadataBuilder]:
        return SpyreMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(16)]

    @classmethod
    def get_preferred_block_size(cls, default_block_size: int) -> int:
        return max(default_block_size, 64)

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        return (KVCacheLayout.LBNHC,)

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Requests that one launch takes, as views and tables on the card.

    Attributes:
        first, end: of their tokens in the step.
        tables: see `paged.attend`.
        one_each: whether they have one new token each, as `paged.decode` takes them.
    """

    first: int
    end: int
    tables: tuple[Tensor, ...]
    one_each: bool

    @property
    def rows(self) -> tuple[Tensor, ...]:
        """What `paged.decode` takes of the tables."""
        return self.tables[0], self.tables[3]


@dataclass(frozen=True, slots=True)
class SpyreMetadata:
    """What a step tells its attention layers.

    Attributes:
        tokens: how many there are; what lies behind them is padding.
        slots: where each token's keys and values go.
    """

    tokens: int
    slots: Tensor
    rectangles: tuple[Rectangle, ...]


class SpyreMetadataBuilder(AttentionMetadataBuilder[SpyreMetadata]):
    """Makes a step's rectangles from the tables that the host has; waits for nothing."""

    def __init__(self, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1)
        most = vllm_config.scheduler_config.max_num_batched_tokens
        self.numbers = torch.arange(most, dtype=torch.int32, device=device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> SpyreMetadata:
        common = common_attn_metadata
        bounds = common.query_start_loc_cpu.numpy()
        contexts = common.seq_lens_cpu_upper_bound.tolist()
        runs = rectangles(np.diff(bounds).tolist(), contexts)
        made = tuple(self._rectangle(common, bounds, contexts, *run) for run in runs)
        return SpyreMetadata(
            common.num_actual_tokens, common.slot_mapping[: common.num_actual_tokens], made
        )

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
        pages = -(-max(contexts[first:end]) // self.kv_cache_spec.block_size)
        tables = (
            common.block_table_tensor[first:end, :pages],
            common.query_start_loc[first:end],
            common.query_start_loc[first + 1 : end + 1],
            common.seq_lens[first:end],
            self.numbers[:width],
            cells_of(self.numbers, queries),
        )
        one_each = width == 1 and tokens == end - first
        return Rectangle(int(bounds[first]), int(bounds[end]), tables, one_each)


def cells_of(numbers: Tensor, queries: np.ndarray[Any, Any]) -> Tensor:
    """Of each token of a rectangle, its row * the number of columns + its column.

    Args:
        numbers: 0, 1, ... on the card, for as many tokens as there may be.
        queries: new tokens of each row.
    """
    width, tokens = int(queries.max()), int(queries.sum())
    if tokens == width * len(queries):
        return numbers[:tokens]
    behind = np.repeat(np.cumsum(width - queries) - (width - queries), queries)
    return torch.from_numpy((np.arange(tokens) + behind).astype(np.int32)).to(numbers.device)


def refuse_terms(alibi_slopes: Any, sinks: Any) -> None:
    """Raises Unsupported for what no attention of the card adds to its scores."""
    if alibi_slopes is not None or sinks is not None:
        what = "ALiBi" if sinks is None else "sinks"
        raise Unsupported(f"attention with {what}", why="the card's attention has no such term")


class SpyreAttention(AttentionImpl[SpyreMetadata]):
    """One layer's attention."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        refuse_terms(alibi_slopes, sinks)
        keep_layouts()
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.writes = kv_sharing_target_layer_name is None
        self.form = Form(self.scale, sliding_window or 0, logits_soft_cap or 0.0)
        self.prepared = False

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: SpyreMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        if output_scale is not None or output_block_scale is not None:
            raise Unsupported("an attention output that is quantized")
        if attn_metadata is None:  # a run that only measures memory
            return output.zero_()
        tokens = slice(0, attn_metadata.tokens)
        cache, slots = kv_cache.transpose(1, 2), attn_metadata.slots
        new = (key[tokens], value[tokens], cache, slots)
        first, *others = attn_metadata.rectangles
        whole = (output[tokens], query[tokens])
        if not self.prepared:  # so that no step makes a graph later, whatever its rectangles are
            write().prepared(*new)
            write_and_attend(self.form).prepared(*whole, *new, *first.tables)
            attend(self.form).prepared(*whole, cache, *first.tables)
            write_and_decode(self.form).prepared(*whole, *new, *first.rows)
            decode(self.form).prepared(*whole, cache, *first.rows)
            self.prepared = True
        if self.writes and not others:
            if first.one_each:
                write_and_decode(self.form)(*whole, *new, *first.rows)
            else:
                write_and_attend(self.form)(*whole, *new, *first.tables)
            return output
        if self.writes:  # of all tokens first: a request may share the blocks of another
            write()(*new)
        for one in (first, *others):
            tokens = slice(one.first, one.end)
            if one.one_each:
                decode(self.form)(output[tokens], query[tokens], cache, *one.rows)
            else:
                attend(self.form)(output[tokens], query[tokens], cache, *one.tables)
        return output
