"""torch.spyre offers what the modules of other devices offer, or says why not."""

from __future__ import annotations

import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.cuda
import torch.xpu

from openspyre.device.absent import ABSENT

# Names of other vendors' libraries and of parts of their devices, and what torch itself deprecates.
FOREIGN = frozenset((
    "amp", "sparse", "nccl", "nvtx", "tunable", "jiterator", "cudart", "cudaStatus",
    "CudaError", "check_error", "GreenContext", "CUDAGraph", "XPUGraph",
    "CUDAPluggableAllocator", "XPUPluggableAllocator", "DeferredCudaCallError",
    "current_blas_handle", "current_solver_handle", "has_half", "has_magma",
    "get_gencode_flags", "caching_allocator_enable", "caching_allocator_disabled",
    "get_allocator_backend", "get_sync_debug_mode", "set_sync_debug_mode", "list_gpu_processes",
    "profiler", "max_memory_cached", "memory_cached", "reset_max_memory_allocated",
    "reset_max_memory_cached", "host_memory_stats_as_nested_dict", "memory_usage",
    "utilization", "clock_rate",
))  # fmt: skip


@pytest.mark.parametrize("module", [torch.cuda, torch.xpu], ids=["cuda", "xpu"])
def test_every_function_of_another_device_is_there_or_has_a_reason(
    module: type[torch.cuda],
) -> None:
    typed = ("Tensor", "Storage")  # torch.cuda.FloatTensor
    names = {n for n in module.__all__ if not n.endswith(typed)}
    missing = {n for n in names - FOREIGN if not hasattr(torch.spyre, n)}
    assert missing <= ABSENT.keys()


