"""The worker: one process's card, its model and its share of the cache."""

from __future__ import annotations

import gc
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.utils.mem_utils import MemorySnapshot
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment
from vllm.v1.worker.utils import request_memory
from vllm.v1.worker.worker_base import CompilationTimes

from openspyre.errors import Unsupported
from openspyre.vllm.rehearsal import Rehearsal
from openspyre.vllm.runner import SpyreModelRunner
from openspyre.vllm.step_record import CardMeter


class SpyreWorker(Worker):
    """vLLM's worker on a card."""

    meter: CardMeter | None = None  # once it is ready

    def init_device(self) -> None:
        count = torch.accelerator.device_count()
        if self.local_rank >= count:
            raise Unsupported(
                f"worker {self.local_rank} has no card: there are {count}",
                hint=f"OPENSPYRE_DEVICES={self.local_rank + 1}",
            )
        index = current_platform.logical_device_id_to_visible_device_id(self.local_rank)
        self.device = torch.device("spyre", index)
        torch.accelerator.set_device_index(index)
        current_platform.check_if_supports_dtype(self.model_config.dtype)
        init_worker_distributed_environment(
            self.vllm_config, self.rank, self.distributed_init_method, self.local_rank,
            current_platform.dist_backend,
        )  # fmt: skip
        set_random_seed(self.model_config.seed)
        gc.collect()
        torch.accelerator.empty_cache()
        self.init_snapshot = MemorySnapshot(device=self.device)
        self.requested_memory = request_memory(self.init_snapshot, self.cache_config)
        self._init_workspace_and_model_runner()

    def execute_model(self, scheduler_output: Any) -> Any:
        result = super().execute_model(scheduler_output)
        if result is not None and scheduler_output.total_num_scheduled_tokens and self.meter:
            self.meter.step_ended()  # there is nothing to sample
        return result

    def sample_tokens(self, grammar_output: Any) -> Any:
        result = super().sample_tokens(grammar_output)
        if self.meter:
            self.meter.step_ended()
        return result

    def shutdown(self) -> None:
        if self.meter:
            self.meter.close()
        super().shutdown()

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[None]:
        return nullcontext()

    def _make_model_runner(self) -> SpyreModelRunner:
        return SpyreModelRunner(self.vllm_config, self.device)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Runs the kinds of steps that requests ask for, and goes through all sizes that they may
        have, so that graphs and programs are made before."""
        begin = time.monotonic()
        runner, chosen = self.model_runner, self.scheduler_config
        requests = min(chosen.max_num_seqs, chosen.max_num_batched_tokens)
        for tokens in dict.fromkeys((chosen.max_num_batched_tokens, requests, 1)):
            decodes = tokens <= requests
            _, last = runner._dummy_run(tokens, force_attention=True, uniform_decode=decodes)
            if decodes and not runner.is_pooling_model:
                runner._dummy_sampler_run(hidden_states=last)
        Rehearsal(self).run()
        set_random_seed(self.model_config.seed)
        torch.accelerator.synchronize()
        self.meter = CardMeter(self.vllm_config.instance_id, self.device, self.rank)
        self.compilation_config.compilation_time += time.monotonic() - begin
        return CompilationTimes(
            language_model=self.compilation_config.compilation_time,
            encoder=self.compilation_config.encoder_compilation_time,
        )
