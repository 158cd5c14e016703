"""Registers the device with PyTorch, in the order that PyTorch needs.

Autoload must never break `import torch`: what goes wrong becomes one warning, and the device
stays off. `require` raises the same reason instead.
"""

from __future__ import annotations

import threading
import types
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

from openspyre.card.native import debug_mode
from openspyre.device.absent import reason
from openspyre.device.library import missing_bytes
from openspyre.errors import SpyreError
from openspyre.settings import settings
from openspyre.spec import SPYRE_CARD_V1

NAME = "spyre"
_UNNAMED = "privateuseone"
_REBUILD = "build it again: pip install --no-build-isolation --no-deps --force-reinstall ."
_lock = threading.Lock()
_registered = False


class DeviceOff(SpyreError):
    """The device cannot be registered in this process."""


def autoload() -> None:
    """Registers the device; warns and leaves it off where it cannot be."""
    try:
        if settings().autoload:
            _register_once()
    except DeviceOff as off:
        warnings.warn(f"openspyre leaves the device off: {off}", stacklevel=2)
    except Exception as error:  # a process edge: `import torch` must go on
        warnings.warn(f"openspyre leaves the device off: {error!r}", stacklevel=2)


def require() -> None:
    """Registers the device if it is not yet.

    Raises:
        DeviceOff: it cannot be registered.
    """
    _register_once()


def is_registered() -> bool:
    """Whether "spyre" is ours in this process."""
    return _registered


def _register_once() -> None:
    global _registered
    with _lock:
        if _registered:
            return
        _check_torch_version()
        _check_name_is_free()
        _register()
        _registered = True


def _check_torch_version() -> None:
    try:
        from openspyre._built import TORCH_VERSION as built
    except ImportError:
        raise DeviceOff(
            "the native extension is not built",
            hint="pip install --no-build-isolation --no-deps . in the source folder",
        ) from None
    if built != torch.__version__:
        raise DeviceOff(
            f"openspyre was built against torch {built}, this is torch {torch.__version__}",
            why="the extension uses C++ tables that differ between versions of torch",
            hint=_REBUILD,
        )


def _check_name_is_free() -> None:
    holder = torch._C._get_privateuse1_backend_name()
    if holder != _UNNAMED:
        raise DeviceOff(
            f"the backend name of torch is already {holder!r}",
            why="torch has room for one out-of-tree device per process, another package holds it",
            hint="uninstall the other package or set OPENSPYRE_AUTOLOAD=off",
        )
    if hasattr(torch, NAME):
        raise DeviceOff(
            f"torch.{NAME} already exists",
            why="another package provides a device of this name",
            hint="uninstall the other package or set OPENSPYRE_AUTOLOAD=off",
        )


def _check_files() -> None:
    folder = Path(__file__).parents[1]
    for path in (folder / "_C.so", folder / "lib" / "libspyre_card.so"):
        if path.exists() and (missing := missing_bytes(path)):
            raise DeviceOff(
                f"the file {path} is cut short: its last {missing} bytes are missing",
                hint=_REBUILD,
            )


def _load_extension() -> Any:
    _check_files()
    try:
        from openspyre import _C
    except ImportError as error:
        raise DeviceOff(f"the native extension does not load: {error}", hint=_REBUILD) from error
    return _C


def _register() -> None:
    extension = _load_extension()
    from openspyre.device import dlpack
    from openspyre.device.distributed import registration
    from openspyre.device.memory import capacity
    from openspyre.frontend.activation import activate

    chosen = settings()
    extension.configure(
        devices=chosen.devices,
        memory=capacity(chosen, SPYRE_CARD_V1),
        threads=chosen.threads,
        card=SPYRE_CARD_V1.numbers(),
        debug=debug_mode(chosen.debug).value,
        run=str(chosen.run),
    )
    extension.set_fallback_mode(chosen.fallback)
    extension.set_numerics(*chosen.numerics.words())
    rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _module())
    generate_methods_for_privateuse1_backend(for_storage=True)
    dlpack.install()
    registration.register()
    activate()


def _module() -> types.ModuleType:
    """torch.spyre."""
    from openspyre import _C
    from openspyre.device import arithmetic, memory, random, snapshot, streams

    module = types.ModuleType(f"torch.{NAME}", "The Spyre device (openspyre).")
    public = {
        "memory": memory,
        "random": random,
        "streams": streams,
        "Stream": torch.Stream,
        "Event": torch.Event,
        "_lazy_init": streams.init,
        "_is_in_bad_fork": streams.is_in_bad_fork,
        "_initialized": True,  # torch.utils.checkpoint then restores the random state too
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        "default_generators": random.default_generators(),
        "fallbacks": _C.fallbacks,
        "fallback_reasons": _C.fallback_reasons,
        "reset_fallbacks": _C.reset_fallbacks,
        "numerics": arithmetic.numerics,
        "current_numerics": arithmetic.current_numerics,
        "__getattr__": _lazy_attribute,
    }
    holders = {"streams": streams, "memory": memory, "random": random, "snapshot": snapshot}
    for source, names in _FORWARDED.items():
        public |= {name: getattr(holders[source], name) for name in names.split()}
    for name, value in public.items():
        setattr(module, name, value)
    return module


_FORWARDED = {
    "streams": """
        is_available is_initialized init device_count current_device set_device get_device_name
        get_device_properties get_device_capability synchronize current_stream default_stream
        set_stream stream device device_of StreamContext get_arch_list can_device_access_peer
        is_bf16_supported is_tf32_supported is_current_stream_capturing
    """,
    "memory": """
        memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_stats
        mem_get_info empty_cache reset_peak_memory_stats reset_accumulated_memory_stats
        device_memory_used set_per_process_memory_fraction get_per_process_memory_fraction
        lx_residents evict_lx host_memory_stats reset_peak_host_memory_stats
        reset_accumulated_host_memory_stats
    """,
    "snapshot": """
        memory_snapshot memory_summary memory_stats_as_nested_dict _snapshot _dump_snapshot
    """,
    "random": """
        manual_seed manual_seed_all seed seed_all initial_seed get_rng_state set_rng_state
        get_rng_state_all set_rng_state_all
    """,
}


def _lazy_attribute(name: str) -> Any:
    """Inductor asks for `Scheduling`: loads the compiler, which registers itself.

    Always an AttributeError: a class returned from here would be registered a second time,
    without its custom pass; and Inductor then goes on without us, which is what graphs on the CPU
    need when our compiler does not load. Graphs on the card load it again and raise the reason.
    """
    if name == "Scheduling":
        _load_compiler()
    raise AttributeError(f"module 'torch.{NAME}' has no attribute {name!r}{reason(name)}")


@cache
def _load_compiler() -> None:
    try:
        import openspyre.frontend.scheduling  # noqa: F401
    except Exception as error:  # a process edge: compilation for the CPU must go on
        warnings.warn(f"openspyre leaves torch.compile for the device off: {error!r}", stacklevel=2)
