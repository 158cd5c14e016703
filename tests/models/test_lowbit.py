"""Weights of few bits through torchao: its own configurations, and those that it lacks."""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerGroup,
    PerTensor,
    quantize_,
)
from torchao.quantization.quant_primitives import (
    MappingType,
    choose_qparams_affine,
    dequantize_affine,
    quantize_affine,
)
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, TorchAoConfig

from openspyre.errors import SpyreError
from openspyre.hf.lowbit import Float8DynamicActivation, Int4Weight, Int4WeightOnly
from openspyre.runtime.profiler import profile

# torchao's classes do not say how they are cached; its enums are registered as before torch 2.13.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*_stable_hash_for_caching", "ignore:.*KernelPreference"
)
FORMS: dict[str, Any] = {
    "int8": Int8WeightOnlyConfig(),
    "fp8": Float8WeightOnlyConfig(),
    "int4 in bytes": IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(16)),
    "int4": Int4WeightOnly(16),
    "int8 activations": Int8DynamicActivationInt8WeightConfig(),
    "fp8 activations": Float8DynamicActivation(),
    "fp8 activations by tensor": Float8DynamicActivation(PerTensor(), torch.float8_e5m2),
}


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def stack(dtype: torch.dtype, *widths: int) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer, bias=len(layers) % 4 == 0), nn.GELU()]
    return nn.Sequential(*layers[:-1]).to(dtype).eval()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("form", FORMS)
def test_the_values_of_the_quantized_model_on_the_cpu(form: str, compiled: bool) -> None:
    # Behind another layer, an activation's last bit decides which code it rounds to.
    quantized = "activations" in form
    dtype = torch.float32 if quantized else torch.float16
    model = stack(dtype, 96, 80) if quantized else stack(dtype, 96, 48, 80)
    x = torch.randn(2, 3, 96).to(dtype)
    plain = model(x)
    quantize_(model, FORMS[form])
    with torch.no_grad():
        expected = model(x)
        assert not torch.equal(expected, plain)
        moved = copy.deepcopy(model).to("spyre")
        call = torch.compile(moved) if compiled else moved
        got = call(x.to("spyre")).cpu()
    bound = 1e-5 if dtype == torch.float32 else 2e-3
    torch.testing.assert_close(got, expected, atol=bound, rtol=bound)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("rows", "columns", "group"), [
    (40, 576, 64), (1, 128, 128), (7, 96, 32), (5, 6, 6), (3, 256, 16), (64, 2, 2), (9, 384, 192),
])  # fmt: skip
def test_four_bits_stand_for_what_torchao_quantizes_to(
    rows: int, columns: int, group: int, dtype: torch.dtype
) -> None:
    weight = torch.randn(rows, columns).to(dtype)
    weight[0] = 0
    block = (1, group)
    scale, zero = choose_qparams_affine(
        weight, MappingType.ASYMMETRIC, block, torch.uint8, 0, 15, None, dtype, torch.uint8
    )
    codes = quantize_affine(weight, block, scale, zero, torch.uint8, 0, 15)
    expected = dequantize_affine(
        codes, block, scale, zero, torch.uint8, 0, 15, output_dtype=torch.float32
    )
    packed = Int4Weight.of(weight, group)
    assert packed.qdata.nbytes == rows * columns // 2
    assert (packed.shape, packed.dtype) == (weight.shape, dtype)
    rounded = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        packed.dequantize(torch.float32), expected, atol=0, rtol=rounded
    )  # fmt: skip
    there = Int4Weight.of(weight.to("spyre"), group)
    torch.testing.assert_close(there.dequantize().cpu(), packed.dequantize(), atol=0, rtol=rounded)
    assert torch.equal(packed.to("spyre").cpu().dequantize(), packed.dequantize())


def test_card_time_follows_the_bytes() -> None:
    x = torch.randn(1, 2048).half()
    base = nn.Sequential(nn.Linear(2048, 1024, bias=False)).half()
    took, read = [], []
    for config in (None, Int8WeightOnlyConfig(), Int4WeightOnly(128)):
        torch._dynamo.reset()
        model = copy.deepcopy(base)
        if config is not None:
            quantize_(model, config)
        call = torch.compile(model.to("spyre"))
        with torch.no_grad(), profile() as measured:
            call(x.to("spyre"))
        (kernel,) = measured.kernels
        took.append(kernel.cycles)
        read.append(kernel.device_read_bytes)
    (int8, int4), (int8_read, int4_read) = took[1:], read[1:]
    assert int8 < 0.65 * took[0]
    assert int4 < 0.8 * int8
    assert int8_read < 0.55 * read[0]
    assert int4_read < 0.6 * int8_read


def test_fp8_products_run_at_the_rate_of_fp8() -> None:
    x = torch.randn(512, 1024).half()
    took = []
    for config in (None, Float8DynamicActivation()):
        torch._dynamo.reset()
        model = nn.Sequential(nn.Linear(1024, 1024, bias=False)).half()
        if config is not None:
            quantize_(model, config)
        call = torch.compile(model.to("spyre"))
        with torch.no_grad(), profile() as measured:
            call(x.to("spyre"))
        (kernel,) = measured.kernels
        took.append(kernel.pt_use * kernel.cycles)
    assert took[1] < 0.6 * took[0]


def test_transformers_quantizes_while_it_loads(tmp_path: Path) -> None:
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=320, hidden_size=128, intermediate_size=192, num_hidden_layers=1,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
            initializer_range=0.2,
        )
    ).save_pretrained(tmp_path)  # fmt: skip
    ids = torch.tensor([[5, 17, 40, 3], [7, 8, 9, 10]])
    for config in (Int8WeightOnlyConfig(), Int4WeightOnly(32)):
        made = []
        for device in ("cpu", "spyre"):
            model = AutoModelForCausalLM.from_pretrained(
                tmp_path, quantization_config=TorchAoConfig(config), device_map=device,
                dtype=torch.float32,
            )  # fmt: skip
            assert model.device.type == device
            layer = model.model.layers[0].mlp.up_proj.weight
            assert type(layer).__module__.startswith(("torchao", "openspyre"))
            out = model.generate(ids.to(device), max_new_tokens=4, do_sample=False, pad_token_id=0)
            made.append(out.cpu())
        assert torch.equal(*made)


def test_what_cannot_be_quantized_is_left_or_refused() -> None:
    model = nn.Sequential(nn.Linear(96, 8), nn.Linear(65, 8), nn.Linear(64, 8))
    model[2].weight = nn.Parameter(torch.empty(0, 64))
    quantize_(model, Int4WeightOnly(64))
    assert not any(isinstance(layer.weight, Int4Weight) for layer in model)
    quantize_(odd := nn.Linear(65, 8), Int4WeightOnly(65))
    assert not isinstance(odd.weight, Int4Weight)
    with pytest.raises(SpyreError, match="LayerNorm has no weight matrix"):
        quantize_(nn.LayerNorm(4), Int4WeightOnly(4), filter_fn=lambda *_: True)
    with pytest.raises(SpyreError, match="group_size must be at least 2"):
        Int4WeightOnly(1)
    with pytest.raises(SpyreError, match="float8_e4m3fn or float8_e5m2"):
        Float8DynamicActivation(dtype=torch.int8)
