"""torch.profiler sees what the cards did, in card time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import openspyre
from openspyre import _C
from openspyre.runtime.profiler import profile as card_profile

openspyre.require()

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def by_name(profiled: Any) -> dict[str, Any]:
    return {entry.key: entry for entry in profiled.key_averages()}


def test_device_time_is_card_time() -> None:
    compiled, x = torch.compile(softmax), torch.randn(100, 384).half().to("spyre")
    compiled(x)
    with card_profile() as expected:
        compiled(x)
    with profile(activities=BOTH) as profiled:
        for _ in range(3):
            compiled(x)
    (kernel,) = expected.kernels
    found = by_name(profiled)["softmax"]
    assert found.count == 3
    assert found.self_device_time_total == pytest.approx(3 * kernel.microseconds, abs=0.01)
    assert "Self SPYRE" in profiled.key_averages().table()


def test_an_op_has_the_time_of_what_it_launched() -> None:
    x = torch.randn(1 << 16, device="spyre")
    (x * 3).cpu()
    with profile(activities=BOTH) as profiled:
        y = x * 3
        y.cpu()
    entries = by_name(profiled)
    assert entries["aten::mul"].self_device_time_total > 0
    assert entries["aten::_copy_from"].self_device_time_total > 0
    total = sum(e.self_device_time_total for e in entries.values() if e.key in ("mul", "copy"))
    launched = entries["aten::mul"], entries["aten::_copy_from"]
    assert sum(e.self_device_time_total for e in launched) == pytest.approx(total)


def test_the_trace_has_the_spans(tmp_path: Path) -> None:
    x = torch.randn(1 << 10, device="spyre")
    (x + 1).cpu()
    with profile(activities=BOTH) as profiled:
        for _ in range(4):
            x = x + 1
        x.cpu()
    profiled.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert [e["name"] for e in kernels] == ["add"] * 4
    assert [e["tid"] for e in events if e.get("cat") == "gpu_memcpy"] == [2]
    ends = [e["ts"] + e["dur"] for e in kernels]
    assert all(later["ts"] >= end - 0.01 for later, end in zip(kernels[1:], ends, strict=False))


def test_without_the_device_there_are_no_spans() -> None:
    x = torch.ones(8, device="spyre")
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        (x + 1).cpu()
    assert not [e for e in profiled.events() if e.device_type.name == "PrivateUse1"]
    assert "Self SPYRE" not in profiled.key_averages().table()


def test_only_what_happens_inside_counts() -> None:
    x = torch.ones(8, device="spyre")
    x = x + 1
    with profile(activities=BOTH) as profiled:
        x = x * 2
    x = x + 1
    names = {entry.key for entry in profiled.key_averages()}
    assert "mul" in names
    assert "add" not in names


def test_recordings_overlap_and_end() -> None:
    x = torch.ones(8, device="spyre")
    (x + 1).cpu()
    outer = _C.start_spans()
    (x + 1).cpu()
    inner = _C.start_spans()
    (x + 1).cpu()
    assert [span[0] for span in _C.stop_spans(inner)] == ["add", "copy"]
    (x + 1).cpu()
    spans = _C.stop_spans(outer)
    assert [span[0] for span in spans] == ["add", "copy"] * 3
    for _, device, engine, stream, use, start, end, host_start, host_end in spans:
        assert (device, stream) == (0, 0)
        assert (engine == 0) == (use > 0)
        assert start < end
        assert host_start <= host_end
    assert _C.stop_spans(_C.start_spans()) == []


def test_memory_is_read_after_what_was_enqueued() -> None:
    x = torch.arange(1 << 18, device="spyre", dtype=torch.int32)
    y = x * 3
    data = _C.read_memory(y.data_ptr(), 4 * y.numel())
    assert torch.frombuffer(bytearray(data), dtype=torch.int32).equal(y.cpu())
    assert _C.read_memory(y.data_ptr(), 0) == b""
    for address, count in [(8, 8), (y.data_ptr(), 1 << 60), (y.data_ptr(), -1), (0, 1)]:
        with pytest.raises(RuntimeError, match="do not lie in a card's memory"):
            _C.read_memory(address, count)


def test_a_watcher_sees_every_launch_and_may_fail() -> None:
    x = torch.ones(8, device="spyre")
    (x + 1).cpu()
    seen: list[tuple[str, tuple[int, ...], bool]] = []

    def watch(kernel: _C.Kernel, variant: int, numbers: Any, after: bool) -> None:
        addresses, sizes, _ = numbers
        assert x.data_ptr() in addresses
        seen.append((kernel.name, sizes, after))

    def refuse(*_: object) -> None:
        raise ValueError("no launch today")

    try:
        _C.watch_launches(watch)
        (x + 1).cpu()
        assert [(name, after) for name, _, after in seen] == [("add", False), ("add", True)]
        _C.watch_launches(refuse)
        with pytest.raises(ValueError, match="no launch today"):
            x + 1
    finally:
        _C.watch_launches(None)
    assert (x + 1).cpu().tolist() == [2] * 8
    assert len(seen) == 2
    with pytest.raises(TypeError, match="not callable"):
        _C.watch_launches(3)  # type: ignore[arg-type]
