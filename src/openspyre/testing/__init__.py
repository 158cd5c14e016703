"""For tests of other repositories: `spyre`, and a pytest plugin that comes with the package.

docs/testing.md shows both, and a workflow file. Importing this needs pytest and loads no torch.
"""

from __future__ import annotations

import pytest

__all__ = ["spyre"]


def spyre(
    *,
    max_fallbacks: int | None = None,
    max_compiles: int | None = None,
    max_card_us: float | None = None,
    atol: float | None = None,
    rtol: float | None = None,
) -> pytest.MarkDecorator:
    """A decorator for a test: `pytest.mark.spyre` with its options checked as they are written.

    Args:
        max_fallbacks: calls that may run on the CPU instead of the card.
        max_compiles: graphs that `torch.compile` may make while the test runs on the card.
        max_card_us: microseconds of card time that its kernels may take.
        atol, rtol: how far the card's results may be from the CPU's; by default what
            `torch.testing.assert_close` allows for the dtype.
    """
    options = {
        "max_fallbacks": max_fallbacks, "max_compiles": max_compiles, "max_card_us": max_card_us,
        "atol": atol, "rtol": rtol,
    }  # fmt: skip
    return pytest.mark.spyre(
        **{name: value for name, value in options.items() if value is not None}
    )
