"""The kernels of a model that was only traced, in the form of those that a run has launched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from openspyre.compiler.pipeline import compile_kernel
from openspyre.ir.binary import encode
from openspyre.ir.kernel import Kernel
from openspyre.ir.text import print_kernel
from openspyre.runtime.clock import card_timer
from openspyre.runtime.saved import Fallback, SavedKernel, Use, Variant
from openspyre.spec import CardSpec
from openspyre.tools.card_time import Phase
from openspyre.tools.forward import forward_traced
from openspyre.tools.layered import Layered, kept_layers
from openspyre.tools.progress import Step

_TOKENS = 1024


def kernels_of(
    model: Layered, card: CardSpec, step: Step
) -> tuple[tuple[SavedKernel, ...], tuple[Fallback, ...]]:
    """The kernels of a forward of a model, cut to the layers that differ, and what falls back.

    A decoder has two: a prompt, and one token after it.

    Raises:
        SpyreError: the model does not trace, or the card cannot do something of it.
    """
    kernels: list[SavedKernel] = []
    fallbacks: Counter[str] = Counter()
    kept = kept_layers(model.kinds)
    for phase in _phases(model):
        step(f"{phase.name}: tracing {len(kept)} of {len(model.kinds)} layers")
        traced = forward_traced(
            model, kept, tokens=phase.tokens, context=phase.context, batch=1, dtype="float16"
        ).traced
        step(f"{phase.name}: compiling")
        kernels += [_saved(kernel, phase.name, card) for kernel in traced.kernels]
        fallbacks.update(traced.fallbacks)
    found = (Fallback(op, n, "it does not compile") for op, n in fallbacks.items())
    return tuple(kernels), tuple(found)


def _phases(model: Layered) -> Iterator[Phase]:
    tokens = min(_TOKENS, getattr(model.config, "max_position_embeddings", None) or _TOKENS)
    if not model.decodes:
        yield Phase("forward", tokens, tokens)
        return
    yield Phase("prefill", tokens, tokens)
    yield Phase("decode", 1, tokens)


def _saved(kernel: Kernel, phase: str, card: CardSpec) -> SavedKernel:
    variant = Variant(encode(compile_kernel(kernel, card, timer=card_timer(card))), (), ())
    use = Use(0, (), 1, 0.0, 1, {})
    return SavedKernel(f"{phase} {kernel.name}", print_kernel(kernel), (variant,), (use,))
