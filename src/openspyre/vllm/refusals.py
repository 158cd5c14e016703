"""What cannot be served is refused when vLLM starts, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from openspyre.errors import Unsupported
from openspyre.settings import settings

if TYPE_CHECKING:
    from vllm.config import ParallelConfig, VllmConfig

POOLED = ("embed", "classify")


def refuse_unsupported(config: VllmConfig) -> None:
    """Raises Unsupported for the first thing that a configuration asks for and cannot have."""
    for what, why, hint in _refusals(config):
        raise Unsupported(what, why=why, hint=hint)
    if config.model_config is not None and config.model_config.pooler_config is not None:
        refuse_pooling(config.model_config.pooler_config.task)


def _refusals(config: VllmConfig) -> Iterator[tuple[str, str, str]]:
    parallel, model = config.parallel_config, config.model_config
    yield from _of_cards(parallel)
    if parallel.enable_expert_parallel:
        yield "expert parallelism", "experts are not spread over cards", "leave the option out"
    if model is not None and model.is_moe:
        why = "vLLM routes tokens to experts by compiled code, which the card does not have"
        yield "a mixture of experts", why, "a dense model"
    if config.lora_config is not None:
        yield from _of_adapters(parallel)
    drafts = config.speculative_config
    if drafts is not None and drafts.method not in ("ngram", "custom_class"):
        hint = '"method": "ngram"'
        yield f"speculation by {drafts.method}", "the plugin drafts from what was said only", hint
    if drafts is not None and drafts.rejection_sample_method != "standard":
        what = f"{drafts.rejection_sample_method} acceptance of drafts"
        yield what, "drafts are accepted one by one", "leave the option out"
    if (kind := config.cache_config.cache_dtype) not in ("auto", "float16", "bfloat16"):
        why = "attention reads keys and values as they are stored, without scales"
        yield f"a cache in {kind}", why, "leave --kv-cache-dtype out"
    attention = config.attention_config
    for backend in (attention.backend, *attention.backend_per_kind.values()):
        if backend is not None and backend.name != "CUSTOM":
            why = "the card has one attention, which the plugin brings"
            yield f"the attention backend {backend.name}", why, "leave --attention-backend out"
    if config.kv_transfer_config is not None:
        yield "KV transfer", "no connector has been tried", "leave the option out"
    if model is not None and model.enable_sleep_mode:
        yield "sleep mode", "device memory cannot be set aside", "leave the option out"
    if model is not None and model.quantization is not None:
        why = "there is no kernel for its layers"
        yield f"{model.quantization} quantization", why, "serve the model in 16 bits"


def refuse_pooling(task: str | None) -> None:
    """Raises Unsupported where a model would give something else than one vector for a request.

    Called again once the model is loaded, which decides where no task is asked for.
    """
    if task not in (None, *POOLED):
        raise Unsupported(
            f"the pooling task {task}",
            why="what a model gives for each token has not been tried on the card",
            hint=f"""--pooler-config '{{"task": "{POOLED[0]}"}}' where the model can""",
        )


def _of_adapters(parallel: ParallelConfig) -> Iterator[tuple[str, str, str]]:
    if parallel.tensor_parallel_size > 1:
        hint = "one card, or merge the adapter into the model"
        yield "LoRA adapters over several cards", "their layers are not split", hint


def _of_cards(parallel: ParallelConfig) -> Iterator[tuple[str, str, str]]:
    cards, wanted = settings().devices, parallel.tensor_parallel_size
    if wanted > cards:
        why = f"OPENSPYRE_DEVICES is {cards}"
        yield f"tensor parallelism over {wanted} cards", why, f"OPENSPYRE_DEVICES={wanted}"
    for name, size in (
        ("pipeline", parallel.pipeline_parallel_size),
        ("data", parallel.data_parallel_size),
        ("context", parallel.decode_context_parallel_size),
        ("context", parallel.prefill_context_parallel_size),
    ):
        if size > 1:
            hint = "--tensor-parallel-size, or a server for each card with a router before them"
            yield f"{name} parallelism over {size} cards", "only layers are split over cards", hint
    if parallel.nnodes > 1:
        why = "the cards of a model are in one machine"
        yield f"a model on {parallel.nnodes} machines", why, "a server for each machine"
    backend = parallel.distributed_executor_backend
    if backend not in (None, "mp", "uni"):
        why = "each card has a process that vLLM starts itself"
        yield f"workers by {backend}", why, "leave --distributed-executor-backend out"
