"""vLLM's own throughput benchmark on the card and, the same plugin, on the CPU: tokens per second
of this machine, by turns (A B B A); and the card time of a decode step beside its bound S2.

Each turn is a process that serves the requests once to warm up, and once for vLLM's clock. The
model is SmolLM2; with --layers it is of its shape, with so many layers and random weights.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from measurement import Measurement, options, report

from openspyre.card.report import bounds
from openspyre.compiler.least_work import Work
from openspyre.hf.weights import fetch
from openspyre.spec import SPYRE_CARD_V1

SHAPE: dict[str, Any] = {
    "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 2048,
    "tie_word_embeddings": True, "rope_theta": 100000.0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
RESULT = "BENCH "
STEPS = 8  # decode steps whose card time is measured


def parsed() -> argparse.Namespace:
    parser = options("Throughput of vLLM's server on the card beside the CPU.")
    parser.add_argument("--layers", type=int, help="of a model with random weights (SmolLM2)")
    parser.add_argument("--requests", type=int, default=8, help="at once (8)")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt (64)")
    parser.add_argument("--new", type=int, default=16, help="tokens for each request (16)")
    parser.add_argument("--rounds", type=int, default=1, help="turns of A B B A (1)")
    parser.add_argument("--side", choices=("card", "cpu", "steps"), help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    return parser.parse_args()


# --- one turn, in its own process ----------------------------------------------------------------


def engine_options(chosen: argparse.Namespace) -> dict[str, Any]:
    return {
        "model": chosen.model, "dtype": "float16", "skip_tokenizer_init": True, "seed": 0,
        "max_model_len": chosen.prompt + max(chosen.new, 2 * STEPS) + 1, "block_size": 64,
        "max_num_seqs": chosen.requests, "max_num_batched_tokens": 512,
        "kv_cache_memory_bytes": 1 << 28, "enable_prefix_caching": False,
    }  # fmt: skip


def prompts(chosen: argparse.Namespace) -> list[list[int]]:
    numbers = torch.randint(3, 10000, (chosen.requests, chosen.prompt), generator=seeded())
    made: list[list[int]] = numbers.tolist()
    return made


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def throughput(chosen: argparse.Namespace) -> float:
    """Tokens per second of prompts and answers, by vLLM's clock."""
    from vllm.benchmarks.datasets import SampleRequest
    from vllm.benchmarks.throughput import run_vllm
    from vllm.engine.arg_utils import EngineArgs

    requests = [
        SampleRequest({"prompt_token_ids": ids}, chosen.prompt, chosen.new)
        for ids in prompts(chosen)
    ]
    elapsed, _ = run_vllm(
        requests, 1, EngineArgs(**engine_options(chosen)), False, disable_detokenize=True,
        warmup_requests=requests,
    )  # fmt: skip
    return chosen.requests * (chosen.prompt + chosen.new) / elapsed


def steps(chosen: argparse.Namespace) -> dict[str, float]:
    """Card cycles and launches of a decode step of all requests: what more tokens cost."""
    from vllm import LLM, SamplingParams

    from openspyre.runtime.profiler import profile

    llm = LLM(**engine_options(chosen))
    asked = [{"prompt_token_ids": ids} for ids in prompts(chosen)]
    found = []
    for count in (1 + STEPS, 1, 1 + STEPS):  # the first warms up
        greedy = SamplingParams(
            temperature=0, max_tokens=count, ignore_eos=True, detokenize=False
        )  # fmt: skip
        with profile() as measured:
            llm.generate(asked, greedy, use_tqdm=False)
        kernels = measured.kernels
        found.append((sum(k.cycles for k in kernels), sum(k.launches for k in kernels)))
    _, few, many = found
    return {
        "cycles": (many[0] - few[0]) / STEPS, "launches": (many[1] - few[1]) / STEPS,
    }  # fmt: skip


def turn(chosen: argparse.Namespace) -> None:
    """Prints what one side finds."""
    if chosen.side == "cpu":
        import vllm.platforms
        from cpu_plugin import CpuPlatform

        vllm.platforms.current_platform = CpuPlatform()
    found: Any = steps(chosen) if chosen.side == "steps" else throughput(chosen)
    print(RESULT + json.dumps(found), flush=True)


# --- all turns -----------------------------------------------------------------------------------


def turned(side: str, model: Path) -> Any:
    """What a process finds."""
    quiet = {
        "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, *sys.argv, "--side", side, "--model", str(model)], text=True, check=False,
        capture_output=True, env={**os.environ, **quiet},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
    if done.returncode or not lines:
        raise SystemExit(f"{side} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(lines[-1].removeprefix(RESULT))


def write_model(layers: int, folder: Path) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, num_hidden_layers=layers))
    model.half().save_pretrained(folder)
    return folder


def decode_work(folder: Path, chosen: argparse.Namespace) -> Work:
    """The least that a decode step does: every weight and every key and value is read once."""
    config = json.loads((folder / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    layers, inner = config["num_hidden_layers"], config["intermediate_size"]
    kept = 2 * hidden // heads * config["num_key_value_heads"]  # of a token, in a layer
    weights = layers * (hidden * (2 * hidden + kept) + 3 * hidden * inner)
    weights += hidden * config["vocab_size"]
    rows, context = chosen.requests, chosen.prompt + STEPS / 2
    flop = 2 * rows * (weights + layers * 2 * hidden * context)
    return Work(
        flop=flop, read_bytes=2 * (weights + rows * context * layers * kept),
        written_bytes=2 * rows * layers * kept,
        transcendentals=rows * layers * (heads * context + inner),
    )  # fmt: skip


def measured(model: Path, chosen: argparse.Namespace) -> list[Measurement]:
    ratios, speeds = [], []
    for _ in range(chosen.rounds):
        a, b, c, d = (turned(side, model) for side in ("card", "cpu", "cpu", "card"))
        ratios.append((a + d) / (b + c))
        speeds += [a, d]
    wall = f"{min(ratios):.3f} to {max(ratios):.3f}; {statistics.median(speeds):.1f} tokens/s here"
    found, bound = turned("steps", model), bounds(decode_work(model, chosen))
    us = SPYRE_CARD_V1.microseconds(found["cycles"])
    card = f"{us:,.0f} us, S2 {bound.s2:,.0f}; {chosen.requests * 1e6 / us:,.0f} tokens/s; "
    card += f"{found['launches']:.1f} launches"
    return [
        Measurement("serve", "card / CPU, wall", statistics.median(ratios), "x", 1.0, wall,
                    least=True),
        Measurement("serve", "decode step", us / bound.s2, "x S2", 1.3, card),
    ]  # fmt: skip


def main() -> None:
    chosen = parsed()
    if chosen.side:
        turn(chosen)
        return
    with TemporaryDirectory() as folder:
        if chosen.layers is None:
            rows = measured(fetch("smollm2"), chosen)
        else:
            rows = measured(write_model(chosen.layers, Path(folder)), chosen)
    report(rows, chosen)


if __name__ == "__main__":
    main()
