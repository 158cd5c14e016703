"""openspyre: the Spyre dataflow accelerator as a PyTorch device that anybody can run.

Importing this package is cheap and registers nothing. `import torch` registers the device
"spyre" through the entry point `torch.backends`; `openspyre.require()` registers it where
autoload is off, and says why it cannot where it cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from openspyre.errors import BrokenInvariant, InvalidHint, SpyreError, Unsupported

__version__ = "0.1.0"
__all__ = ["BrokenInvariant", "InvalidHint", "SpyreError", "Unsupported", "hint", "require"]


def _autoload() -> None:
    """Torch's entry point: registers the device, or warns once and leaves it off."""
    from openspyre.device import register

    register.autoload()


def require() -> None:
    """Makes sure that the device "spyre" is registered.

    Raises:
        SpyreError: it cannot be, with the reason and what to try.
    """
    try:
        import torch  # noqa: F401 - apart from the import below, which may fail for our own reasons
    except ImportError as error:
        hint = "pip install 'torch==2.13.*', or `spyre doctor`"
        raise SpyreError("torch cannot be imported", why=f"{error}", hint=hint) from None
    from openspyre.device import register

    register.require()


def hint(
    *,
    division: Mapping[str, int] | None = None,
    tile: Mapping[str, int] | None = None,
    residency: Mapping[str, str] | None = None,
    weights: str | None = None,
    kernel: str = "*",
) -> AbstractContextManager[None]:
    """Inside this context, kernels of compiled functions follow decisions of yours.

    Names are those that `OPENSPYRE_TRACE=stages` and `spyre explain` print: an axis of steps
    (`i0`, or `s1.i0` in step s1), a dim of one op that is no axis (`contract0.r0`; tiles only), a
    local tensor (`buf0`). What is not named is decided as always. A function compiled outside is
    compiled again inside, and the other way round. Eager ops follow no hints.

    Args:
        division: over how many cores an axis is split.
        tile: how many points of a dim one trip of its loop takes.
        residency: "lx" or "device": where a tensor lies that crosses steps.
        weights: "lx" or "device": whether parameters and buffers that a kernel only reads stay in
            LX from launch to launch, as many as have room there (default: what
            OPENSPYRE_KEEP_WEIGHTS says).
        kernel: the kernels that it is for, by name; `*` and `?` stand for others. Each of them
            must have all dims and tensors that are named.

    Raises:
        InvalidHint: a value that no kernel can follow; from a call that compiles, a hint that its
            kernel cannot follow, with the reason and what to try.
    """
    from openspyre.frontend import hints

    return hints.hint(division or {}, tile or {}, residency or {}, weights, kernel)
