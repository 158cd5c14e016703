"""The model runner: vLLM's own, but for masks of grammars."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from openspyre.vllm.grammar import mask_logits


class SpyreModelRunner(GPUModelRunner):
    """Runs steps of a model on one card."""

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Samples; the mask of a grammar is ours, vLLM's would be compiled for this device."""
        if grammar_output is not None and self.execute_model_state is not None:
            mask_logits(
                self.execute_model_state.logits,
                grammar_output.grammar_bitmask,
                grammar_output.structured_output_request_ids,
                self.input_batch.req_id_to_index,
            )
            grammar_output = None
        return super().sample_tokens(grammar_output)
