"""Texts of device calls in what Inductor generates."""

from __future__ import annotations

from torch._inductor.codegen.common import DeviceOpOverrides, register_device_op_overrides
from torch._inductor.codegen.cpp_utils import DEVICE_TO_ATEN


class SpyreOpOverrides(DeviceOpOverrides):
    """Python, and C++ of packages."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"from openspyre.frontend.interface import raw_stream as {name}"

    def set_device(self, device_idx: int) -> str:
        return f"torch.accelerator.set_device_index({device_idx})"

    def synchronize(self) -> str:
        return "torch.accelerator.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        return f"torch.accelerator.device_index({device_idx})"

    # --- texts of generated C++ ---

    def cpp_kernel_type(self) -> str:
        return "void*"

    def kernel_header(self) -> str:
        return ""

    def kernel_driver(self) -> str:
        return ""

    def cpp_stream_type(self) -> str:
        return ""

    def aoti_get_stream(self) -> str:
        return ""

    def cpp_device_ptr(self) -> str:
        return ""

    def tma_descriptor_helpers(self) -> str:
        return ""

    def cpp_device_guard(self) -> str:
        return ""

    def cpp_aoti_device_guard(self) -> str:
        return ""

    def cpp_stream_guard(self) -> str:
        return ""

    def cpp_aoti_stream_guard(self) -> str:
        return ""


def register() -> None:
    DEVICE_TO_ATEN["spyre"] = "at::kPrivateUse1"
    register_device_op_overrides("spyre", SpyreOpOverrides())
