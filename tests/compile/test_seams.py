"""Every declared private seam of PyTorch still exists."""

from __future__ import annotations

import importlib
from functools import reduce

import pytest

from openspyre.seams import SEAMS, Seam


@pytest.mark.parametrize("seam", SEAMS, ids=lambda s: s.name)
def test_seam_exists(seam: Seam) -> None:
    module, _, path = seam.name.partition(":")
    assert reduce(getattr, path.split("."), importlib.import_module(module)) is not None
    assert seam.why
    assert seam.ends
