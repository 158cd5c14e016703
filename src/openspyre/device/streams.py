"""Devices, streams and events, as `torch.spyre` names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

import torch

from openspyre import _C
from openspyre.settings import settings
from openspyre.spec import CALIBRATED, SPYRE_CARD_V1

ARCHITECTURE = CALIBRATED.version
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


class device_of(device):
    """Makes the device of a tensor the current one; a tensor elsewhere changes nothing."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.get_device() if obj.device.type == "spyre" else -1)


class StreamContext:
    """Makes a stream the current one inside a `with`; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> torch.Stream | None:
        return self.stream.__enter__() if self.stream is not None else None

    def __exit__(self, *raised: Any) -> None:
        if self.stream is not None:
            self.stream.__exit__(*raised)


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
    return get_device_properties(device).name


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What a card is: device memory and scratchpads in bytes, cores, clock in GHz."""

    name: str
    total_memory: int
    multi_processor_count: int
    scratchpad_per_core: int
    clock_ghz: float


def get_device_properties(device: Device = None) -> DeviceProperties:
    """The properties of a device; opens its card."""
    index = index_of(device)
    return DeviceProperties(
        name=f"Spyre software card {index}",
        total_memory=torch.accelerator.get_memory_info(index)[1],
        multi_processor_count=SPYRE_CARD_V1.cores,
        scratchpad_per_core=SPYRE_CARD_V1.lx_bytes,
        clock_ghz=SPYRE_CARD_V1.clock_ghz,
    )


def get_device_capability(device: Device = None) -> dict[str, Any]:
    """What the device can do, as torch.accelerator states it."""
    return dict(torch.accelerator.get_device_capability(index_of(device)))


def get_arch_list() -> list[str]:
    """The kinds of card that programs are compiled for."""
    return [ARCHITECTURE]


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Whether copies between two cards need no detour: always, between two of this process."""
    first, second = (get_device_properties(which) for which in (device, peer_device))
    return first != second


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 runs on the card: yes."""
    return True


def is_tf32_supported() -> bool:
    """Whether float32 products may be computed in TF32: no."""
    return False


def is_current_stream_capturing() -> bool:
    """Whether launches are captured into a graph: never, there are none."""
    return False


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


def stream(stream: torch.Stream | None) -> StreamContext:
    """The stream as a context manager: `with torch.spyre.stream(s):`; None changes nothing."""
    return StreamContext(stream)
