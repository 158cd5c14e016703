"""Tells torch.distributed that collectives on tensors of the card are spyreccl's."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

BACKEND = "spyreccl"


def register() -> None:
    """Makes spyreccl a backend, and the default one of the device; where torch can do such work."""
    if dist.is_available():
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["spyre"])


def _create(options: Any, _: Any) -> Any:
    from openspyre.device.distributed import group  # only processes with a group need it

    return group.create(options)
