"""Hugging Face models on the card: trained weights to run them with, and adapters.

with openspyre.hf.adapt(model) as adapted:
    print(adapted)  # what was replaced where, and what did not apply
    model(**inputs)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # needs torch, which commands that only list do not
    from openspyre.hf.adapters import Adapted, Adapter


def adapt(
    model: Any,
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    adapters: Sequence[Adapter] | None = None,
) -> Adapted:
    """Puts adapters in force on this model alone; what it gives says which, and takes them off.

    Args:
        model: a torch.nn.Module, on any device.
        inputs: what it is called with, for adapters that ask which ops it has; without them
            `model.dummy_inputs` serves, which transformers' models have.
        adapters: those to try; without them the ones that openspyre ships.
    """
    from openspyre.hf.adapters import adapted
    from openspyre.hf.shipped import ADAPTERS

    return adapted(model, inputs, ADAPTERS if adapters is None else tuple(adapters))
