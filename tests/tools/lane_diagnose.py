"""The long lane `diagnose`: faults in real models' kernels, and who is blamed for them.

`./dev test --long diagnose` plants one fault at a time into the compiler, the emitter or the
frontend, runs a model and diagnoses the run. Leaves `results/diagnose.json`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import openspyre
from openspyre.hf.weights import fetch
from openspyre.runtime.diagnosis import Fault
from tests.faults import FRONTEND, PROGRAM, STAGE, Planting
from tests.results import commit, write_result
from tests.tools.diagnosed_models import with_fault

openspyre.require()
SHARE = 0.95  # of the faults that change a result, whose op must be named
_KIND = {
    "stage": Fault.COMPILER, "program": Fault.COMPILER, "frontend": Fault.REFERENCE,
}  # fmt: skip


def minilm() -> Any:
    """The trained weights, the first two layers of six."""
    model = AutoModel.from_pretrained(fetch("minilm"), dtype=torch.float32)
    model.encoder.layer = model.encoder.layer[:2]
    return model


def llama() -> Any:
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=320, max_position_embeddings=128, initializer_range=0.2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def gpt2() -> Any:
    config = GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=320, n_positions=128, initializer_range=0.2
    )
    return GPT2LMHeadModel(config)


MODELS: tuple[Callable[[], Any], ...] = (minilm, llama, gpt2)


@cache
def _inputs() -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 300, (2, 13), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    return {"input_ids": ids.to("spyre"), "attention_mask": mask.to("spyre")}


def _cases() -> list[tuple[Planting, Callable[[], Any]]]:
    """Every fault in one of the models, in turn."""
    faults = (*STAGE, *PROGRAM, *FRONTEND)
    return [(fault, MODELS[number % len(MODELS)]) for number, fault in enumerate(faults)]


@pytest.mark.timeout(7200)
def test_who_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, start, rows = commit(), time.monotonic(), []
    for fault, make in _cases():
        torch.manual_seed(0)
        model = make().eval().half().to("spyre")
        options = {"use_cache": False} if make is not minilm else {}
        found = with_fault(lambda **k: model(**k, **options), _inputs(), fault, monkeypatch)  # noqa: B023
        worst = found.worst
        row = {
            "fault": fault.name, "where": fault.where, "model": make.__name__, "hit": found.hit,
            "seen": worst is not None,
            "kind": worst.fault.value if worst else None,
            "right_kind": worst is not None and worst.fault is _KIND[fault.where],
            "blamed": worst.culprit.op if worst and worst.culprit else None,
            "how": worst.culprit.how[:80] if worst and worst.culprit else None,
            "alone": worst.culprit.alone if worst and worst.culprit else None,
            "named": found.named,
        }  # fmt: skip
        rows.append(row)
        print(f"diagnose: {time.monotonic() - start:.0f} s: {row}", flush=True)
    planted = [row for row in rows if row["hit"]]
    seen = [row for row in planted if row["seen"]]
    named = [row for row in seen if row["named"]]
    write_result(
        "diagnose",
        {
            "planted": len(planted), "change_a_result": len(seen), "named": len(named),
            "right_kind": sum(bool(row["right_kind"]) for row in seen), "rows": rows,
            "host_seconds": time.monotonic() - start,
        },
        begun=begun,
    )  # fmt: skip
    assert len(planted) >= 20
    assert len(named) >= SHARE * len(seen)
