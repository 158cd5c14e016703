"""torch.profiler tells card memory from host memory, and device spans by the ops behind them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import openspyre

openspyre.require()

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
BYTES = 4 * 1000  # of a tensor here; blocks are multiples of 512
BLOCK = 4096


def train(weight: torch.Tensor) -> None:
    (weight @ weight).relu().sum().backward()
    weight.grad = None


def events_of(profiled: Any, folder: Path) -> list[dict[str, Any]]:
    profiled.export_chrome_trace(f"{folder}/trace.json")
    found: list[dict[str, Any]] = json.loads((folder / "trace.json").read_text())["traceEvents"]
    return found


def test_every_allocation_is_in_the_trace(tmp_path: Path) -> None:
    before = torch.spyre.memory_allocated()
    with profile(activities=BOTH, profile_memory=True) as profiled:
        kept = torch.empty(1000, device="spyre")
        gone = torch.empty(1000, device="spyre")
        del gone
        on_host = torch.empty(1000)
    events = [e["args"] for e in events_of(profiled, tmp_path) if e.get("name") == "[memory]"]
    spyre = [
        e for e in events if e["Device Type"] == torch._C._autograd.DeviceType.PrivateUse1.value
    ]
    assert [e["Bytes"] for e in spyre] == [BYTES, BYTES, -BYTES]
    assert spyre[1]["Addr"] == spyre[2]["Addr"] != spyre[0]["Addr"] == kept.data_ptr()
    assert [e["Total Allocated"] - before for e in spyre] == [BLOCK, 2 * BLOCK, BLOCK]
    assert all(e["Total Reserved"] >= e["Total Allocated"] for e in spyre)
    assert {e["Device Id"] for e in spyre} == {0}
    assert BYTES in [e["Bytes"] for e in events if e["Device Type"] == 0]
    assert on_host.nbytes == BYTES


def test_ops_show_the_memory_of_the_card() -> None:
    x = torch.ones(1000, device="spyre")
    (x * 2).cpu()
    with profile(activities=BOTH, profile_memory=True) as profiled:
        y = x * 2
    rows = {entry.key: entry for entry in profiled.key_averages()}
    assert rows["aten::mul"].device_memory_usage == BYTES
    assert rows["aten::mul"].cpu_memory_usage == 0
    assert "Self SPYRE Mem" in profiled.key_averages().table()
    del y


@pytest.mark.filterwarnings("ignore:.*export_memory_timeline.*:FutureWarning")
def test_the_memory_timeline(tmp_path: Path) -> None:
    weight = torch.ones(32, 32, device="spyre", requires_grad=True)
    train(weight)
    with profile(
        activities=BOTH, profile_memory=True, record_shapes=True, with_stack=True
    ) as profiled:
        train(weight)
        torch.spyre.synchronize()
    profiled.export_memory_timeline(f"{tmp_path}/timeline.json", device="spyre:0")
    times, sizes = json.loads((tmp_path / "timeline.json").read_text())
    assert len(times) == len(sizes) > 4
    assert times[1:] == sorted(times[1:])
    totals = np.asarray(sizes).sum(1)
    assert totals.max() >= totals[-1] + BLOCK  # what lives between forward and backward
    profiled.export_memory_timeline(f"{tmp_path}/raw.json.gz", device="spyre:0")


def test_a_span_names_the_call_that_launched_it(tmp_path: Path) -> None:
    """By its external id: forward, backward and copies, on two threads of the host."""
    weight = torch.ones(32, 32, device="spyre", requires_grad=True)
    train(weight)
    torch.spyre.synchronize()  # what was launched before the profile has no id in it
    with profile(activities=BOTH) as profiled:
        train(weight)
        (weight + 1).cpu()  # the other sum is that of the two gradients
    events = events_of(profiled, tmp_path)
    calls = {e["args"]["External id"]: e for e in events if e.get("cat") == "cpu_op"}
    spans = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy")]
    pairs = Counter((e["name"], calls[e["args"]["External id"]]["name"]) for e in spans)
    expected = {("relu", "aten::relu"): 1, ("sum", "aten::sum"): 1, ("add", "aten::add"): 2}
    expected |= {("mm", "aten::mm"): 3, ("threshold_backward", "aten::threshold_backward"): 1}
    assert expected.items() <= dict(pairs).items(), pairs
    assert ("copy", "aten::_copy_from") in pairs
    for span in spans:
        assert span["ts"] >= calls[span["args"]["External id"]]["ts"]
    threads = {calls[e["args"]["External id"]]["tid"] for e in spans if e["name"] == "mm"}
    assert len(threads) == 2


def test_a_compiled_graph_is_the_call_of_its_kernels(tmp_path: Path) -> None:
    compiled, x = torch.compile(lambda x: torch.softmax(x, -1)), torch.ones(8, 40, device="spyre")
    compiled(x).cpu()
    with profile(activities=BOTH) as profiled:
        compiled(x).cpu()
    events = events_of(profiled, tmp_path)
    calls = {
        e["args"]["External id"]: e for e in events if e.get("cat") in ("cpu_op", "user_annotation")
    }
    (kernel,) = [e for e in events if e.get("cat") == "kernel"]
    assert "CompiledFxGraph" in calls[kernel["args"]["External id"]]["name"]
