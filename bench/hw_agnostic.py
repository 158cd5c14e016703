"""Serving by vLLM's hardware-agnostic layers beside its own definitions of models: tokens per
second, on this machine and on the card, of three small models of the shapes of Qwen3, Granite and
Gemma 2. Each side is a process; both serve the same prompts by turns (A B B A).

Published of another accelerator: within 3.4 %, the geometric mean of three models.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from measurement import Measurement, options, report, seconds

TARGET = 0.966
_SHAPE = {
    "hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 2048, "max_position_embeddings": 512,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "granite": {"attention_multiplier": 0.1, "residual_multiplier": 0.5, "logits_scaling": 2.0},
    "gemma2": {
        "tie_word_embeddings": True, "sliding_window": 48, "query_pre_attn_scalar": 64,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    },
}  # fmt: skip
SIDES = {
    "agnostic": ({"VLLM_USE_HW_AGNOSTIC": "1"}, "transformers"),
    "native": ({"VLLM_USE_HW_AGNOSTIC": "0"}, "vllm"),
}


def parsed() -> argparse.Namespace:
    parser = options("Throughput of the hardware-agnostic path beside native definitions.")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--layers", type=int, default=2, help="of each model (2)")
    parser.add_argument("--requests", type=int, default=8, help="at once (8)")
    parser.add_argument("--new", type=int, default=24, help="tokens for each request (24)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of A B B A (3)")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    return parser.parse_args()


# --- one side, in its own process: a command a line, an answer a line ----------------------------


class Engine:
    """vLLM with one model."""

    def __init__(self, folder: str, chosen: argparse.Namespace) -> None:
        from vllm import LLM, SamplingParams

        self.llm = LLM(
            folder, skip_tokenizer_init=True, dtype="auto", max_model_len=256, block_size=64,
            max_num_seqs=chosen.requests, max_num_batched_tokens=512, seed=0,
            kv_cache_memory_bytes=1 << 26, enable_prefix_caching=False,
            model_impl=SIDES[chosen.side][1],
        )  # fmt: skip
        self.greedy = SamplingParams(
            temperature=0, max_tokens=chosen.new, ignore_eos=True, detokenize=False
        )
        self.asked = [
            {"prompt_token_ids": [(7 * i * i + 31 * k) % 2000 + 3 for i in range(40 + 9 * k)]}
            for k in range(chosen.requests)
        ]

    def warm_up(self) -> list[list[int]]:
        """Compiles what rounds launch; the tokens are those of every round."""
        return [r.outputs[0].token_ids for r in self._generate()]

    def round(self) -> float:
        return seconds(self._generate)

    def cycles(self) -> int:
        from openspyre.runtime.profiler import profile

        with profile() as measured:
            self._generate()
        return sum(kernel.cycles for kernel in measured.kernels)

    def census(self) -> list[tuple[str, str, int]]:
        from openspyre.vllm.layers import census

        (found,) = self.llm.apply_model(census)
        return [(one.provider, one.name, one.count) for one in found]

    def close(self) -> None:
        from vllm.distributed import cleanup_dist_env_and_memory

        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        cleanup_dist_env_and_memory()

    def _generate(self) -> list[Any]:
        return self.llm.generate(self.asked, self.greedy, use_tqdm=False)


def serve(chosen: argparse.Namespace) -> None:
    """Answers commands; what libraries print goes elsewhere."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine: Any = None
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        if command == "open":
            engine = Engine(*arguments, chosen)
            answer = None
        else:
            answer = getattr(engine, command)()
        print(json.dumps(answer), file=answers, flush=True)


