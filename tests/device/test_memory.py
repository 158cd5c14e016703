"""Allocation: statistics, reuse, running out, giving back, how much there is."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from openspyre.device import memory
from openspyre.runtime import host_memory
from openspyre.settings import read_settings
from openspyre.spec import SPYRE_CARD_V1

MIB = 1 << 20


@pytest.fixture(autouse=True)
def collected() -> None:
    gc.collect()


def test_statistics_follow_tensors() -> None:
    before = torch.spyre.memory_allocated()
    x = torch.empty(1000, dtype=torch.float32, device="spyre")
    assert torch.spyre.memory_allocated() - before == 4096
    assert torch.accelerator.memory_allocated() == torch.spyre.memory_allocated()
    y = x[10:]
    del x
    assert torch.spyre.memory_allocated() - before == 4096
    del y
    assert torch.spyre.memory_allocated() == before


def test_peak() -> None:
    torch.spyre.reset_peak_memory_stats()
    before = torch.spyre.memory_allocated()
    assert torch.spyre.max_memory_allocated() == before
    x = torch.empty(3 * MIB, dtype=torch.uint8, device="spyre")
    del x
    assert torch.spyre.max_memory_allocated() == before + 3 * MIB
    assert torch.spyre.memory_allocated() == before


def test_freed_memory_is_reused_and_merged() -> None:
    torch.spyre.empty_cache()
    parts = [torch.empty(4 * MIB, dtype=torch.uint8, device="spyre") for _ in range(4)]
    reserved = torch.spyre.memory_reserved()
    addresses = {p.data_ptr() for p in parts}
    del parts
    assert torch.spyre.memory_reserved() == reserved
    whole = torch.empty(16 * MIB, dtype=torch.uint8, device="spyre")
    assert whole.data_ptr() in addresses
    assert torch.spyre.memory_reserved() == reserved


def test_empty_cache_gives_memory_back() -> None:
    x = torch.empty(64 * MIB, dtype=torch.uint8, device="spyre")
    reserved = torch.spyre.memory_reserved()
    free, total = torch.spyre.mem_get_info()
    del x
    torch.spyre.empty_cache()
    assert torch.spyre.memory_reserved() <= reserved - 64 * MIB
    assert torch.spyre.mem_get_info() == (free + reserved - torch.spyre.memory_reserved(), total)


def test_returned_memory_is_usable_again() -> None:
    x = torch.ones(5 * MIB, device="spyre")
    del x
    torch.spyre.empty_cache()
    x = torch.ones(5 * MIB, device="spyre")
    assert x.cpu().sum() == 5 * MIB


def test_blocks_do_not_overlap() -> None:
    sizes = [1, 511, 512, 513, 4096, MIB - 1, MIB, MIB + 1, 11 * MIB]
    tensors = [torch.empty(n, dtype=torch.uint8, device="spyre") for n in sizes]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    del tensors[::2]
    again = [torch.full((n,), 99, dtype=torch.uint8, device="spyre") for n in sizes[::2]]
    for number, tensor in zip(range(1, len(sizes), 2), tensors, strict=True):
        assert (tensor.cpu() == number).all()
    assert all((t.cpu() == 99).all() for t in again)


def test_no_bytes_need_no_memory() -> None:
    before = torch.spyre.memory_allocated()
    x = torch.empty(0, 3, device="spyre")
    assert x.device == torch.device("spyre", 0)
    assert x.data_ptr() == 0
    assert torch.spyre.memory_allocated() == before


def test_too_large_a_request_names_its_sizes_and_does_no_harm() -> None:
    x = torch.arange(5, device="spyre")
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8, device="spyre")
    message = str(caught.value)
    assert "spyre:0 is out of memory. Tried to allocate 1048576.00 GiB" in message
    assert "are free" in message
    assert "OPENSPYRE_MEMORY" in message
    assert torch.equal(x.cpu(), torch.arange(5))


def test_a_full_card_stays_usable(run_python: Callable[..., CompletedProcess[str]]) -> None:
    done = run_python(
        """
import torch, openspyre
openspyre.require()
assert torch.spyre.mem_get_info()[1] == 64 << 20
kept = []
try:
    while True:
        kept.append(torch.full((3 << 20,), len(kept), dtype=torch.uint8, device="spyre"))
except torch.OutOfMemoryError as error:
    assert "Tried to allocate 3.00 MiB" in str(error), error
assert len(kept) >= 18, len(kept)
assert all((t.cpu() == i).all() for i, t in enumerate(kept))
stats = torch.spyre.memory_stats()
assert stats["num_ooms"] == 1
del kept[:]
whole = torch.ones(60 << 20, dtype=torch.uint8, device="spyre")   # needs every cached segment back
assert whole.cpu().sum() == 60 << 20
print("fine")
""",
        OPENSPYRE_MEMORY="64MiB",
    )
    assert done.stdout == "fine\n", done.stderr


def test_capacity_rule() -> None:
    default = read_settings({"OPENSPYRE_DEVICES": "2"})
    share = memory.capacity(default, SPYRE_CARD_V1)
    assert share % 4096 == 0
    assert share <= 112 << 30
    host = int(0.3 * host_memory.available_host_memory())
    assert abs(share - min(112 << 30, host)) < 256 * MIB
    chosen = read_settings({"OPENSPYRE_MEMORY": "1.5GiB"})
    assert memory.capacity(chosen, SPYRE_CARD_V1) == 3 << 29


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"": ("max", 5)}, []),
        ({"": ("1000", 400)}, [600]),
        ({"": ("9000", 400), "a/b": ("500", 100)}, [400, 8600]),
        ({"a": ("100", 400)}, [0]),
    ],
)
def test_cgroup_limits(tmp_path: Path, limits: dict[str, tuple[str, int]], left: list[int]) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for folder, (limit, usage) in limits.items():
        (tmp_path / folder / "memory.max").write_text(limit + "\n")
        (tmp_path / folder / "memory.current").write_text(f"{usage}\n")
    assert list(host_memory._left(tmp_path, "/a/b", "memory.max", "memory.current")) == left


def test_profiler_sees_memory() -> None:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as p:
        x = torch.empty(1 << 20, device="spyre")
        del x
    used = [e for e in p.events() if e.name == "aten::empty"]
    assert sum(e.self_device_memory_usage for e in used) == 4 * MIB
