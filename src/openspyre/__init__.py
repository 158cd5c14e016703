"""openspyre: the Spyre dataflow accelerator as a PyTorch device that anybody can run.

Importing this package is cheap and registers nothing. `import torch` registers the device
"spyre" through the entry point `torch.backends`; `openspyre.require()` registers it where
autoload is off, and says why it cannot where it cannot.
"""

from __future__ import annotations

from openspyre.errors import BrokenInvariant, SpyreError, Unsupported

__version__ = "0.1.0"
__all__ = ["BrokenInvariant", "SpyreError", "Unsupported", "require"]


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
