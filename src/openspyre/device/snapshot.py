"""What fills device memory, block by block, in the form that torch's memory viewer reads."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import torch

from openspyre import _C
from openspyre.device.memory import memory_stats
from openspyre.device.streams import Device, device_count, index_of

_SIZES = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")
_COUNTS = ("allocation", "active", "segment", "inactive_split")
_TITLES = {
    "allocated_bytes": "Allocated memory",
    "active_bytes": "Active memory",
    "requested_bytes": "Requested memory",
    "reserved_bytes": "Reserved memory",
    "inactive_split_bytes": "Non-releasable memory",
    "allocation": "Allocations",
    "active": "Active allocations",
    "segment": "Reserved segments",
    "inactive_split": "Non-releasable blocks",
}
_POOLS = {"all": "{}", "large_pool": "      from large pool", "small_pool": "      from small pool"}
_COLUMNS = {"Cur Usage": "current", "Peak Usage": "peak", "Tot Alloc": "allocated",
            "Tot Freed": "freed"}  # fmt: skip


def memory_snapshot() -> list[dict[str, Any]]:
    """The segments of every card that has been used, with their blocks.

    The keys are those of `torch.cuda.memory_snapshot`. What is not a tensor's (programs, the
    temporary memory of launches) is there too and counts as active.
    """
    opened = (index for index in range(device_count()) if _C.is_open(index))
    return [segment for index in opened for segment in _segments(index)]


def _segments(device: int) -> Iterator[dict[str, Any]]:
    segment: dict[str, Any] = {}
    for first, size, address, bytes_, requested, stream, small, freed, _ in _C.memory_blocks(
        device
    ):
        if address == first:
            if segment:
                yield segment
            segment = _segment(device, first, size, stream, small=small)
        state = (
            "inactive" if not requested else "active_pending_free" if freed else "active_allocated"
        )
        block = {"address": address, "size": bytes_, "requested_size": requested, "state": state}
        segment["blocks"].append(block | {"frames": []})
        segment["requested_size"] += requested
        segment["active_size"] += bytes_ if requested else 0
        segment["allocated_size"] += bytes_ if requested and not freed else 0
    if segment:
        yield segment


def _segment(device: int, address: int, size: int, stream: int, *, small: bool) -> dict[str, Any]:
    return {
        "device": device,
        "address": address,
        "total_size": size,
        "allocated_size": 0,
        "active_size": 0,
        "requested_size": 0,
        "stream": stream,
        "segment_type": "small" if small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [],
    }


def _snapshot(device: Device = None) -> dict[str, Any]:
    """What `torch.cuda._memory_viz` reads: segments, and no history of them."""
    traces: list[list[Any]] = [[] for _ in range(device_count())]
    return {
        "segments": memory_snapshot(),
        "device_traces": traces,
        "allocator_settings": {},
        "external_annotations": [],
    }


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    """Writes a snapshot for https://pytorch.org/memory_viz."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """`memory_stats` as dicts of dicts."""
    return dict(torch._C._accelerator_getDeviceStats(index_of(device)))


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """`memory_stats` as a table for people."""
    index = index_of(device)
    stats = memory_stats(index)
    pools = ["all"] if abbreviated else list(_POOLS)
    width = 75
    head = f"spyre:{index} memory summary"
    events = f"out of memory: {stats['num_ooms']:<8d} retries: {stats['num_alloc_retries']:<8d}"
    lines = ["=" * width, f"{head:^{width}}", "-" * width, f"{events:^{width}}", "=" * width]
    lines.append(f" {'Metric':<22}" + "".join(f"| {title:<11}" for title in _COLUMNS))
    for metric, title in _TITLES.items():
        lines.append("-" * width)
        for pool in pools:
            values = [stats[f"{metric}.{pool}.{kind}"] for kind in _COLUMNS.values()]
            cells = "".join(f"| {_shown(metric, value):<11}" for value in values)
            lines.append(f" {_POOLS[pool].format(title):<22}{cells}")
    return "\n".join(f"|{line:<{width}}|" for line in [*lines, "=" * width]) + "\n"


def _shown(metric: str, value: int) -> str:
    if not metric.endswith("_bytes"):
        return str(value)
    for unit in ("B", "KiB", "MiB"):
        if value < 10240:
            return f"{value} {unit}"
        value //= 1024
    return f"{value} GiB"
