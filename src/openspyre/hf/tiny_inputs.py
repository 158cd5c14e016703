"""What a tiny model is called with: made from the arguments that its forward names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig

from openspyre.hf.recipes import Recipe, Recipes

Inputs = dict[str, Any]
BATCH, LENGTH, PADDED = 2, 16, 5
_SAMPLES = 4000  # of sound
_GRID = 4  # patches in each direction, where a model takes images as patches


@dataclass(frozen=True, slots=True)
class Calls:
    """Arguments for one forward pass, and for `generate`.

    Attributes:
        forward: without a cache; the second row is padded at its end.
        generate: padded at its beginning; None where the model generates nothing.
    """

    forward: Inputs
    generate: Inputs | None


def inputs_of(model: Any, rules: Recipes, recipe: Recipe, seed: int = 0) -> Calls:
    """The calls that a trial of the model makes."""
    draw = _Draw(model, rules, torch.Generator().manual_seed(seed))
    takes = set(inspect.signature(model.forward).parameters)
    shared = _media(draw, takes) | _own(recipe, draw)
    shared = {name: value for name, value in shared.items() if name not in recipe.without}
    forward = {**_text(draw, takes, shared, left=False), **shared}
    if "use_cache" in takes:
        forward["use_cache"] = False
    can = recipe.generate and hasattr(model, "can_generate") and model.can_generate()
    generate = {**_text(draw, takes, shared, left=True), **shared} if can else None
    if generate is not None:
        for name in ("decoder_input_ids", "decoder_attention_mask"):
            generate.pop(name, None)
    for name in recipe.without:
        forward.pop(name, None)
        if generate is not None:
            generate.pop(name, None)
    return Calls(forward, generate)


@dataclass(frozen=True, slots=True)
class _Draw:
    model: Any
    rules: Recipes
    generator: torch.Generator

    @property
    def config(self) -> Any:
        return self.model.config

    def ids(self, *shape: int) -> torch.Tensor:
        low, high = self.rules.ids.prompt
        return torch.randint(low, min(high, self._vocabulary()), shape, generator=self.generator)

    def _vocabulary(self) -> int:
        try:
            text = self.config.get_text_config()
        except ValueError:  # several speak: prompts are for the first
            text = self.config.get_text_config(encoder=True)
        count = getattr(text, "vocab_size", None)
        return count if isinstance(count, int) and count > 3 else 300

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def channels(self) -> int:
        found = self.named("num_channels", self.named("in_channels", 3))
        return found if isinstance(found, int) else 3

    def patch(self) -> int:
        """Numbers in a patch of an image, as models with patch grids want it."""
        side = self.named("patch_size", 8)
        return self.channels() * int(self.named("temporal_patch_size", 1)) * int(side) ** 2

    def named(self, name: str, default: Any) -> Any:
        """The field of the config, or of a config inside it."""
        for config in (self.config, *_inside(self.config)):
            if isinstance(found := getattr(config, name, None), (int, list, tuple)):
                return found
        return default


def _inside(config: Any) -> list[Any]:
    parts = ("vision_config", "audio_config", "encoder", "backbone_config", "text_config")
    found = [part for name in parts if (part := getattr(config, name, None)) is not None]
    return [part for part in found if not isinstance(part, (dict, str))]


def _text(draw: _Draw, takes: set[str], shared: Mapping[str, Any], *, left: bool) -> Inputs:
    found: Inputs = {}
    main = getattr(draw.model, "main_input_name", "input_ids")
    speaks = main == "input_ids" or "pixel_values" in shared or "input_features" in shared
    if "input_ids" in takes and speaks and "input_ids" not in shared:
        ids = draw.ids(BATCH, LENGTH)
        media = _with_media(draw, shared, ids)
        mask = torch.ones_like(ids if media is None else media)
        if media is not None:
            ids = media
        elif left:
            mask[1, :PADDED] = 0
        else:
            mask[1, -PADDED:] = 0
        found["input_ids"] = ids * mask
        if "attention_mask" in takes:
            found["attention_mask"] = mask
        if "mm_token_type_ids" in takes and media is not None:
            found["mm_token_type_ids"] = (ids == draw.named("image_token_id", -1)).long()
    if "bbox" in takes:
        found["bbox"] = torch.zeros((BATCH, LENGTH, 4), dtype=torch.int64)
    if "decoder_input_ids" in takes:
        found["decoder_input_ids"] = draw.ids(BATCH, LENGTH)
    return found


def _with_media(draw: _Draw, shared: Mapping[str, Any], ids: torch.Tensor) -> Any:
    """Ids with a place for each feature of images and sounds; None where there are none."""
    found = None
    for kind, given, place in (
        ("image", "pixel_values", "get_image_features"),
        ("audio", "input_features", "get_audio_features"),
    ):
        token = _token(draw.config, kind)
        if token is None or given not in shared:
            continue
        if each := _features(draw.model, place, shared):
            found = _holding(ids if found is None else found, [(token, each)])
    return found


def _holding(ids: torch.Tensor, tokens: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Ids with runs of tokens in each row, given as token and length."""
    runs = [torch.full((len(ids), count), token) for token, count in tokens]
    return torch.cat([ids[:, :2], *runs, ids[:, 2:]], 1)


