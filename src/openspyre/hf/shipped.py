"""The adapters that openspyre ships: `spyre adapt list` says whether they are still needed."""

from __future__ import annotations

from openspyre.hf.adapters import Adapter

ADAPTERS: tuple[Adapter, ...] = ()
