"""Names that other devices' modules have and torch.spyre has not, each with the reason.

They are absent, so that code which looks for them with `hasattr` takes its other way; who asks
for one by name reads why, and what to do instead.
"""

from __future__ import annotations

from collections.abc import Mapping

_NO_GRAPHS = (
    "launches are not captured into graphs: a compiled graph is one launch already, "
    "which allocates nothing and runs no Python; use torch.compile"
)
_NO_EXTERNAL = "its streams belong to this process alone; use torch.spyre.Stream()"
_NO_POOLS = "its memory has one allocator; use set_per_process_memory_fraction to share a card"
_NO_IPC = "device memory is not shared between processes; send tensors with .cpu()"
_NO_SENSORS = "the card has no such sensor; `spyre smi` shows what it does"

ABSENT: Mapping[str, str] = {
    **dict.fromkeys(
        ("graph", "Graph", "graphs", "SpyreGraph", "graph_pool_handle", "make_graphed_callables"),
        _NO_GRAPHS,
    ),
    **dict.fromkeys(("ExternalStream", "get_stream_from_external"), _NO_EXTERNAL),
    **dict.fromkeys(
        ("MemPool", "use_mem_pool", "change_current_allocator", "caching_allocator_alloc",
         "caching_allocator_delete"),
        _NO_POOLS,
    ),
    **dict.fromkeys(("ipc_collect",), _NO_IPC),
    **dict.fromkeys(("temperature", "power_draw"), _NO_SENSORS),
}  # fmt: skip


def reason(name: str) -> str:
    """Why torch.spyre has no such attribute, after a colon; nothing where there is no reason."""
    return f": {ABSENT[name]}" if name in ABSENT else ""
