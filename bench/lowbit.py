"""Weights of few bits: card time, bytes and error of a linear in every form that torchao makes of
it, and, with --minilm, MiniLM's embeddings with its linears in these forms.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from measurement import Measurement, options, report
from torch import nn
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerGroup,
    quantize_,
)

from openspyre.hf.lowbit import Float8DynamicActivation, Int4WeightOnly
from openspyre.hf.weights import fetch
from openspyre.runtime.profiler import profile
from openspyre.tools.embedding import load_encoder

FORMS: dict[str, Any] = {
    "fp16": None,
    "fp8 weights": Float8WeightOnlyConfig(),
    "int8 weights": Int8WeightOnlyConfig(),
    "int4 weights, groups of 128": Int4WeightOnly(128),
    "int4 weights, groups of 32": Int4WeightOnly(32),
    "int4 in bytes, groups of 32": IntxWeightOnlyConfig(
        weight_dtype=torch.int4, granularity=PerGroup(32)
    ),
    "fp8 weights and activations": Float8DynamicActivation(),
    "int8 weights and activations": Int8DynamicActivationInt8WeightConfig(),
}
SENTENCES = ["A man is eating food.", "The girl is carrying a baby."] * 4


def parsed() -> argparse.Namespace:
    parser = options("Card time, bytes and error of linears with weights of few bits.")
    parser.add_argument("--width", type=int, default=1024, help="of the linear (1024)")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64], help="of its input (1 64)")
    parser.add_argument("--minilm", action="store_true", help="MiniLM in every form, too: minutes")
    return parser.parse_args()


def linears(width: int, sizes: Sequence[int]) -> list[Measurement]:
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(width, width, bias=False)).half()
    found: list[Measurement] = []
    plain: dict[int, float] = {}
    for name, config in forms(f"linear of {width}"):
        model = quantized(base, config)
        call = torch.compile(model.to("spyre"))
        for rows in sizes:
            x = torch.randn(rows, width).half()
            with torch.no_grad(), profile() as measured:
                y = call(x.to("spyre")).cpu()
            us = sum(kernel.microseconds for kernel in measured.kernels)
            read = sum(kernel.device_read_bytes for kernel in measured.kernels)
            error = apart(y, base(x))
            plain.setdefault(rows, us)
            detail = f"{plain[rows] / us:.2f} x as fast as fp16, {read / 2**20:.1f} MiB read, "
            detail += f"relative error {error:.2%}"
            found.append(Measurement("lowbit", f"{name}, {rows} rows", us, "us", None, detail))
    return found


def sentences() -> list[Measurement]:
    encoder = load_encoder(fetch("minilm"))
    places = [f"sentence {n}" for n in range(len(SENTENCES))]
    tokens = encoder.tokenize(SENTENCES, places=places, truncate=False)
    ((_, ids, mask),) = tokens.batches(len(SENTENCES))
    expected = encoder.model(input_ids=ids, attention_mask=mask).last_hidden_state
    found, half = [], encoder.model.half()
    for name, config in forms("MiniLM"):
        model = quantized(half, config)
        call = torch.compile(model.to("spyre"))
        with torch.no_grad(), profile() as measured:
            got = call(input_ids=ids.to("spyre"), attention_mask=mask.to("spyre"))
        us = sum(kernel.microseconds for kernel in measured.kernels)
        error = apart(got.last_hidden_state.cpu(), expected)
        detail = f"relative error of hidden states {error:.2%}"
        found.append(Measurement("lowbit", f"MiniLM, {name}", us, "us", None, detail))
    return found


def forms(what: str) -> Iterator[tuple[str, Any]]:
    """The forms, told on stderr as they come."""
    for number, (name, config) in enumerate(FORMS.items(), 1):
        print(f"{what}: {number} of {len(FORMS)}: {name} ...", file=sys.stderr, flush=True)
        yield name, config


def quantized(base: nn.Module, config: Any) -> nn.Module:
    torch._dynamo.reset()
    model = copy.deepcopy(base)
    if config is not None:
        quantize_(model, config)
    return model


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    difference = found.detach().double() - expected.detach().double()
    return float(difference.norm() / expected.detach().double().norm())


if __name__ == "__main__":
    chosen = parsed()
    measured = linears(chosen.width, chosen.rows)
    report([*measured, *(sentences() if chosen.minilm else ())], chosen)
