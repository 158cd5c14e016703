"""What Dynamo and Inductor ask a device: its index, streams, properties. Loads no Inductor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

from openspyre.device.streams import ARCHITECTURE
from openspyre.spec import SPYRE_CARD_V1

NAME = "spyre"


@dataclass(frozen=True, slots=True)
class Properties:
    """The part of a device's properties that Inductor reads."""

    name: str = NAME
    multi_processor_count: int = SPYRE_CARD_V1.cores
    total_memory: int = SPYRE_CARD_V1.memory_bytes


class SpyreInterface(DeviceInterface):
    """The card as a Dynamo device."""

    device = torch.device  # type: ignore[assignment]
    Event = torch.Event
    Stream = torch.Stream

    class Worker:
        @staticmethod
        def set_device(device: int) -> None:
            torch.accelerator.set_device_index(device)

        @staticmethod
        def current_device() -> int:
            return torch.accelerator.current_device_index()

        @staticmethod
        def get_device_properties(device: Any = None) -> Properties:
            return Properties()

    @staticmethod
    def current_device() -> int:
        return torch.accelerator.current_device_index()

    @staticmethod
    def set_device(device: Any) -> None:
        torch.accelerator.set_device_index(device)

    @staticmethod
    def exchange_device(device: int) -> int:
        return int(torch._C._accelerator_exchangeDevice(device))

    @staticmethod
    def maybe_exchange_device(device: int) -> int:
        return int(torch._C._accelerator_maybeExchangeDevice(device))

    @staticmethod
    def device_count() -> int:
        return torch.accelerator.device_count()

    @staticmethod
    def is_available() -> bool:
        return torch.accelerator.is_available()

    @staticmethod
    def current_stream() -> torch.Stream:
        return torch.accelerator.current_stream()

    @staticmethod
    def set_stream(stream: torch.Stream) -> None:
        torch.accelerator.set_stream(stream)

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        return int(torch.accelerator.current_stream(device_idx).stream_id)

    @staticmethod
    def synchronize(device: Any = None) -> None:
        torch.accelerator.synchronize(device)

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        return ARCHITECTURE

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return True

    @staticmethod
    def memory_allocated(device: Any = None) -> int:
        return torch.accelerator.memory_allocated(device)


raw_stream = SpyreInterface.get_raw_stream


def register() -> None:
    register_interface_for_device(NAME, SpyreInterface)
    for index in range(torch.accelerator.device_count()):
        register_interface_for_device(f"{NAME}:{index}", SpyreInterface)
