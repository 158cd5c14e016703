"""A device "openreg" in Python: PyTorch's reference backend, as far as its tests need one.

Tensors of it keep a tensor of the CPU, on which every op runs. One PrivateUse1 device fits in a
process: tests that use this one start processes for it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_LIBRARIES: list[torch.library.Library] = []


class OnHost(torch.Tensor):
    """A tensor of the device; `host` holds its elements."""

    host: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl


class Module:
    """What `torch.openreg` is."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)


def register() -> None:
    """Registers the device, once in a process."""
    _setup_privateuseone_for_python_backend("openreg", backend_module=Module())
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(_on_host, "PrivateUse1")
    own = torch.library.Library("aten", "IMPL")
    own.impl("empty.memory_format", _empty, "PrivateUse1")
    own.impl("empty_strided", _empty_strided, "PrivateUse1")
    own.impl("_copy_from", _copy_from, "PrivateUse1")
    _LIBRARIES.extend((fallback, own))


def placed(host: torch.Tensor) -> torch.Tensor:
    """A tensor of the device with these elements; memory is shared."""
    made = torch._C._acc.create_empty_tensor(host.shape, host.dtype)
    made.__class__ = OnHost
    made.host = host
    return made


def _host(value: Any) -> Any:
    match value:
        case OnHost():
            return value.host
        case torch.device(type="openreg"):
            return torch.device("cpu")
    return value


def _on_host(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Any op: on the CPU, with its results on the device, or the arguments they are."""
    given: dict[int, torch.Tensor] = {}

    def host(value: Any) -> Any:
        found = _host(value)
        if isinstance(value, OnHost):
            given[id(found)] = value
        return found

    def back(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in given:
            return placed(value)
        written = given[id(value)]
        if written.shape != value.shape:  # `out=` grew
            written.data = placed(value)
        return written

    return tree_map(back, op(*tree_map(host, args), **tree_map(host, kwargs)))


def _empty(size: Any, *, dtype: Any = None, **_: Any) -> torch.Tensor:
    return placed(torch.empty(size, dtype=dtype))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> torch.Tensor:
    return placed(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Any, destination: Any, non_blocking: bool = False) -> torch.Tensor:
    _host(destination).copy_(_host(source))
    return destination
