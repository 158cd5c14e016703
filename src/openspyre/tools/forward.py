"""One forward of a config's stock model, cut to few layers, as kernels: no weights, no memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from openspyre.errors import SpyreError
from openspyre.tools.layered import Layered, bare_model, cut_config

if TYPE_CHECKING:
    from openspyre.frontend.shapes_only import Traced


@dataclass(frozen=True, slots=True)
class Forward:
    """What one forward of a cut model is.

    Attributes:
        cache_bytes: what every layer's keys, values and states take.
    """

    traced: Traced
    cache_bytes: tuple[int, ...]


Change = Callable[[nn.Module], None]


def forward_traced(
    model: Layered,
    kept: Sequence[int],
    *,
    tokens: int,
    context: int,
    batch: int,
    dtype: str,
    change: Change | None = None,
    keep: bool = False,
) -> Forward:
    """The kernels of one forward of a model that has the layers `kept` alone.

    A decoder computes the logits of the last position and keeps its keys and values in a static
    cache with room for `context` tokens, of which the new ones are the last. `change` is done to
    the model first.

    Args:
        keep: the weights may stay in LX between launches.

    Raises:
        SpyreError: the model does not trace.
    """
    # Loads Inductor, which needs the device to be registered.
    from openspyre.frontend.shapes_only import NoSingleGraph, fake_mode, faked, traced

    config = cut_config(model.config, kept)
    kind = getattr(torch, dtype)
    module = bare_model(config, kind)
    if change is not None:
        change(module)
    mode = fake_mode()
    faked(module, mode)
    caches: list[Any] = []
    with mode, torch.no_grad():
        ids = torch.zeros((batch, tokens), dtype=torch.int64, device="spyre")
        arguments: dict[str, Any] = {"input_ids": ids}
        if model.decodes:
            positions = torch.arange(context - tokens, context, device="spyre")
            caches.append(_cache(module, config, ids, context))
            arguments |= {
                "position_ids": positions.expand(batch, tokens),
                "past_key_values": caches[0],
                "use_cache": True,
                "logits_to_keep": 1,
            }
        taken = _taken(module, arguments, config.model_type)
        mask = torch.ones((batch, context), dtype=torch.int64, device="spyre")
    try:
        found = traced(module, mode, taken, keep=keep)
    except NoSingleGraph:
        # Some models make their mask from the length of what is in the cache, which is a value.
        found = traced(module, mode, {**taken, "attention_mask": mask}, keep=keep)
    return Forward(found, tuple(map(_bytes_of, caches[0].layers)) if caches else ())


def _taken(module: nn.Module, arguments: dict[str, Any], kind: str) -> dict[str, Any]:
    """The arguments that the model's forward takes."""
    names = inspect.signature(module.forward).parameters
    if "input_ids" not in names:
        raise SpyreError(
            f"a model of type {kind} takes no tokens",
            why=f"it takes {next(iter(names))}",
            hint="estimate takes models of text",
        )
    if any(one.kind is one.VAR_KEYWORD for one in names.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in names}


def _bytes_of(layer: Any) -> int:
    """What the tensors of a layer's cache take."""
    held = torch.utils._pytree.tree_leaves(vars(layer))
    return sum(t.numel() * t.element_size() for t in held if isinstance(t, torch.Tensor))


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
