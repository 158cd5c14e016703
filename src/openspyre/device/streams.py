"""Devices, streams and events, as `torch.spyre` names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

import torch

from openspyre import _C
from openspyre.settings import settings
from openspyre.spec import SPYRE_CARD_V1

Device = Union[int, str, torch.device, None]


def index_of(device: Device) -> int:
    """The index a device argument means; None and a bare "spyre" mean the current device."""
    if isinstance(device, int):
        return device
    if device is None:
        return current_device()
    found = torch.device(device)
    if found.type != "spyre":
        raise ValueError(f"Expected a spyre device, but got: {found}")
    return current_device() if found.index is None else found.index


class device:
    """Makes a device the current one inside a `with`; a negative index changes nothing."""

    def __init__(self, device: Device) -> None:
        self.idx = index_of(device)
        self.switch = torch.accelerator.device_index(self.idx if self.idx >= 0 else None)

    def __enter__(self) -> None:
        self.switch.__enter__()

    def __exit__(self, *raised: object) -> None:
        self.switch.__exit__(*raised)


def is_available() -> bool:
    """Whether there is a card: always, unless OPENSPYRE_DEVICES is 0."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether a card has been used in this process."""
    return any(_C.is_open(i) for i in range(device_count()))


def is_in_bad_fork() -> bool:
    """Whether this process was forked after a card was used; it cannot use one then."""
    return _C.in_bad_fork()


def init() -> None:
    """Nothing: cards open when they are first used."""


def device_count() -> int:
    """How many cards this process has (OPENSPYRE_DEVICES)."""
    return settings().devices


def current_device() -> int:
    """The index of the current device of this thread."""
    return torch.accelerator.current_device_index()


def set_device(device: Device) -> None:
    """Makes a device the current one of this thread."""
    index = index_of(device)
    if index >= 0:
        torch.accelerator.set_device_index(index)


def get_device_name(device: Device = None) -> str:
    """What the device is, for people."""
    return f"Spyre software card {index_of(device)}"


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What a card is: its name, its device memory in bytes, its cores."""

    name: str
    total_memory: int
    multi_processor_count: int


def get_device_properties(device: Device = None) -> DeviceProperties:
    """The properties of a device; opens its card."""
    index = index_of(device)
    total = torch.accelerator.get_memory_info(index)[1]
    return DeviceProperties(get_device_name(index), total, SPYRE_CARD_V1.cores)


def get_device_capability(device: Device = None) -> dict[str, Any]:
    """What the device can do, as torch.accelerator states it."""
    return dict(torch.accelerator.get_device_capability(index_of(device)))


def synchronize(device: Device = None) -> None:
    """Waits for everything a device has been given to do."""
    torch.accelerator.synchronize(index_of(device))


def current_stream(device: Device = None) -> torch.Stream:
    """The stream that work of this thread goes to on a device."""
    return torch.accelerator.current_stream(index_of(device))


def default_stream(device: Device = None) -> torch.Stream:
    """The stream that a device starts with."""
    return _C.default_stream(index_of(device))


def set_stream(stream: torch.Stream) -> None:
    """Makes a stream the current one of its device; the current device becomes the stream's."""
    torch.accelerator.set_stream(stream)


def stream(stream: torch.Stream) -> torch.Stream:
    """The stream as a context manager: `with torch.spyre.stream(s):`."""
    return stream
