"""A stock transformers model by its config alone: its layers by kind, or cut to few of them."""

from __future__ import annotations

import copy
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from openspyre.errors import SpyreError
from openspyre.tools.experts import EVEN, has_experts, register

Kind = tuple[object, ...]
_ALIKE = 2  # layers of a kind that are compiled, besides the first two and the last


@dataclass(frozen=True, slots=True)
class Layered:
    """A model's layers.

    Attributes:
        name: of the module list that holds them, such as `model.layers`.
        kinds: of every layer, numbered from 0 in order of appearance.
        kind_names: by number.
        parameters: of the whole model, shared ones once.
        decodes: it takes a cache and gives logits.
        has_experts: it is a mixture of experts (`experts`).
    """

    config: Any
    name: str
    kinds: tuple[int, ...]
    kind_names: tuple[str, ...]
    parameters: int
    decodes: bool
    has_experts: bool


def configured(source: str, overrides: Mapping[str, Any]) -> Any:
    """The config of a file, a folder with a config.json, or a model type.

    Raises:
        SpyreError: there is none, or it does not take the overrides.
    """
    from transformers import AutoConfig
    from transformers.models.auto import configuration_auto

    types = configuration_auto.CONFIG_MAPPING_NAMES  # type: ignore[attr-defined]
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    if path.is_file():
        given = _read(path)
    elif source in types:
        given = {"model_type": source}
    else:
        near = difflib.get_close_matches(source, types, 3)
        raise SpyreError(
            f"{source} is no config.json, no folder with one and no model type",
            why="names on a hub cannot be fetched here",
            hint=f"did you mean {' or '.join(near)}?"
            if near
            else "download the model's config.json, or name a type: granite --override "
            "num_hidden_layers=40",
        )
    given = {**given, **overrides}
    kind = given.pop("model_type", None)
    if kind not in types:
        raise SpyreError(f"{source} has no model_type that transformers knows", why=f"it is {kind}")
    try:
        return AutoConfig.for_model(kind, **given)
    except Exception as error:  # the checks of any config, of no one kind
        raise SpyreError(f"{source} is no config of a {kind} model", why=_line(error)) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpyreError(f"cannot read the config {path}", why=_line(error)) from None
    if not isinstance(found, dict):
        raise SpyreError(f"the config {path} is no JSON object")
    return found


class NotLayered(SpyreError):
    """A model that has no one stack of layers."""