def _token(config: Any, kind: str) -> int | None:
    """The id that stands for a feature of an image or a sound, of this config or one inside."""
    for name in (f"{kind}_token_id", f"{kind}_token_index"):
        if isinstance(found := getattr(config, name, None), int):
            return found
    inside = (part for part in vars(config).values() if isinstance(part, PreTrainedConfig))
    return next((found for part in inside if (found := _token(part, kind)) is not None), None)


def _features(model: Any, name: str, shared: Mapping[str, Any]) -> int:
    """How many vectors each row's image or sound becomes; 0 where the model does not tell."""
    every = [function for part in model.modules() if (function := getattr(part, name, None))]
    # Those outside may hand on all that they are given, or forget some of it.
    takes = {part: len(_named(part) & set(shared)) for part in every}
    best = max(takes, key=takes.__getitem__, default=None)
    return 0 if best is None or not takes[best] else _told(best, shared)


def _named(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters)


def _told(function: Callable[..., Any], shared: Mapping[str, Any]) -> int:
    asked = _named(function)
    with torch.no_grad():
        found = function(**{key: value for key, value in shared.items() if key in asked})
    if (pooled := getattr(found, "pooler_output", found)) is None:
        pooled = found.last_hidden_state
    found = pooled
    if isinstance(found, (list, tuple)):
        found = torch.cat([part.reshape(-1, part.shape[-1]) for part in found])
    return int(found.reshape(-1, found.shape[-1]).shape[0]) // BATCH


def _media(draw: _Draw, takes: set[str]) -> Inputs:
    found: Inputs = {}
    if "image_grid_thw" in takes and "pixel_values" in takes:
        found["pixel_values"] = draw.normal(BATCH * _GRID * _GRID, draw.patch())
        found["image_grid_thw"] = torch.tensor([[1, _GRID, _GRID]] * BATCH)
    elif {"grid_thw", "hidden_states"} <= takes or {"grid_thw", "pixel_values"} <= takes:
        name = "hidden_states" if "hidden_states" in takes else "pixel_values"
        found[name] = draw.normal(BATCH * _GRID * _GRID, draw.patch())
        found["grid_thw"] = torch.tensor([[1, _GRID, _GRID]] * BATCH)
    elif "pixel_values" in takes:
        side = draw.named("image_size", 64)
        high, wide = (side[0], side[-1]) if isinstance(side, (list, tuple)) else (side, side)
        found["pixel_values"] = draw.normal(BATCH, draw.channels(), high, wide)
    main = getattr(draw.model, "main_input_name", "")
    if "input_values" in takes and main == "input_values":
        found["input_values"] = draw.normal(BATCH, _SAMPLES)
    if "input_features" in takes:
        bins = draw.named("num_mel_bins", draw.named("feature_size", 80))
        steps = 2 * draw.named("max_source_positions", 32)
        found["input_features"] = draw.normal(BATCH, bins, steps)
        for mask in {"input_features_mask", "feature_attention_mask"} & takes:
            found[mask] = torch.ones((BATCH, steps), dtype=torch.int64)
    return found


def _own(recipe: Recipe, draw: _Draw) -> Inputs:
    return {name: _made(value, draw) for name, value in recipe.inputs.items()}


def _made(value: Any, draw: _Draw) -> Any:
    if isinstance(value, dict):
        if "high" in value:
            low, high = value.get("low", 0), value["high"]
            whole = torch.randint(int(low), int(high), value["shape"], generator=draw.generator)
            return whole.float() if isinstance(high, float) else whole
        if "fill" in value:
            return torch.full(value["shape"], value["fill"])
        if "grid" in value:
            return _places(value["grid"])
        if "tokens" in value:
            return _holding(draw.ids(BATCH, LENGTH), value["tokens"])
        return draw.normal(*value["shape"])
    if isinstance(value, list):
        return torch.tensor(value)
    return value


def _places(side: int) -> torch.Tensor:
    """Column and row of each patch of a square image [batch, patches, 2]."""
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.stack([column, row], -1).reshape(1, -1, 2).repeat(BATCH, 1, 1)
