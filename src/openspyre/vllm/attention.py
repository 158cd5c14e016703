"""vLLM's attention backend for the card: what it can, and a layer's call."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionType, MultipleOf
from vllm.v1.kv_cache_interface import KVCacheLayout

from openspyre.errors import Unsupported
from openspyre.vllm.layouts import keep_layouts
from openspyre.vllm.paged import Form
from openspyre.vllm.steps import SpyreMetadataBuilder, SpyreStep


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


def refuse_terms(alibi_slopes: Any, sinks: Any) -> None:
    """Raises Unsupported for what no attention of the card adds to its scores."""
    if alibi_slopes is not None or sinks is not None:
        what = "ALiBi" if sinks is None else "sinks"
        raise Unsupported(f"attention with {what}", why="the card's attention has no such term")


class SpyreAttention(AttentionImpl[SpyreStep]):
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
        self.ready = False

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: SpyreStep | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        if output_scale is not None or output_block_scale is not None:
            raise Unsupported("an attention output that is quantized")
        if attn_metadata is None:  # a run that only measures memory
            return output.zero_()
        given = (output, query, key, value, kv_cache.transpose(1, 2))
        if not self.ready:  # so that no step makes a graph or a program later, whatever it is
            attn_metadata.make_ready(self.form, given)
            self.ready = True
        for launch in attn_metadata.launches(self.form, given, writes=self.writes):
            launch(*given)
        return output
