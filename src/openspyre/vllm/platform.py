"""What vLLM asks of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.platforms.interface import Platform, PlatformEnum

from openspyre.device import memory, random, streams
from openspyre.errors import Unsupported
from openspyre.settings import hand_down
from openspyre.vllm.refusals import refuse_unsupported

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_ATTENTION = "openspyre.vllm.attention.SpyreAttentionBackend"


class SpyrePlatform(Platform):
    """Cards named "spyre"."""

    _enum = PlatformEnum.OOT
    device_name = "spyre"
    device_type = "spyre"
    dispatch_key = "PrivateUse1"
    dist_backend = "cpu:gloo,spyre:spyreccl"
    simple_compile_backend = "eager"
    # vLLM takes an empty list for "any"; this one has what no model asks for.
    supported_quantization: list[str] = ["none"]  # noqa: RUF012 - vLLM's own type

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16, torch.float32]

    @classmethod
    def get_compile_backend(cls) -> str:
        return "inductor"

    @classmethod
    def import_kernels(cls) -> None:
        """Nothing: the card needs no compiled code of vLLM."""

    @classmethod
    def import_ir_kernels(cls) -> None:
        """Nothing: vLLM's own definitions of its ops are compiled for the card."""

    # --- the device ---------------------------------------------------------------------------

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return streams.get_device_name(device_id)

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return streams.get_device_properties(device_id).total_memory

    @classmethod
    def get_current_memory_usage(cls, device: torch.types.Device | None = None) -> float:
        return float(memory.memory_allocated(device))

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        streams.set_device(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        random.manual_seed_all(seed)

    @classmethod
    def inference_mode(cls) -> Any:
        return torch.no_grad()

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        return streams.get_device_properties(device_id).multi_processor_count

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        if dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise Unsupported(f"a model in {dtype}", hint="--dtype float16, bfloat16 or float32")

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "openspyre.vllm.communicator.SpyreCommunicator"

    @classmethod
    def get_punica_wrapper(cls) -> str:
        return "openspyre.vllm.lora.SpyreLora"

    @classmethod
    def can_update_inplace(cls) -> bool:
        return False  # of layers with adapters: what is added makes a new tensor

    # --- attention and kernels ------------------------------------------------------------------

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        from vllm.v1.attention.backend import AttentionBackend, AttentionType

        from openspyre.vllm.attention import SpyreAttentionBackend
        from openspyre.vllm.encoder import EncoderBackend

        whole = attn_selector_config.attn_type == AttentionType.ENCODER_ONLY
        chosen: type[AttentionBackend] = EncoderBackend if whole else SpyreAttentionBackend
        reasons = chosen.validate_configuration(
            device_capability=None, **attn_selector_config._asdict()
        )
        if reasons:
            raise Unsupported("this model's attention", why="; ".join(reasons))
        return f"{chosen.__module__}.{chosen.__qualname__}"

    @classmethod
    def opaque_attention_op(cls) -> bool:
        return True  # traced otherwise, the branch that the profile run takes would stay for good

    @classmethod
    def use_custom_op_collectives(cls) -> bool:
        return True

    @classmethod
    def check_runner_kv_caches_multi_layer(cls) -> None:
        """Nothing: layers find their caches by name."""

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        from vllm.triton_utils.dispatcher import register_kernels

        from openspyre.vllm.kernels import SLOT_MAPPING, slot_mapping
        from openspyre.vllm.rejection import KERNELS

        register_kernels({SLOT_MAPPING: slot_mapping, **KERNELS})

    # --- configuration ----------------------------------------------------------------------------

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: VllmConfig) -> None:
        from vllm.config.compilation import CompilationMode

        compilation = vllm_config.compilation_config
        if compilation.mode is None:
            eager = vllm_config.model_config is None or vllm_config.model_config.enforce_eager
            compilation.mode = CompilationMode.NONE if eager else CompilationMode.DYNAMO_TRACE_ONCE
        # vLLM has set them by now for every device but the CPU; they would ask for Triton.
        for name in ("combo_kernels", "benchmark_combo_kernel"):
            compilation.inductor_compile_config[name] = False

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        from vllm.config import CUDAGraphMode
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        refuse_unsupported(vllm_config)
        register_backend(AttentionBackendEnum.CUSTOM, _ATTENTION)
        parallel, compilation = vllm_config.parallel_config, vllm_config.compilation_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = "openspyre.vllm.worker.SpyreWorker"
        parallel.disable_custom_all_reduce = True
        compilation.cudagraph_mode = CUDAGraphMode.NONE
        compilation.cudagraph_capture_sizes = []
        compilation.max_cudagraph_capture_size = 0
        compilation.compile_sizes = []
        vllm_config.scheduler_config.async_scheduling = False
        drafts = vllm_config.speculative_config
        if drafts is not None and drafts.method == "ngram":  # vLLM's own need Numba
            drafts.method, drafts.model = "custom_class", "openspyre.vllm.drafts.NgramDrafts"
        # A forked process has no cards.
        hand_down(VLLM_WORKER_MULTIPROC_METHOD="spawn")
