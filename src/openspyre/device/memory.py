"""Device memory: how much a card has, and what is in use. Pinned host memory, too."""

from __future__ import annotations

from typing import Any

import torch

from openspyre import _C
from openspyre.card.native import Kept
from openspyre.device.streams import Device, index_of
from openspyre.runtime.host_memory import HOST_SHARE, available_host_memory
from openspyre.settings import Settings
from openspyre.spec import CardSpec


def capacity(chosen: Settings, card: CardSpec) -> int:
    """Bytes of each card: the card's own, or a share of what the host can give."""
    if chosen.memory is not None:
        return chosen.memory
    share = int(HOST_SHARE * available_host_memory() / max(1, chosen.devices))
    return max(1 << 20, min(card.memory_bytes, share) & ~0xFFF)


def memory_allocated(device: Device = None) -> int:
    """Bytes of a card that tensors hold now."""
    return torch.accelerator.memory_allocated(index_of(device))


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes that tensors have held since the last reset."""
    return torch.accelerator.max_memory_allocated(index_of(device))


def memory_reserved(device: Device = None) -> int:
    """Bytes of a card that the allocator holds, for tensors or for reuse."""
    return torch.accelerator.memory_reserved(index_of(device))


def max_memory_reserved(device: Device = None) -> int:
    """The most bytes that the allocator has held since the last reset."""
    return torch.accelerator.max_memory_reserved(index_of(device))


def memory_stats(device: Device = None) -> dict[str, Any]:
    """Every counter of the allocator, by name; `lx_kept_bytes`: see `lx_residents`."""
    index = index_of(device)
    kept = sum(one.bytes for one in lx_residents(index))
    return dict(torch.accelerator.memory_stats(index)) | {"lx_kept_bytes": kept}


def lx_residents(device: Device = None) -> tuple[Kept, ...]:
    """The programs whose weights the LX of a card holds for their next launch, by now."""
    return tuple(Kept(*one) for one in _C.lx_kept(index_of(device)))


def evict_lx(device: Device = None) -> None:
    """Waits for a card and forgets what its LX keeps: later launches load their weights again."""
    _C.evict_lx(index_of(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and total bytes of a card."""
    return torch.accelerator.get_memory_info(index_of(device))


def empty_cache() -> None:
    """Gives memory that no tensor holds back to the host."""
    torch.accelerator.empty_cache()


def reset_peak_memory_stats(device: Device = None) -> None:
    """Starts the maxima again from what is held now."""
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Starts the running totals again from zero."""
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


def device_memory_used(device: Device = None) -> int:
    """Bytes of a card that are in use, by whoever uses them."""
    free, total = mem_get_info(device)
    return total - free


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Lets this process take no more than a share of a card from here on; what it has stays.

    Raises:
        ValueError: the fraction is not between 0 and 1.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    index = index_of(device)
    _C.set_memory_limit(index, int(fraction * mem_get_info(index)[1]))


def get_per_process_memory_fraction(device: Device = None) -> float:
    """The share of a card that this process may take."""
    index = index_of(device)
    return _C.memory_limit(index) / mem_get_info(index)[1]


def host_memory_stats() -> dict[str, int]:
    """Counters of pinned host memory, by name."""
    return dict(_C.host_memory_stats())


def reset_peak_host_memory_stats() -> None:
    """Starts the maxima of pinned memory again from what is held now."""
    _C.reset_host_memory_stats(True)


def reset_accumulated_host_memory_stats() -> None:
    """Starts the running totals of pinned memory again from zero."""
    _C.reset_host_memory_stats(False)
