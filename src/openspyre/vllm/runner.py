"""The model runner: vLLM's own, without what asks for CUDA."""

from __future__ import annotations

import torch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner


class SpyreModelRunner(GPUModelRunner):
    """Runs steps of a model on one card."""

    def _init_device_properties(self) -> None:
        self.num_sms = torch.spyre.get_device_properties(self.device).multi_processor_count