def test_what_is_absent_says_why() -> None:
    for name in ABSENT:
        assert not hasattr(torch.spyre, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'graph': launches are not captur"):
        torch.spyre.graph  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'ExternalStream': its streams belong"):
        torch.spyre.ExternalStream(0)
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        torch.spyre.nothing  # noqa: B018
    with pytest.raises(RuntimeError, match="Graph is not supported on device type: spyre"):
        torch.accelerator.Graph()
    with pytest.raises(NotImplementedError, match="ipc is not supported"):
        torch.Event(device="spyre", interprocess=True).ipc_handle()


@pytest.mark.parametrize("device", [7, -1, "spyre:7", torch.device("spyre:7")])
@pytest.mark.parametrize(
    "name",
    [
        "get_device_name", "get_device_properties", "default_stream", "memory_allocated",
        "memory_stats", "mem_get_info", "get_rng_state", "memory_summary",
        "get_per_process_memory_fraction",
    ],
)  # fmt: skip
def test_a_device_that_does_not_exist(name: str, device: int | str | torch.device) -> None:
    index = device if isinstance(device, int) else 7
    with pytest.raises(RuntimeError, match=f"no device {index} .*OPENSPYRE_DEVICES sets how many"):
        getattr(torch.spyre, name)(device)


def test_devices_of_another_type() -> None:
    with pytest.raises(ValueError, match="Expected a spyre device, but got: cpu"):
        torch.spyre.memory_allocated("cpu")


def test_properties() -> None:
    properties = torch.spyre.get_device_properties()
    assert properties.name == torch.spyre.get_device_name() == "Spyre software card 0"
    assert properties.total_memory == torch.spyre.mem_get_info()[1]
    assert (properties.multi_processor_count, properties.clock_ghz) == (32, 1.5)
    assert torch.spyre.get_arch_list() == ["spyre-card-v1"]
    assert torch.spyre.is_bf16_supported()
    assert not torch.spyre.is_tf32_supported()
    assert not torch.spyre.is_current_stream_capturing()
    assert not torch.spyre.can_device_access_peer(0, 0)
    assert torch.spyre.memory.memory_allocated is torch.spyre.memory_allocated
    assert torch.spyre.random.manual_seed is torch.spyre.manual_seed


def test_contexts_that_change_nothing() -> None:
    stream = torch.spyre.Stream(priority=-1)
    for context in (
        torch.spyre.stream(None),
        torch.spyre.device(None),
        torch.spyre.device(-1),
        torch.spyre.device_of(torch.ones(1)),
        torch.spyre.device_of(torch.ones(1, device="spyre")),
    ):
        with torch.spyre.stream(stream):
            with context:
                assert torch.spyre.current_stream() == stream
                assert torch.spyre.current_device() == 0
            assert torch.spyre.current_stream() == stream


def test_peers(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_python(
        """
import torch, openspyre; openspyre.require()
s = torch.spyre
assert s.can_device_access_peer(0, 1) and not s.can_device_access_peer(1, "spyre:1")
x = torch.arange(6.0, device="spyre:0")
y = torch.empty(6, device="spyre:1").copy_(x, non_blocking=True)
s.synchronize(1)
assert y.tolist() == x.tolist() == x.to("spyre:1").tolist()
with s.device_of(y):
    assert s.current_device() == 1 and torch.ones(1, device="spyre").device.index == 1
assert s.current_device() == 0
assert {segment["device"] for segment in s.memory_snapshot()} == {0, 1}
torch.set_default_device("spyre:1")
assert torch.ones(2).device == torch.device("spyre:1")
""",
        OPENSPYRE_DEVICES="2",
    )
    assert done.returncode == 0, done.stderr


# --- memory -------------------------------------------------------------------------------------


def test_the_snapshot_holds_every_tensor(tmp_path: Path) -> None:
    kept = torch.empty(3 << 20, dtype=torch.uint8, device="spyre")
    small = torch.empty(5, dtype=torch.uint8, device="spyre")
    segments = torch.spyre.memory_snapshot()
    blocks = {b["address"]: b for s in segments for b in s["blocks"]}
    for tensor in (kept, small):
        block = blocks[tensor.data_ptr()]
        assert block["state"] == "active_allocated"
        assert block["requested_size"] == tensor.nbytes
        assert block["size"] >= tensor.nbytes
    for segment in segments:
        assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
        assert segment["segment_type"] in ("small", "large")
    reserved = torch.spyre.memory_reserved()
    assert sum(s["total_size"] for s in segments) == reserved
    assert torch.spyre.device_memory_used() == reserved
    address = kept.data_ptr()
    del kept
    after = [b for s in torch.spyre.memory_snapshot() for b in s["blocks"]]
    assert any(
        b["state"] == "inactive" and b["address"] <= address < b["address"] + b["size"]
        for b in after
    )
    torch.spyre._dump_snapshot(f"{tmp_path}/snapshot.pickle")
    dumped = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert dumped["segments"] == torch.spyre.memory_snapshot()
    from torch.cuda import _memory_viz

    assert f"segments: {len(segments)}" in _memory_viz.segsum(dumped)


def test_the_snapshot_shows_what_a_stream_still_uses() -> None:
    stream = torch.spyre.Stream()
    with stream:
        hold = torch.ones(1, device="spyre")
        del hold
    x = torch.empty(7 << 20, dtype=torch.uint8, device="spyre")
    address = x.data_ptr()
    from openspyre import _C

    with stream:
        held = _C.hold(0)
    x.record_stream(stream)
    del x
    states = {b["address"]: b["state"] for s in torch.spyre.memory_snapshot() for b in s["blocks"]}
    assert states[address] == "active_pending_free"
    _C.let_go(held)
    torch.spyre.synchronize()


def test_the_summary_shows_the_statistics() -> None:
    x = torch.empty(5 << 20, dtype=torch.uint8, device="spyre")
    table = torch.spyre.memory_summary()
    assert len({len(line) for line in table.splitlines()}) == 1
    assert "from large pool" in table
    assert "from large pool" not in torch.spyre.memory_summary(abbreviated=True)
    nested = torch.spyre.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == torch.spyre.memory_allocated()
    del x


def test_a_share_of_the_card() -> None:
    total = torch.spyre.mem_get_info()[1]
    assert torch.spyre.get_per_process_memory_fraction() == 1
    torch.spyre.empty_cache()
    try:
        torch.spyre.set_per_process_memory_fraction(0.125)
        assert torch.spyre.get_per_process_memory_fraction() == pytest.approx(0.125)
        with pytest.raises(torch.OutOfMemoryError, match="set_per_process_memory_fraction leaves"):
            torch.empty(total // 4, dtype=torch.uint8, device="spyre")
        torch.spyre.set_per_process_memory_fraction(0, "spyre:0")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(64 << 20, dtype=torch.uint8, device="spyre")
    finally:
        torch.spyre.set_per_process_memory_fraction(1.0)
    assert torch.empty(64 << 20, dtype=torch.uint8, device="spyre").numel() == 64 << 20
    for wrong in (-0.1, 1.5):
        with pytest.raises(ValueError, match="Invalid fraction value"):
            torch.spyre.set_per_process_memory_fraction(wrong)


def test_statistics_of_pinned_memory() -> None:
    torch.spyre.reset_peak_host_memory_stats()
    before = torch.spyre.host_memory_stats()
    pinned = torch.empty(1000, dtype=torch.uint8).pin_memory()
    during = torch.spyre.host_memory_stats()
    assert during["active_bytes.current"] == before["active_bytes.current"] + 1000
    del pinned
    after = torch.spyre.host_memory_stats()
    assert after["active_bytes.current"] == before["active_bytes.current"]
    assert after["active_bytes.peak"] == during["active_bytes.current"]
    torch.spyre.reset_accumulated_host_memory_stats()
    assert torch.spyre.host_memory_stats()["allocations.allocated"] == 0


# --- other layouts, other libraries ---------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.eye(2).to_sparse().to("spyre"), "for sparse tensors.*to_dense"),
        (
            lambda: torch.sparse_coo_tensor(
                torch.zeros(1, 1, dtype=torch.long), torch.ones(1), (2,), device="spyre"
            ),
            "for sparse tensors.*to_dense",
        ),
        (
            lambda: torch.quantize_per_tensor(torch.ones(2, device="spyre"), 0.1, 0, torch.qint8),
            "aten::empty_quantized has no kernel for quantized tensors.*torch.int8",
        ),
        (
            lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8).to("spyre"),
            "for quantized tensors.*keep the tensor on the CPU",
        ),
        (
            lambda: torch.nested.nested_tensor([torch.ones(1)], device="spyre").unbind(),
            "aten::unbind.int has no kernel for nested tensors.*torch.jagged",
        ),
    ],
)
def test_layouts_that_do_not_live_on_the_card(make: Callable[[], object], message: str) -> None:
    with pytest.raises(NotImplementedError, match=f"(?s){message}"):
        make()


