"""torch.spyre.numerics: how launches compute from here on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from openspyre import _C
from openspyre.numerics import Numerics, make_numerics


def current_numerics() -> Numerics:
    """The numerics that a launch would take with it now."""
    return Numerics.of_words(_C.numerics())


@contextmanager
def numerics(mode: str | Numerics, **switches: object) -> Iterator[Numerics]:
    """Launches inside the context compute as `mode` says: "ieee" or "card".

    `torch.spyre.numerics("card", acc_chunk=8, acc_format="fp32")`: the switches of
    `openspyre.numerics.Numerics`. The choice is the process's, as with torch.backends, so that
    backward, which runs on other threads, computes like forward; a launch keeps the numerics it
    was submitted with. The default comes from OPENSPYRE_NUMERICS.

    Raises:
        InvalidSetting: there is no such mode or switch.
    """
    chosen = mode if isinstance(mode, Numerics) else make_numerics(mode, switches)
    before = _C.numerics()
    _C.set_numerics(*chosen.words())
    try:
        yield chosen
    finally:
        _C.set_numerics(*before)
