"""The model runner: vLLM's own, but for what it asks of CUDA or leaves open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from openspyre.vllm.grammar import mask_logits
from openspyre.vllm.refusals import refuse_pooling


@contextmanager
def streams_of(device: torch.device) -> Iterator[None]:
    """Streams that are asked of CUDA are the card's meanwhile."""
    theirs = torch.cuda.Stream
    setattr(torch.cuda, "Stream", partial(torch.Stream, device=device))  # noqa: B010 - a class
    try:
        yield
    finally:
        setattr(torch.cuda, "Stream", theirs)  # noqa: B010


class SpyreModelRunner(GPUModelRunner):
    """Runs steps of a model on one card."""

    num_prompt_logprobs: dict[str, int]

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        with streams_of(device):
            super().__init__(vllm_config, device)

    def load_model(self, *args: Any, **options: Any) -> None:
        super().load_model(*args, **options)
        if self.is_pooling_model:
            tasks = tuple(self.get_supported_pooling_tasks())
            refuse_pooling(self.model_config.get_pooling_task(tasks))

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Samples; the mask of a grammar is ours, vLLM's would be compiled for this device."""
        state = self.execute_model_state
        if grammar_output is not None and state is not None:
            mask_logits(
                state.logits,
                grammar_output.grammar_bitmask,
                grammar_output.structured_output_request_ids,
                self.input_batch.req_ids,
                state.scheduler_output.scheduled_spec_decode_tokens,
            )
            grammar_output = None
        return super().sample_tokens(grammar_output)

    def _get_prompt_logprobs_dict(self, hidden_states: Any, num_scheduled_tokens: Any) -> Any:
        """Log-probabilities of prompts, one request after the other.

        All rows of logits are of one request then; an adapter of the head would take them for rows
        of as many requests.
        """
        wanted: dict[str, int] = self.num_prompt_logprobs
        if self.lora_config is None or not wanted:
            return super()._get_prompt_logprobs_dict(hidden_states, num_scheduled_tokens)
        found: dict[str, Any] = {}
        batch = self.input_batch
        for request in [name for name in wanted if name in num_scheduled_tokens]:
            adapter = int(batch.request_lora_mapping[batch.req_id_to_index[request]])
            rows = (adapter,) * num_scheduled_tokens[request]
            self._set_active_loras(rows, rows, set(batch.lora_id_to_lora_request.values()))
            self.num_prompt_logprobs = {request: wanted[request]}
            found |= super()._get_prompt_logprobs_dict(hidden_states, num_scheduled_tokens)
            if not self.num_prompt_logprobs:
                del wanted[request]
        self.num_prompt_logprobs = wanted
        return found

    def _copy_draft_token_ids_to_cpu(self, scheduler_output: Any, zeros_only: bool = False) -> None:
        """Notes whose drafts the next step may take; the host has them already.

        Where a request is about to reach the model's length, vLLM writes zeros by a stream of
        CUDA's for no drafts; here there are none.
        """
        if zeros_only:
            self._draft_token_ids: list[list[int]] = [[] for _ in self.input_batch.req_ids]
        super()._copy_draft_token_ids_to_cpu(scheduler_output)
