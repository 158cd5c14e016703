"""What a user waits for at first: a cold compile of `x + 1` and MiniLM (spyre and CPU), MiniLM with
a warm disk cache, the first use of an eager op, and a fresh process with a warm cache.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from measurement import Measurement, report

SCRIPT = """
import copy, json, os, sys, time
import torch
device, case = sys.argv[1:]
if case == "minilm":
    from openspyre.tools.embedding import load_encoder
    from openspyre.hf.weights import fetch
    model = load_encoder(fetch("minilm")).model
    model = model.half().to(device) if device == "spyre" else model
    ids = torch.randint(1000, 30000, (8, 128)).to(device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
else:
    model, inputs = (lambda x: x + 1), {"x": torch.randn(64).to(device)}
begun = []

def inductor(graph, given):
    begun.append(time.perf_counter())
    return torch._dynamo.lookup_backend("inductor")(graph, given)

function = torch.compile(model, backend=inductor)
with torch.inference_mode():
    start = time.perf_counter()
    function(**inputs)
    if device == "spyre":
        torch.spyre.synchronize()
end = time.perf_counter()
print(json.dumps([end - start, end - begun[0]]))
"""


# Every op is new to the process, which has Inductor loaded.
FIRST_USES = """
import json, time
import torch, openspyre
openspyre.require()
x, y = torch.randn(64, 48, device="spyre"), torch.randn(64, 48, device="spyre")
mask, ids = x > 0, torch.arange(8, device="spyre")
x + 1, x.sum()
F = torch.nn.functional
uses = {
    "mul": lambda: x * y, "sigmoid": lambda: torch.sigmoid(x), "where": lambda: x.where(mask, y),
    "mean": lambda: x.mean(1), "softmax": lambda: torch.softmax(x, -1), "mm": lambda: x @ y.T,
    "gelu": lambda: F.gelu(x), "cumsum": lambda: x.cumsum(0), "amax": lambda: x.amax(0),
    "rsqrt": lambda: torch.rsqrt(x), "index_select": lambda: x.index_select(0, ids),
    "cat": lambda: torch.cat([x, y]), "clamp": lambda: x.clamp(0, 1), "tril": lambda: x.tril(),
    "layer_norm": lambda: F.layer_norm(x, (48,)), "argmax": lambda: x.argmax(1),
    "var": lambda: x.var(1), "pow": lambda: x ** 2, "flip": lambda: x.flip(0),
    "roll": lambda: x.roll(1, 0), "add_": lambda: x.add_(y),
}
times = {}
for name, use in uses.items():
    start = time.perf_counter()
    use()
    torch.spyre.synchronize()
    times[name] = time.perf_counter() - start
print(json.dumps(times))
"""

FRESH = """
import time
start = time.perf_counter()
import json
import torch
loaded = time.perf_counter()
import openspyre
openspyre.require()
(torch.randn(5, device="spyre") + 1).tolist()
print(json.dumps([loaded - start, time.perf_counter() - loaded]))
"""


def python(code: str, *arguments: str, **environment: str) -> tuple[Any, float]:
    """What code prints last in a new process, as JSON, and how long the process lives."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1]), time.perf_counter() - start


def cold(device: str, case: str) -> float:
    """Seconds of the first call in a new process."""
    with tempfile.TemporaryDirectory() as cache:
        fresh = {"TORCHINDUCTOR_CACHE_DIR": cache, "OPENSPYRE_CACHE_PROGRAMS": "off"}
        return float(python(SCRIPT, device, case, **fresh, HF_HUB_OFFLINE="1")[0][0])


def warm(case: str) -> Measurement:
    """The first call of a new process, from where Dynamo is done, with caches of an earlier one.

    The model's weights are looked for in the usual place: only what is compiled is elsewhere.
    """
    with tempfile.TemporaryDirectory() as cache:
        kept = {"TORCHINDUCTOR_CACHE_DIR": cache, "OPENSPYRE_CACHE_PROGRAMS": "on"}
        runs = [python(SCRIPT, "spyre", case, **kept, HF_HUB_OFFLINE="1")[0] for _ in range(4)]
    whole, after = sorted(runs[1:], key=lambda run: float(run[1]))[1]
    detail = f"median of 3 fresh processes; {whole:.2f} s with Dynamo"
    return Measurement("compile", f"{case}, warm disk cache, after Dynamo", after, "s", 2, detail)


def first_use() -> Measurement:
    """The first call of an eager op that no process has used."""
    times, _ = python(FIRST_USES, OPENSPYRE_CACHE_PROGRAMS="off")
    slowest = max(times, key=times.get)
    detail = f"median of {len(times)} ops, the slowest is {slowest}: {times[slowest] * 1e3:.0f} ms"
    value = statistics.median(times.values()) * 1e3
    return Measurement("compile", "first use of an eager op", value, "ms", 150, detail)


def fresh_process() -> Measurement:
    """`torch.randn(5, device="spyre") + 1`, with its value: the whole life of a process."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {"OPENSPYRE_CACHE": cache, "OPENSPYRE_CACHE_PROGRAMS": "on"}
        runs = [python(FRESH, **environment) for _ in range(6)][1:]
    (torch_seconds, ours), value = sorted(runs, key=lambda run: run[1])[2]
    detail = f"median of 5; import torch takes {torch_seconds:.2f} s of it, spyre {ours:.2f} s"
    return Measurement("compile", "randn + 1, warm cache, fresh process", value, "s", 2, detail)


def main() -> None:
    rows = []
    for case in ("x + 1", "minilm"):
        times = {
            device: sorted(cold(device, case) for _ in range(3))[1] for device in ("spyre", "cpu")
        }
        detail = f"CPU Inductor {times['cpu']:.2f} s; first call, median of 3 fresh processes"
        rows.append(Measurement("compile", f"{case}, cold", times["spyre"], "s", None, detail))
        if case == "minilm":
            name = "minilm, cold, beside CPU Inductor"
            rows.append(Measurement("compile", name, times["spyre"] / times["cpu"], "x", 0.7))
    report([*rows, warm("minilm"), first_use(), fresh_process()])


if __name__ == "__main__":
    main()
