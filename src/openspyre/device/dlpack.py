"""Makes `torch.from_dlpack` take tensors of the card.

PyTorch 2.13 exports a tensor of an out-of-tree device, but does not say where it is: it compares
the device's name with "privateuse1", which no renamed device has.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.dlpack import DLDeviceType


@functools.cache
def install() -> None:
    """Let `Tensor.__dlpack_device__` answer for the card; called once, at autoload."""
    stock: Any = torch.Tensor.__dlpack_device__

    @functools.wraps(stock)
    def dlpack_device(self: torch.Tensor) -> tuple[Any, int]:
        if type(self) is torch.Tensor and self.device.type == "spyre":
            return DLDeviceType.kDLExtDev, self.get_device()
        answer: tuple[Any, int] = stock(self)
        return answer

    torch.Tensor.__dlpack_device__ = dlpack_device  # type: ignore[method-assign]
