"""Who provides each module of a model that is served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from openspyre.errors import Unsupported

# By the start of a class's module. vLLM's definitions of models say little of what runs: where a
# class derives from a layer of one of the others, that one is named.
_PROVIDERS = (
    ("openspyre.", "openspyre"),
    ("vllm.model_executor.hw_agnostic.", "vllm, hardware-agnostic"),
    ("vllm.model_executor.layers.", "vllm, in tree"),
    ("transformers.", "transformers"),
    ("torch.nn.modules.", "torch"),
)
_DEFINITIONS = "vllm.model_executor.models."


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
    defined = False
    for module in _modules(made):
        for start, provider in _PROVIDERS:
            if module.startswith(start) and not (defined and provider == "torch"):
                return provider
        if not module.startswith(_DEFINITIONS):
            break
        defined = True
    if defined:
        return "vllm, definitions"
    raise Unsupported(
        f"a module of class {made.__module__}.{made.__qualname__} in the census",
        why="it is of none of " + ", ".join(dict(_PROVIDERS).values()),
        hint="a layer of vLLM is replaced by `openspyre.vllm.layers.override`",
    )


def _modules(made: type) -> Iterator[str]:
    """Where a class and its bases come from, those that are modules."""
    return (base.__module__ for base in made.__mro__ if issubclass(base, nn.Module))
