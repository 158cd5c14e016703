"""Where a browser is: the test that needs one is in the long lane where there is none."""

from __future__ import annotations

import shutil

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def browser() -> str | None:
    """A browser that can be told what to do from the command line, if there is one."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if browser() or config.getoption("--long"):
        return
    needy = [item for item in items if item.get_closest_marker("browser")]
    if needy:
        items[:] = [item for item in items if item not in needy]
        config.hook.pytest_deselected(items=needy)
        print("\nno Chromium here: tests of the page in a browser are in the long lane (--long)")