def layered(config: Any) -> Layered:
    """The layers of a config's model; makes the model without memory.

    Raises:
        NotLayered: it has no one list of `num_hidden_layers` layers.
        SpyreError: it cannot be made.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise NotLayered(
            f"a model of type {config.model_type} has no one stack of layers",
            why="it is an encoder and a decoder",
            hint="estimate takes decoders and encoders with one stack",
        )
    model = bare_model(config, torch.float16)
    count = getattr(config, "num_hidden_layers", None)
    lists = [
        (name, part)
        for name, part in model.named_modules()
        if isinstance(part, nn.ModuleList) and len(part) == count
    ]
    if not count or len(lists) != 1:
        raise NotLayered(
            f"a model of type {config.model_type} has no one stack of layers",
            why=f"{len(lists)} lists have num_hidden_layers = {count} modules",
            hint="estimate takes decoders and encoders with one stack; of a model with several "
            "parts give the config of one (text_config)",
        )
    name, layers = lists[0]
    numbers: dict[Kind, int] = {}
    kinds = [numbers.setdefault(_kind(config, n, layers[n]), len(numbers)) for n in range(count)]
    parameters = sum(p.numel() for p in model.parameters())
    names = _kind_names(config, kinds, len(numbers))
    return Layered(
        config, name, tuple(kinds), names, parameters, _decodes(config), has_experts(model)
    )


def _kind_names(config: Any, kinds: Sequence[int], count: int) -> tuple[str, ...]:
    """`layer`, or one name for each kind: what the config calls it, or its number."""
    if count == 1:
        return ("layer",)
    types = getattr(config, "layer_types", None) or [""] * len(kinds)
    named = [f"layer ({types[kinds.index(n)]})" for n in range(count)]
    return tuple(named) if len(set(named)) == count else tuple(f"layer {n}" for n in range(count))


def kept_layers(kinds: Sequence[int]) -> tuple[int, ...]:
    """The layers to compile: the first two, the last, and two between them of every kind.

    Two, for Inductor computes a sum of residuals anew in every second layer; the first two, for
    what they compute anew begins with the embeddings.
    """
    last = len(kinds) - 1
    alike = [n for same in _between(kinds).values() for n in same[:_ALIKE]]
    return tuple(sorted({0, min(1, last), last, *alike}))


def stand_ins(kinds: Sequence[int], kept: Sequence[int]) -> tuple[int, ...]:
    """For every layer of the model the position in `kept` of the one whose time it takes.

    Layers of a kind take the times of the two of them that were kept in turn.
    """
    standing = {n: n for n in kept}
    for same in _between(kinds).values():
        standing |= {n: same[turn % _ALIKE] for turn, n in enumerate(same)}
    return tuple(kept.index(standing[n]) for n in range(len(kinds)))


def _between(kinds: Sequence[int]) -> dict[int, list[int]]:
    """The layers of every kind without the first two and the last."""
    found: dict[int, list[int]] = {}
    for n in range(2, len(kinds) - 1):
        found.setdefault(kinds[n], []).append(n)
    return found


def cut_config(config: Any, kept: Sequence[int]) -> Any:
    """The config of the model with the layers `kept`; lists with an entry per layer are cut."""
    count = config.num_hidden_layers
    cut = copy.deepcopy(config)
    for name, values in config.to_dict().items():
        if isinstance(values, (list, tuple)) and len(values) == count:
            setattr(cut, name, [values[n] for n in kept])
    cut.num_hidden_layers = len(kept)
    return cut


def bare_model(config: Any, dtype: torch.dtype) -> nn.Module:
    """The config's stock model on the meta device.

    Raises:
        SpyreError: transformers cannot make it.
    """
    factory = _factory(config)
    register()
    try:
        with torch.device("meta"):
            model: nn.Module = factory.from_config(
                config, dtype=dtype, experts_implementation=EVEN
            ).eval()
    except Exception as error:  # the code of any model
        raise SpyreError(
            f"a model of type {config.model_type} cannot be made of its config", why=_line(error)
        ) from None
    return model


def _factory(config: Any) -> Any:
    from transformers import AutoModel, AutoModelForCausalLM

    return AutoModelForCausalLM if _decodes(config) else AutoModel


def _decodes(config: Any) -> bool:
    """Whether it is a causal language model: types that can be both say so by `is_decoder`."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

    architectures = getattr(config, "architectures", None) or ()
    if architectures:
        return any(name in CAUSAL.values() for name in architectures)
    if config.model_type in MASKED and not getattr(config, "is_decoder", False):
        return False
    return config.model_type in CAUSAL


def _kind(config: Any, number: int, layer: nn.Module) -> Kind:
    """What tells layers apart: their parts, the shapes of these, and the config's entries."""
    count = config.num_hidden_layers
    entries = tuple(
        (name, str(values[number]))
        for name, values in config.to_dict().items()
        if isinstance(values, (list, tuple)) and len(values) == count
    )
    parts = tuple((name, type(part).__name__) for name, part in layer.named_modules())
    weights = tuple((name, tuple(p.shape)) for name, p in layer.named_parameters())
    return entries, parts, weights


def _line(error: Exception) -> str:
    """What an error says, in one line: messages of configs have what is wrong in their second."""
    words = " ".join(" ".join(str(error).strip().splitlines()[:2]).split())
    return f"{type(error).__name__}: {words[:300]}" if words else type(error).__name__
