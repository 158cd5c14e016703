"""Devices, streams and events through the interfaces that PyTorch has for them."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest
import torch


def test_device_queries() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("spyre")
    assert torch.spyre.is_available()
    assert torch.accelerator.device_count() == torch.spyre.device_count()
    assert torch.spyre.current_device() == 0
    assert torch.get_device_module("spyre") is torch.spyre
    assert "Spyre" in torch.spyre.get_device_name()
    properties = torch.spyre.get_device_properties("spyre")
    assert properties.total_memory == torch.spyre.mem_get_info()[1]
    assert properties.multi_processor_count == 32
    dtypes = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float16, torch.float32, torch.int64, torch.bool} <= dtypes
    assert torch.complex64 not in dtypes


def test_bad_devices() -> None:
    with pytest.raises(RuntimeError, match="there is no device 63"):
        torch.empty(1, device="spyre:63")
    with pytest.raises(RuntimeError, match="there is no device 63"):
        torch.spyre.set_device(63)
    with pytest.raises(ValueError, match="Expected a spyre device"):
        torch.spyre.synchronize("cpu")
    assert torch.spyre.current_device() == 0


def test_streams() -> None:
    default = torch.spyre.current_stream()
    assert default == torch.spyre.default_stream()
    one, two = torch.spyre.Stream(), torch.Stream(device="spyre")
    assert one != two
    assert one != default
    with one:
        assert torch.accelerator.current_stream() == one
        x = torch.ones(3, device="spyre")
        with torch.spyre.stream(two):
            assert torch.spyre.current_stream() == two
        assert torch.spyre.current_stream() == one
    assert torch.spyre.current_stream() == default
    x.record_stream(two)
    two.wait_stream(one)
    assert one.query()
    one.synchronize()
    torch.accelerator.set_stream(two)
    assert torch.spyre.current_stream() == two
    torch.spyre.set_stream(default)
    assert isinstance(one.native_handle, int)


def test_events() -> None:
    start, end = torch.Event("spyre", enable_timing=True), torch.Event("spyre", enable_timing=True)
    assert start.query()
    start.record()
    torch.ones(1000, device="spyre").sum()
    end.record(torch.spyre.current_stream())
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) > 0
    torch.Stream(device="spyre").wait_event(end)
    end.wait()
    assert torch.spyre.current_stream().record_event().query()


def test_events_that_cannot_be_compared() -> None:
    timed, plain = torch.Event("spyre", enable_timing=True), torch.Event("spyre")
    with pytest.raises(ValueError, match="must be recorded"):
        timed.elapsed_time(torch.Event("spyre", enable_timing=True))
    timed.record(), plain.record()
    with pytest.raises(ValueError, match="enable_timing"):
        timed.elapsed_time(plain)


def test_synchronize() -> None:
    torch.spyre.synchronize()
    torch.spyre.synchronize("spyre:0")
    torch.accelerator.synchronize()


def test_several_devices(run_python: Callable[..., CompletedProcess[str]]) -> None:
    done = run_python(
        """
import threading, torch, openspyre
openspyre.require()
assert torch.spyre.device_count() == torch.accelerator.device_count() == 3
x = torch.arange(4.0, device="spyre:1")
assert x.device.index == 1 and torch.spyre.current_device() == 0
assert torch.empty(1, device="spyre").device.index == 0
before = torch.spyre.memory_allocated(2)
with torch.spyre.device(2):
    assert torch.spyre.current_device() == 2
    y = torch.empty(5, device="spyre")
    assert torch.spyre.current_stream().device.index == 2
    x.resize_(9000)                        # grows where it lives, not on the current device
assert y.device.index == 2 and torch.spyre.current_device() == 0
assert torch.spyre.memory_allocated(2) - before == 512
assert torch.spyre.memory_allocated(1) == 36352 and torch.spyre.memory_allocated(0) == 0
assert x.to("spyre:2").device.index == 2 and x[:4].to("spyre:2").tolist() == [0, 1, 2, 3]
assert (x[:4] + 1).device.index == 1
torch.spyre.set_device("spyre:1")
assert torch.ones(3, device="spyre").device.index == 1
seen = []
thread = threading.Thread(target=lambda: seen.append(torch.spyre.current_device()))
thread.start(), thread.join()
assert seen == [0]                         # the current device belongs to a thread
torch.manual_seed(7)
a = [torch.rand(3, device=f"spyre:{i}").cpu() for i in range(3)]
assert torch.equal(a[0], a[1]) and torch.equal(a[1], a[2])
with torch.spyre.device(-1):
    assert torch.spyre.current_device() == 1
s = torch.Stream(device="spyre:2")
with s:
    assert torch.spyre.current_device() == 2
assert torch.spyre.current_device() == 1
assert len(torch.spyre.default_generators) == 3
print("fine")
""",
        OPENSPYRE_DEVICES="3",
        OPENSPYRE_MEMORY="64MiB",
    )
    assert done.stdout == "fine\n", done.stderr
