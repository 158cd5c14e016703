"""Which layer of vLLM is made by which class, and the registries that say so to vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any

from torch import nn

from openspyre.errors import Unsupported
from openspyre.vllm.layers import activation, linear, norm, rotary, vocabulary


class Registry(Enum):
    """The module whose `op_registry_oot` is asked when a layer is built."""

    IN_TREE = "vllm.model_executor.custom_op"
    AGNOSTIC = "vllm.model_executor.hw_agnostic.custom_op"

    def classes(self) -> dict[str, type]:
        found: dict[str, type] = import_module(self.value).op_registry_oot
        return found


@dataclass(frozen=True, slots=True)
class Layer:
    """One class of vLLM's.

    Attributes:
        module: where vLLM has it.
        name: its name; vLLM's registries go by it alone.
        forward: what is mixed into it, before it; None where vLLM's own is portable already.
        registry: the one that the class looks into.
    """

    module: str
    name: str
    forward: type[nn.Module] | None
    registry: Registry = Registry.IN_TREE

    def target(self) -> type:
        """vLLM's own class."""
        found: type = getattr(import_module(self.module), self.name)
        return found


_LINEAR = "vllm.model_executor.layers.linear"
_VOCABULARY = "vllm.model_executor.layers.vocab_parallel_embedding"
_ACTIVATION = "vllm.model_executor.layers.activation"
_ROTARY = "vllm.model_executor.layers.rotary_embedding"
_AGNOSTIC = "vllm.model_executor.hw_agnostic.layers"
# The Transformers backend builds these names, whatever is registered for those they derive from.
_AWARE = "vllm.model_executor.models.transformers.fusers.rms_norm"

LAYERS: tuple[Layer, ...] = (
    Layer(_LINEAR, "ReplicatedLinear", linear.Linear),
    Layer(_LINEAR, "ColumnParallelLinear", linear.ColumnLinear),
    Layer(_LINEAR, "MergedColumnParallelLinear", linear.ColumnLinear),
    Layer(_LINEAR, "QKVParallelLinear", linear.ColumnLinear),
    Layer(_LINEAR, "RowParallelLinear", linear.RowLinear),
    Layer(_VOCABULARY, "VocabParallelEmbedding", vocabulary.Embedding),
    Layer(_VOCABULARY, "ParallelLMHead", vocabulary.Head),
    Layer("vllm.model_executor.layers.logits_processor", "LogitsProcessor", vocabulary.Logits),
    Layer("vllm.model_executor.layers.layernorm", "GemmaRMSNorm", norm.OnePlusRMSNorm),
    Layer("vllm.model_executor.layers.layernorm", "LayerNorm", norm.MeanNorm),
    Layer(_AWARE, "TPAwareGemmaRMSNorm", norm.OnePlusRMSNorm),
    Layer(_AWARE, "TPAwareRMSNorm", None, Registry.AGNOSTIC),
    Layer(f"{_AGNOSTIC}.layernorm", "RMSNorm", None, Registry.AGNOSTIC),
    Layer(f"{_AGNOSTIC}.activation", "SiluAndMul", None, Registry.AGNOSTIC),
    Layer(_ACTIVATION, "GeluAndMul", activation.GatedGelu),
    Layer(_ACTIVATION, "MulAndSilu", activation.GatedByLaterSilu),
    Layer(_ACTIVATION, "FatreluAndMul", activation.GatedThreshold),
    Layer(_ACTIVATION, "SiluAndMulWithClamp", activation.GatedClampedSilu),
    Layer(_ACTIVATION, "SwigluStepAndMul", activation.GatedSteppedSilu),
    Layer(_ACTIVATION, "SwigluOAIAndMul", activation.InterleavedClampedSilu),
    Layer(_ACTIVATION, "SituAndMul", activation.SoftClippedSilu),
    Layer(_ACTIVATION, "GELU", activation.Gelu),
    Layer(_ACTIVATION, "GELUTanh", activation.TanhGelu),
    Layer(_ACTIVATION, "NewGELU", activation.TanhGelu),
    Layer(_ACTIVATION, "FastGELU", activation.FastGelu),
    Layer(_ACTIVATION, "QuickGELU", activation.SigmoidGelu),
    Layer(_ACTIVATION, "ReLUSquaredActivation", activation.SquaredRelu),
    Layer(f"{_ROTARY}.base", "RotaryEmbedding", rotary.Rotary),
    Layer(f"{_ROTARY}.linear_scaling_rope", "LinearScalingRotaryEmbedding", rotary.Rotary),
    Layer(f"{_ROTARY}.ntk_scaling_rope", "NTKScalingRotaryEmbedding", rotary.Rotary),
    Layer(f"{_ROTARY}.dynamic_ntk_scaling_rope", "DynamicNTKScalingRotaryEmbedding", rotary.Rotary),
    Layer(f"{_ROTARY}.dynamic_ntk_alpha_rope", "DynamicNTKAlphaRotaryEmbedding", rotary.Rotary),
    Layer(f"{_ROTARY}.llama3_rope", "Llama3RotaryEmbedding", rotary.Rotary),
    Layer(f"{_ROTARY}.yarn_scaling_rope", "YaRNScalingRotaryEmbedding", rotary.Rotary),
    Layer(f"{_ROTARY}.common", "ApplyRotaryEmb", rotary.AppliedRotary),
)


def install() -> None:
    """Registers the table's classes with vLLM; leaves names that somebody registered before."""
    for layer in LAYERS:
        if layer.forward is not None and layer.name not in layer.registry.classes():
            _register(layer, layer.forward, layer.target())


def override(name: str, forward: type[nn.Module]) -> type:
    """Has layers of a name in the table made by a class of yours, from the next model on.

    Args:
        name: of vLLM's class.
        forward: what you change, as a class; it is mixed into what makes such layers now.

    Returns:
        The class that makes them.

    Raises:
        Unsupported: the table has no such name.
    """
    found = [layer for layer in LAYERS if layer.name == name]
    if not found:
        raise Unsupported(
            f"an override of {name}",
            why="vLLM asks no registry for it",
            hint=f"one of {', '.join(layer.name for layer in LAYERS)}",
        )
    (layer,) = found
    return _register(layer, forward, layer.registry.classes().get(name) or layer.target())


def _register(layer: Layer, forward: type[nn.Module], base: type) -> type:
    """Registers a class that derives from `base`, as vLLM skips __init__ of any other class."""
    attributes: dict[str, Any] = {"__module__": forward.__module__, "__doc__": forward.__doc__}
    made = type(layer.name, (forward, base), attributes)
    made.name = layer.name  # type: ignore[attr-defined]  # vLLM switches ops by it
    layer.registry.classes()[layer.name] = made
    return made
