"""Host wall time of MiniLM (8 x 128 tokens): fp16 on the software card / Inductor CPU in fp32."""

from __future__ import annotations

import copy
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from measurement import Measurement, paired, report

from openspyre.settings import settings
from openspyre.tools.embedding import load_encoder
from openspyre.tools.weights import MINILM, fetch

ROUNDS = 15


def main() -> None:
    encoder = load_encoder(fetch(MINILM, settings().cache / "models"))
    ids = torch.randint(1000, 30000, (8, 128), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    on_card = torch.compile(copy.deepcopy(encoder.model).half().to("spyre"))
    on_cpu = torch.compile(encoder.model)
    card_inputs = {"input_ids": ids.to("spyre"), "attention_mask": mask.to("spyre")}
    cpu_inputs = {"input_ids": ids, "attention_mask": mask}
    with torch.inference_mode():

        def card() -> None:
            on_card(**card_inputs)
            torch.spyre.synchronize()

        def cpu() -> None:
            on_cpu(**cpu_inputs)

        for _ in range(3):
            card(), cpu()
        ours, theirs, ratio = paired(card, cpu, ROUNDS)
    detail = f"{ours * 1e3:.1f} ms : {theirs * 1e3:.1f} ms, median of {ROUNDS} pairs"
    report([Measurement("emulation", "minilm b8 s128", ratio, "ratio", None, detail)])


if __name__ == "__main__":
    main()
