"""One forward of a config's stock model, cut to few layers, as kernels: no weights, no memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from openspyre.errors import SpyreError
from openspyre.tools.layered import Layered, bare_model, cut_config

if TYPE_CHECKING:
    from openspyre.frontend.shapes_only import Traced


def forward_traced(
    model: Layered, kept: Sequence[int], *, tokens: int, context: int, batch: int, dtype: str
) -> Traced:
    """The kernels of one forward of a model that has the layers `kept` alone.

    A decoder computes the logits of the last position and keeps its keys and values in a static
    cache with room for `context` tokens, of which the new ones are the last.

    Raises:
        SpyreError: the model does not trace.
    """
    # Loads Inductor, which needs the device to be registered.
    from openspyre.frontend.shapes_only import fake_mode, faked, traced

    config = cut_config(model.config, kept)
    kind = getattr(torch, dtype)
    module = bare_model(config, kind)
    mode = fake_mode()
    faked(module, mode)
    with mode, torch.no_grad():
        ids = torch.zeros((batch, tokens), dtype=torch.int64, device="spyre")
        arguments: dict[str, Any] = {"input_ids": ids}
        if model.decodes:
            positions = torch.arange(context - tokens, context, device="spyre")
            arguments |= {
                "position_ids": positions.expand(batch, tokens),
                "past_key_values": _cache(module, config, ids, context),
                "use_cache": True,
                "logits_to_keep": 1,
            }
    return traced(module, mode, arguments)


def _cache(module: nn.Module, config: Any, ids: torch.Tensor, context: int) -> Any:
    """A static cache; a forward that computes nothing gives it the sizes that the model wants."""
    from transformers import StaticCache

    try:
        cache = StaticCache(config=config, max_cache_len=context)
        module(input_ids=ids, past_key_values=cache, use_cache=True)
    except Exception as error:  # the code of any model
        raise SpyreError(
            f"a model of type {config.model_type} does not run with a static cache",
            why=str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__,
        ) from None
    return cache
