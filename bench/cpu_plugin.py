"""The plugin for vLLM with a CPU in the place of the card: what serving costs without one.

Scheduler, worker, runner, attention and compile mode are the same; tensors lie in the host's memory
and graphs are compiled by stock Inductor. It is for comparisons only, so nothing registers it.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.utils.mem_utils import MemorySnapshot
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.gpu_worker import init_worker_distributed_environment
from vllm.v1.worker.utils import request_memory

from openspyre.vllm.platform import SpyrePlatform
from openspyre.vllm.worker import SpyreWorker


class CpuPlatform(SpyrePlatform):
    """What vLLM asks of a device, of the CPU."""

    device_name = "cpu"
    device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        super().check_and_update_config(vllm_config)
        vllm_config.parallel_config.worker_cls = "cpu_plugin.CpuWorker"


class CpuWorker(SpyreWorker):
    """The worker with its model on the CPU; memory is still counted on the card, which is idle."""

    def init_device(self) -> None:
        self.device = torch.device("cpu")
        init_worker_distributed_environment(
            self.vllm_config, self.rank, self.distributed_init_method, self.local_rank, "gloo"
        )
        set_random_seed(self.model_config.seed)
        self.init_snapshot = MemorySnapshot(device=torch.device("spyre", 0))
        self.requested_memory = request_memory(self.init_snapshot, self.cache_config)
        self._init_workspace_and_model_runner()

    def _card_meter(self) -> None:
        """There is no card to meter."""
