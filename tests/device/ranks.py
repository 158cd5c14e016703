"""Ranks of a process group as threads of this process, all on its first card."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from openspyre import _C
from openspyre.device.distributed.exchange import Hosts, meet, path_between
from openspyre.device.distributed.group import Group

T = TypeVar("T")
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Rank:
    """One of the ranks."""

    number: int
    count: int
    group: dist.ProcessGroup

    def full(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor of the card whose elements are the rank's number plus one."""
        return torch.full(shape, self.number + 1, dtype=dtype, device="spyre")

    def come(self) -> dist.Work:
        """Calls a barrier; what it gives waits for the other ranks."""
        options = dist.BarrierOptions()
        options.device = torch.device("spyre", 0)
        return self.group.barrier(options)

    def barrier(self) -> None:
        """Waits for the other ranks."""
        self.come().wait()


def spyre(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Zeros on the card."""
    return torch.zeros(shape, dtype=dtype, device="spyre")


def join(store: dist.Store, number: int, count: int, seconds: float, *, near: bool) -> Rank:
    """Makes a rank of a group in this thread, with its end."""
    timeout = timedelta(seconds=seconds)
    control = meet(store, number, range(count), timeout)
    path = path_between(control, timeout) if near else Hosts(control)
    group = dist.ProcessGroup(store, number, count)
    backend: Any = _C.collective_backend(Group(control, path, timeout), number, count, 1000)
    group._register_backend(torch.device("spyre"), dist.ProcessGroup.BackendType.CUSTOM, backend)
    return Rank(number, count, group)


def on_ranks(
    count: int,
    act: Callable[[Rank], T],
    *,
    near: bool = True,
    seconds: float = SECONDS,
    store: dist.Store | None = None,
) -> list[T]:
    """What a function gives on each rank; the first error of a rank is raised."""
    store = store or dist.HashStore()
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def run(number: int) -> None:
        try:
            rank = join(store, number, count, seconds, near=near)
            with torch.Stream(torch.device("spyre", 0)):
                results[number] = act(rank)
            rank.group.shutdown()
        except BaseException as error:
            errors[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors.values():
        raise error
    return [results[number] for number in range(count)]