class Side:
    """The process of one side."""

    def __init__(self, side: str, log: Path) -> None:
        variables, _ = SIDES[side]
        quiet = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR",
                 "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # fmt: skip
        self.log = log
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, *sys.argv, "--side", side], text=True, stderr=stderr,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env={**os.environ, **quiet, **variables},
            )  # fmt: skip

    def begin(self, *command: str) -> None:
        assert self.process.stdin is not None
        print(json.dumps(command), file=self.process.stdin, flush=True)

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            ended = f"a side ended with status {self.process.wait()}"
            raise SystemExit(f"{ended}:\n{self.log.read_text()[-3000:]}")
        return json.loads(line)

    def ask(self, *command: str) -> Any:
        self.begin(*command)
        return self.answer()


# --- both sides ----------------------------------------------------------------------------------


def write_model(kind: str, layers: int, folder: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {**_SHAPE, **MODELS[kind], "num_hidden_layers": layers}
    config = AutoConfig.for_model(kind, **shape)
    torch.manual_seed(7)
    dtype = torch.bfloat16 if kind.startswith("gemma") else torch.float16  # vLLM refuses float16
    AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(folder)


@contextlib.contextmanager
def opened(sides: Sequence[Side], folder: Path) -> Iterator[None]:
    for command in (("open", str(folder)), ("close",)):
        for side in sides:
            side.begin(*command)
        for side in sides:
            side.answer()
        if command[0] == "open":
            yield


def measured(kind: str, sides: Sequence[Side], chosen: argparse.Namespace) -> list[Measurement]:
    """Of one model, agnostic / native: wall time and card time; both give the same tokens."""
    agnostic, native = sides
    tokens = [side.ask("warm_up") for side in sides]
    same = sum(a == b for a, b in zip(*tokens, strict=True))
    ratios, times = [], []
    for _ in range(chosen.rounds):
        a, b, c, d = (s.ask("round") for s in (agnostic, native, native, agnostic))
        ratios.append((b + c) / (a + d))
        times += [a, d]
    cycles = [side.ask("cycles") for side in sides]
    count = sum(40 + 9 * k + chosen.new for k in range(chosen.requests))
    speed = count / statistics.median(times)
    wall = f"{min(ratios):.3f} to {max(ratios):.3f}; {speed:.0f} tokens/s"
    card = f"{cycles[0]} and {cycles[1]} cycles; {same} of {chosen.requests} requests alike"
    return [
        Measurement("hw_agnostic", f"{kind}, wall", statistics.median(ratios), "x", None, wall),
        Measurement("hw_agnostic", f"{kind}, card", cycles[1] / cycles[0], "x", None, card),
    ]


def providers(kind: str, side: Side) -> Measurement:
    """The census: modules that do something, by who provides them."""
    names: dict[str, list[str]] = {}
    for provider, name, count in side.ask("census"):
        names.setdefault(provider, []).append(f"{count} {name}")
    detail = "; ".join(f"{provider}: {', '.join(of_one)}" for provider, of_one in names.items())
    return Measurement("hw_agnostic", f"{kind}, census", len(names), "providers", None, detail)


def means(rows: Sequence[Measurement]) -> list[Measurement]:
    found = []
    for what in ("wall", "card"):
        ratios = [row.value for row in rows if row.case.endswith(f", {what}")]
        found.append(Measurement("hw_agnostic", f"geometric mean, {what}",
                                 statistics.geometric_mean(ratios), "x", TARGET,
                                 "aim 1.0", least=True))  # fmt: skip
    return found


def main() -> None:
    chosen = parsed()
    if chosen.side:
        serve(chosen)
        return
    rows: list[Measurement] = []
    with TemporaryDirectory() as top:
        sides = [Side(name, Path(top) / f"{name}.log") for name in SIDES]
        for kind in chosen.models:
            write_model(kind, chosen.layers, Path(top) / kind)
        for kind in chosen.models:
            with opened(sides, Path(top) / kind):
                rows += [*measured(kind, sides, chosen), providers(kind, sides[0])]
        for side in sides:
            side.process.communicate()
    report([*rows, *means(rows)], chosen)


if __name__ == "__main__":
    main()
