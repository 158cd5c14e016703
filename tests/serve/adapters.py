"""Adapters (LoRA) of tiny models, as folders that vLLM loads, and the models merged with them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
GATED = ("gate_proj", "up_proj", "down_proj")


def write_adapter(
    base: Path, folder: Path, merged: Path, *, rank: int, alpha: int, targets: tuple[str, ...]
) -> None:
    """Writes an adapter of some of a model's layers, and the model merged with it."""
    weights = load_file(base / "model.safetensors")
    generator = torch.Generator().manual_seed(rank)
    adapter: dict[str, Tensor] = {}
    for name, weight in list(weights.items()):
        path = name.removesuffix(".weight")
        if path.split(".")[-1] not in targets:
            continue
        a = torch.randn(rank, weight.shape[1], generator=generator) * 0.2
        b = torch.randn(weight.shape[0], rank, generator=generator) * 0.2
        if "embed" in path:  # a row for each token: A is what is looked up
            a, b = (torch.randn(rank, weight.shape[0], generator=generator) * 0.2,
                    torch.randn(weight.shape[1], rank, generator=generator) * 0.2)  # fmt: skip
        change = (b @ a).T if "embed" in path else b @ a
        kind = "lora_embedding_{}" if "embed" in path else "lora_{}.weight"
        for letter, part in (("A", a), ("B", b)):
            adapter[f"base_model.model.{path}.{kind.format(letter)}"] = part.contiguous()
        weights[name] = (weight.float() + alpha / rank * change).to(weight.dtype)
    for at, tensors in ((folder, adapter), (merged, weights)):
        at.mkdir(parents=True)
        kind = "adapter_model" if at is folder else "model"
        save_file(tensors, at / f"{kind}.safetensors", {"format": "pt"})
    (merged / "config.json").write_bytes((base / "config.json").read_bytes())
    config = {
        "peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": list(targets),
        "lora_dropout": 0.0, "bias": "none", "task_type": "CAUSAL_LM",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