def test_jagged_tensors_live_on_the_card() -> None:
    parts = [torch.ones(2, 3), torch.ones(4, 3)]
    x = torch.nested.nested_tensor(parts, device="spyre", layout=torch.jagged)
    assert [p.sum().item() for p in (x * 2).unbind()] == [12, 24]


def test_dlpack() -> None:
    x = torch.arange(4.0, device="spyre")
    y = torch.from_dlpack(x)
    y[0] = 7
    assert x.__dlpack_device__() == (torch.utils.dlpack.DLDeviceType.kDLExtDev, 0)
    assert y.device == x.device
    assert x.tolist() == [7, 1, 2, 3]
    copy = torch.from_dlpack(x, copy=True)
    assert copy.data_ptr() != x.data_ptr()
    assert torch.from_dlpack(x, device="cpu").tolist() == [7, 1, 2, 3]
    assert torch.from_dlpack(np.arange(3), device="spyre").tolist() == [0, 1, 2]
    with pytest.raises((RuntimeError, BufferError), match="Unsupported device"):
        np.from_dlpack(x)
    with pytest.raises(BufferError, match="detach"):
        torch.from_dlpack(x.clone().requires_grad_())
    assert torch.ones(1).__dlpack_device__()[0] == torch.utils.dlpack.DLDeviceType.kDLCPU


def test_safetensors(tmp_path: Path) -> None:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file, load_model, save_file, save_model

    x = torch.arange(6.0, device="spyre").view(2, 3)
    path = f"{tmp_path}/x.safetensors"
    save_file({"x": x, "half": x.half()}, path)
    assert torch.equal(load_file(path)["x"], x.cpu())
    with safe_open(path, "pt") as file:
        assert torch.equal(file.get_tensor("half").to("spyre"), x.half())
        assert torch.equal(file.get_slice("x")[1:].to("spyre"), x[1:])
    with pytest.raises(SafetensorError, match="device spyre is invalid"):  # its list is its own
        load_file(path, device="spyre")
    model = torch.nn.Linear(3, 2).to("spyre")
    save_model(model, path)
    other = torch.nn.Linear(3, 2).to("spyre")
    assert load_model(other, path) == (set(), [])
    assert torch.equal(other.weight, model.weight)
