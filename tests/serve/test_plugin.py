"""The plugin without an engine: versions, seams, entry points, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import openspyre.vllm
from openspyre.errors import SpyreError
from openspyre.tools.serve import main, server_command
from tests.serve.running import output_of
from tests.serve.tiny import write_model

# What the script does in a process: vLLM changes signal handlers, loggers and classes of others.
_LOOK = """
import importlib, inspect, json
from functools import reduce
from openspyre.seams import VLLM
from openspyre.vllm import kernels, platform
from vllm.platforms import current_platform
from vllm.v1.worker.block_table import ComputeSlotMappingKernel

def find(seam):
    module, _, path = seam.name.partition(":")
    return reduce(getattr, path.split("."), importlib.import_module(module)) is not None

theirs = getattr(ComputeSlotMappingKernel.kernel, "func", ComputeSlotMappingKernel.kernel)
print(json.dumps({
    "seams": [s.name for s in VLLM if not find(s)],
    "platform": type(current_platform).__name__,
    "asked": [n for n in %r if getattr(type(current_platform), n, None) is None],
    "theirs": list(inspect.signature(theirs).parameters),
    "ours": list(inspect.signature(kernels.slot_mapping).parameters),
}))
"""
# A name that the class lacks would be None with a warning: `Platform.__getattr__`.
_ASKED = (
    "opaque_attention_op", "get_compile_backend", "simple_compile_backend", "dist_backend",
    "register_triton_kernel_overrides", "is_pin_memory_available", "inference_mode",
    "get_attn_backend_cls", "get_device_communicator_cls", "get_punica_wrapper",
    "check_and_update_config", "apply_config_platform_defaults",
    "device_control_env_var", "use_custom_op_collectives", "get_current_memory_usage",
)  # fmt: skip


def test_vllm_finds_the_platform_and_the_seams_exist() -> None:
    found = json.loads(output_of("-c", _LOOK % (_ASKED,)).splitlines()[-1])
    assert found["platform"] == "SpyrePlatform"
    assert found["seams"] == []
    assert found["asked"] == []
    assert found["ours"] == found["theirs"]


_REFUSED = """
import json, sys
from vllm.engine.arg_utils import EngineArgs
from openspyre.errors import Unsupported

said = []
for options in json.loads(sys.argv[2]):
    try:
        EngineArgs(sys.argv[1], skip_tokenizer_init=True, **options).create_engine_config()
        said.append("")
    except Unsupported as error:
        said.append(str(error))
print(json.dumps(said))
"""


def test_what_cannot_be_served_is_refused_with_the_reason(tmp_path: Path) -> None:
    write_model("llama", torch.float16, tmp_path)
    asked: dict[str, dict[str, Any]] = {
        "tensor parallelism over 4 cards": {"tensor_parallel_size": 4},
        "pipeline parallelism over 2 cards": {"pipeline_parallel_size": 2},
        "data parallelism over 2 cards": {"data_parallel_size": 2},
        "workers by external_launcher": {"distributed_executor_backend": "external_launcher"},
        "a mixture of experts": {"hf_overrides": {"num_experts": 4}},
        "LoRA adapters over several cards": {"enable_lora": True, "tensor_parallel_size": 2},
        "the attention backend FLASH_ATTN": {"attention_backend": "FLASH_ATTN"},
        "the pooling task token_embed": {
            "runner": "pooling", "pooler_config": {"task": "token_embed"}
        },
        "a cache in fp8": {"kv_cache_dtype": "fp8"},
        "speculation by draft_model": {
            "speculative_config": {
                "method": "draft_model", "model": str(tmp_path), "num_speculative_tokens": 2,
            }
        },
        "block acceptance of drafts": {
            "speculative_config": {
                "method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3,
                "rejection_sample_method": "block",
            }
        },
    }  # fmt: skip
    accepted = [{"tensor_parallel_size": 2}, {"enable_lora": True}]
    options = json.dumps([*asked.values(), *accepted])
    printed = output_of("-c", _REFUSED, str(tmp_path), options, OPENSPYRE_DEVICES="2")
    *said, two_cards, adapters = json.loads(printed.splitlines()[-1])
    for what, text in zip(asked, said, strict=True):
        assert text.startswith(f"{what}\n  why: ")
        assert "\n  try: " in text
    assert two_cards == adapters == ""


def test_another_version_of_vllm_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(openspyre.vllm, "version", lambda name: "0.31.2")
    assert openspyre.vllm.platform_class() is None
    said = capsys.readouterr().err
    assert "vLLM 0.32" in said
    assert "this is vLLM 0.31.2" in said


def test_the_server_gets_a_model_and_a_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    command = server_command([str(tmp_path), "--port", "9", "--served-model-name=it"])
    assert command[3:5] == ["serve", str(tmp_path)]
    assert command[-3:] == ["--port", "9", "--served-model-name=it"]
    assert "--served-model-name" not in command
    assert "--kv-cache-memory-bytes" in command
    sized = server_command([str(tmp_path), "--gpu-memory-utilization", "0.5"])
    assert "--kv-cache-memory-bytes" not in sized
    assert sized[sized.index("--served-model-name") + 1] == str(tmp_path)


def test_no_such_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere/nothing"]) == 2
    assert "there is no model 'nowhere/nothing' to serve" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "./dev serve [MODEL]" in capsys.readouterr().out
    with pytest.raises(SpyreError, match=r"smollm2"):
        server_command(["nothing"])
