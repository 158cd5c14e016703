"""Who provides each module of a model that is served."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import nn

from openspyre.errors import Unsupported

# By the start of a class's module, of its own or of what it derives from. Definitions of models say
# little of what runs: where such a class derives from a layer, that layer's provider is named.
_LAYERS = (
    ("openspyre.", "openspyre"),
    ("vllm.model_executor.hw_agnostic.", "vllm, hardware-agnostic"),
    ("vllm.model_executor.layers.", "vllm, in tree"),
)
_DEFINITIONS = (
    ("transformers.", "transformers"),
    ("vllm.model_executor.models.", "vllm, definitions"),
    ("torch.nn.modules.", "torch"),
)


@dataclass(frozen=True, slots=True)
class Provided:
    """Modules of one class, and who provides what they do."""

    provider: str
    name: str
    count: int


def census(model: nn.Module) -> tuple[Provided, ...]:
    """The modules of a model by provider and class.

    Raises:
        Unsupported: a module is of nobody that is known here.
    """
    found = Counter((_provider(type(m)), type(m).__name__) for m in model.modules())
    return tuple(Provided(*which, count) for which, count in sorted(found.items()))


def _provider(made: type) -> str:
    modules = [base.__module__ for base in made.__mro__ if issubclass(base, nn.Module)]
    for module in modules:
        for start, provider in _LAYERS:
            if module.startswith(start):
                return provider
    for start, provider in _DEFINITIONS:
        if modules[0].startswith(start):
            return provider
    raise Unsupported(
        f"a module of class {made.__module__}.{made.__qualname__} in the census",
        why="it is of nobody that is known here",
        hint="a layer of vLLM is replaced by `openspyre.vllm.layers.override`",
    )
