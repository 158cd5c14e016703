"""Attention of models that keep no cache: every token of a request sees all of them.

Requests lie behind each other in the tokens of a step, whole. A launch takes a rectangle of them,
as in `paged`: what lies behind a request's last token is masked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
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
)

from openspyre.errors import Unsupported
from openspyre.vllm.attention import refuse_terms
from openspyre.vllm.layouts import keep_layouts
from openspyre.vllm.one_graph import OneGraph, one_graph
from openspyre.vllm.paged import Form, rectangles, weighted
from openspyre.vllm.size_boxes import Limits, whole_boxes
from openspyre.vllm.steps import cells_of

_TOKENS = ("tokens", None, None)


@cache
def attend_whole(form: Form) -> OneGraph:
    """Attends among the tokens of each row; a window of the form reaches to both sides.

    Arguments: out, query, key, value `[token, head, depth]`, starts and ends (of each row's tokens,
    the first row's start is the first token), columns (0, 1, ...), cells (of each token, row *
    number of columns + column).
    """

    def graph(
        out: Tensor, query: Tensor, key: Tensor, value: Tensor, starts: Tensor, ends: Tensor,
        columns: Tensor, cells: Tensor,
    ) -> None:  # fmt: skip
        tokens = ((starts - starts[:1])[:, None] + columns).clamp(max=query.shape[0] - 1)
        q, k, v = (x[tokens].transpose(1, 2) for x in (query, key, value))
        real = columns < (ends - starts)[:, None]
        # Columns behind a row's last token hold another's values: they must not be added, NaN.
        v = torch.where(real[:, None, :, None], v, 0)
        seen = real[:, None, :]
        if form.window:
            seen = seen & ((columns[:, None] - columns).abs() < form.window)
        whole = weighted(form, q, k, v, seen[:, None])
        out.copy_(whole.transpose(1, 2).flatten(0, 1)[cells])

    rows = (("rows",), ("rows",), ("columns",), ("tokens",))
    return one_graph(graph, *(_TOKENS,) * 4, *rows)


@dataclass(frozen=True, slots=True)
class WholeRectangle:
    """Requests that one launch takes: of their tokens the first and the end, and the tables."""

    first: int
    end: int
    tables: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class EncoderMetadata:
    """What a step tells its attention layers."""

    rectangles: tuple[WholeRectangle, ...]
    limits: Limits


class EncoderMetadataBuilder(AttentionMetadataBuilder[EncoderMetadata]):
    """Makes a step's rectangles from the tables that the host has; waits for nothing."""

    def __init__(self, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        chosen = vllm_config.scheduler_config
        self.limits = Limits(
            chosen.max_num_seqs, chosen.max_num_batched_tokens,
            vllm_config.model_config.max_model_len, kv_cache_spec.block_size,
        )  # fmt: skip
        self.numbers = torch.arange(self.limits.tokens, dtype=torch.int32, device=device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> EncoderMetadata:
        common = common_attn_metadata
        bounds = common.query_start_loc_cpu.numpy()
        lengths = np.diff(bounds).tolist()
        runs = rectangles(lengths, lengths, self.limits.tokens)
        made = tuple(self._rectangle(common, bounds, *run) for run in runs)
        return EncoderMetadata(made, self.limits)

    def _rectangle(
        self, common: CommonAttentionMetadata, bounds: np.ndarray[Any, Any], first: int, end: int
    ) -> WholeRectangle:
        lengths = np.diff(bounds[first : end + 1])
        width = int(lengths.max())
        starts, ends = (common.query_start_loc[first + n : end + n] for n in (0, 1))
        tables = (starts, ends, self.numbers[:width], cells_of(self.numbers, lengths, width))
        return WholeRectangle(int(bounds[first]), int(bounds[end]), tables)


class EncoderAttention(AttentionImpl[EncoderMetadata]):
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
        attn_type: str = AttentionType.ENCODER_ONLY,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        refuse_terms(alibi_slopes, sinks)
        keep_layouts()
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.form = Form(self.scale, sliding_window or 0, logits_soft_cap or 0.0)
        self.ready = False

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: EncoderMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        if output_scale is not None or output_block_scale is not None:
            raise Unsupported("an attention output that is quantized")
        if attn_metadata is None:  # a run that only measures memory
            return output.zero_()
        graph, given = attend_whole(self.form), (output, query, key, value)
        for one in attn_metadata.rectangles:
            parts = (*(x[one.first : one.end] for x in given), *one.tables)
            if not self.ready:  # so that no step makes a graph or a program later, whatever it is
                graph.make_ready(whole_boxes(attn_metadata.limits), *parts)
                self.ready = True
            graph(*parts)
        return output


class EncoderBackend(AttentionBackend):
    """Attention without a cache, one launch for a rectangle of requests."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[EncoderAttention]:
        return EncoderAttention

    @staticmethod
    def get_builder_cls() -> type[EncoderMetadataBuilder]:
        return EncoderMetadataBuilder

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return bool(attn_type == AttentionType.ENCODER_ONLY)

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True
