"""One folder of compiled programs for all processes of this folder's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def shared_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes that the tests start share what they compile; it is all compiled in this run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENSPYRE_CACHE", str(tmp_path_factory.mktemp("programs")))
        patch.setenv("OPENSPYRE_CACHE_PROGRAMS", "on")
        yield
