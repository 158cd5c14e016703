"""Cold compile in a fresh process with empty caches: `x + 1` and MiniLM, spyre and CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

from measurement import Measurement, report

SCRIPT = """
import copy, json, os, sys, time
import torch
device, case = sys.argv[1:]
if case == "minilm":
    from openspyre.settings import settings
    from openspyre.tools.embedding import load_encoder
    from openspyre.tools.weights import MINILM, fetch
    model = load_encoder(fetch(MINILM, settings().cache / "models")).model
    model = model.half().to(device) if device == "spyre" else model
    ids = torch.randint(1000, 30000, (8, 128)).to(device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    function = torch.compile(model)
else:
    function, inputs = torch.compile(lambda x: x + 1), {"x": torch.randn(64).to(device)}
with torch.inference_mode():
    start = time.perf_counter()
    function(**inputs)
    if device == "spyre":
        torch.spyre.synchronize()
print(json.dumps(time.perf_counter() - start))
"""


def cold(device: str, case: str) -> float:
    """Seconds of the first call in a new process."""
    with tempfile.TemporaryDirectory() as cache:
        fresh = {"TORCHINDUCTOR_CACHE_DIR": cache, "OPENSPYRE_CACHE_PROGRAMS": "off"}
        environment = {**os.environ, **fresh, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, device, case],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    rows = []
    for case in ("x + 1", "minilm"):
        times = {
            device: sorted(cold(device, case) for _ in range(3))[1] for device in ("spyre", "cpu")
        }
        detail = f"CPU Inductor {times['cpu']:.2f} s; first call, median of 3 fresh processes"
        rows.append(Measurement("compile", f"{case}, cold", times["spyre"], "s", None, detail))
    report(rows)


if __name__ == "__main__":
    main()
