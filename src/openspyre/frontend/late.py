"""Acts right after another package's module has been imported, whoever imports it.

What PyTorch must know of the device before it asks anybody, in modules that are too slow to import
for everybody who imports torch.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, act: Callable[[], None]) -> None:
    """Calls `act` once the module `name` has been imported: now, if it has been already."""
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _Finder(name, act))


class _Finder(MetaPathFinder):
    """Finds one module, once, as the others do, and acts after it has been executed."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self.name, self.act = name, act

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _ActingLoader(spec, spec.loader, self.act)
        return spec


class _ActingLoader(Loader):
    def __init__(self, spec: ModuleSpec, stock: Loader, act: Callable[[], None]) -> None:
        self.spec, self.stock, self.act = spec, stock, act

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.stock.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.spec.loader = module.__loader__ = self.stock  # who asks later finds the module's own
        self.stock.exec_module(module)
        self.act()
