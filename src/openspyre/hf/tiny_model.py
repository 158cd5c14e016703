"""A tiny random model of a transformers type, and weights that make its mistakes visible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto import modeling_auto

from openspyre.errors import SpyreError
from openspyre.hf.recipes import Recipes
from openspyre.hf.tiny_config import tiny_config

MOST_PARAMETERS = 150_000_000
_HEADS = (
    "SPEECH_SEQ_2_SEQ", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "CAUSAL_LM", "", "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM", "CTC", "PRETRAINING", "TEXT_TO_SPECTROGRAM", "TEXT_TO_WAVEFORM",
    "IMAGE_CLASSIFICATION", "OBJECT_DETECTION", "DEPTH_ESTIMATION", "KEYPOINT_DETECTION",
    "MASK_GENERATION", "TIME_SERIES_PREDICTION", "SEMANTIC_SEGMENTATION", "IMAGE_SEGMENTATION",
    "UNIVERSAL_SEGMENTATION", "TEXT_RECOGNITION", "KEYPOINT_MATCHING", "BACKBONE",
)  # fmt: skip
_OUTPUTS_LAST = (
    transformers.pytorch_utils.Conv1D, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip
_SEEING = ("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")


@dataclass(frozen=True, slots=True)
class Tiny:
    """A model in float32 on the CPU.

    Attributes:
        name: of its class.
        kind: decoder, encoder, encoder-decoder, vision-language, speech, vision or other.
    """

    name: str
    kind: str
    model: Any
    parameters: int


@dataclass(frozen=True, slots=True)
class Outline:
    """A model as it would be: its config, its class, found under which head, and its size."""

    config: Any
    head: str
    name: str
    parameters: int


class CannotBuild(SpyreError):
    """A type of which no tiny model can be made here; the text is the reason."""


def model_types() -> tuple[str, ...]:
    """Every type of which transformers has a model class, by name."""
    found: set[str] = set()
    for head in _HEADS:
        found |= set(_mapping(head))
    return tuple(sorted(found))


def outlined(model_type: str, rules: Recipes) -> Outline:
    """What `build` would make of a type, constructed without memory for its weights.

    Raises:
        CannotBuild: the recipe says so, or it would have more than MOST_PARAMETERS.
    """
    recipe = rules.of(model_type)
    if recipe.cannot:
        raise CannotBuild(recipe.cannot)
    config = tiny_config(model_type, rules)
    head, name = _class(model_type, config, recipe.model)
    with torch.device("meta"):
        count = sum(p.numel() for p in getattr(transformers, name)(config).parameters())
    if count > MOST_PARAMETERS:
        raise CannotBuild(f"{count:,} parameters: a recipe is missing")
    return Outline(config, head, name, count)


def build(model_type: str, rules: Recipes, seed: int = 0) -> Tiny:
    """A tiny model of a type, its weights drawn as `liven` says; raises as `outlined` does."""
    outline = outlined(model_type, rules)
    torch.manual_seed(seed)
    model = getattr(transformers, outline.name)(outline.config).float().eval()
    liven(model, seed)
    kind = _kind(model_type, outline.config, outline.head, model)
    return Tiny(outline.name, kind, model, outline.parameters)


def _mapping(head: str) -> dict[str, Any]:
    name = f"MODEL_FOR_{head}_MAPPING_NAMES" if head else "MODEL_MAPPING_NAMES"
    return dict(getattr(modeling_auto, name))


def _class(model_type: str, config: Any, wanted: str) -> tuple[str, str]:
    heads = list(_HEADS)
    if any(hasattr(config, part) for part in ("vision_config", "audio_config")):
        heads = [*_SEEING, *heads]
    for head in heads:
        found = _mapping(head).get(model_type)
        names = (found,) if isinstance(found, str) else tuple(found or ())
        for name in names:
            if wanted in ("", name) and hasattr(transformers, name):
                return head, name
    if wanted and hasattr(transformers, wanted):
        return "", wanted
    raise CannotBuild("no model class")


def _kind(model_type: str, config: Any, head: str, model: Any) -> str:
    takes = str(getattr(model, "main_input_name", ""))
    if head in _SEEING or (hasattr(config, "vision_config") and takes == "input_ids"):
        return "vision-language"
    if head == "SPEECH_SEQ_2_SEQ" or takes in ("input_values", "input_features"):
        return "speech"
    if takes.startswith("pixel"):
        return "vision"
    if getattr(config, "is_encoder_decoder", False):
        return "encoder-decoder"
    if head == "CAUSAL_LM":
        return "decoder"
    return "encoder" if takes == "input_ids" else "other"


# --- weights ------------------------------------------------------------------------------------


@torch.no_grad()
def liven(model: nn.Module, seed: int) -> None:
    """Draws weights with which every part of the model shows in its outputs.

    Stock initialisation (0.02 everywhere, biases zero) makes attention all but uniform, so that a
    wrong mask or a wrong rotation would stay below rounding.
    """
    generator = torch.Generator().manual_seed(seed)
    done: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in done and parameter.is_floating_point():
                done.add(id(parameter))
                _draw(module, name, parameter, generator)
        for name, buffer in module.named_buffers(recurse=False):
            if name == "running_mean":
                buffer.normal_(0, 0.1, generator=generator)


def _draw(
    module: nn.Module, name: str, parameter: nn.Parameter, generator: torch.Generator
) -> None:
    noise = torch.randn(parameter.shape, generator=generator)
    match module, parameter.ndim:
        case nn.Embedding(), _:
            parameter.copy_(noise)
            if (row := module.padding_idx) is not None:
                parameter[row] = 0
        case _, 2 | 3 | 4 | 5 if parameter.numel() > 1:
            inputs = max(_inputs(module, name, parameter), 1)
            parameter.copy_(noise * inputs**-0.5)
        case _, 1 if _is_norm(module) and name == "weight":
            parameter.add_(0.1 * noise)
        case _, 1 if name.endswith("bias") and not parameter.any():
            parameter.copy_(0.1 * noise)
        case _:
            pass  # rates, steps and scales of a model's own: as it has set them


def _inputs(module: nn.Module, name: str, weight: torch.Tensor) -> int:
    """How many inputs a row of the weight sums over."""
    transposed = isinstance(module, _OUTPUTS_LAST)
    if transposed:
        return weight.numel() // weight.shape[1] if weight.ndim == 2 else weight[:, 0].numel()
    if weight.ndim == 3 and not isinstance(module, (nn.Conv1d, *_OUTPUTS_LAST)):
        return weight.shape[-1]  # one matrix for each expert
    return weight.numel() // max(weight.shape[0], 1)


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()
