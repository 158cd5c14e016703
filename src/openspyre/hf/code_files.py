"""Python files of other people, run as modules: their functions are found where Dynamo looks."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import ModuleType

_numbers = itertools.count()


def module_of_file(path: Path) -> ModuleType:
    """Runs a file as a module of its own name; nothing is written beside it.

    Raises:
        Exception: whatever the file raises.
    """
    name = f"_spyre_file_{next(_numbers)}_{path.stem}"
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module
