"""A model that was only traced: whether it will run, and its kernels in the form of a run's.

Nothing of it has memory: parameters are on the meta device, then fake tensors of the card.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from openspyre.errors import SpyreError
from openspyre.ir.binary import encode
from openspyre.ir.kernel import Role
from openspyre.ir.text import print_kernel
from openspyre.runtime.clock import card_timer
from openspyre.runtime.saved import Fallback, SavedKernel, Use, Variant
from openspyre.spec import CardSpec
from openspyre.tools.accuracy_models import random_inputs
from openspyre.tools.card_time import CompiledKernel, Phase, compiled_kernel, extrapolated
from openspyre.tools.forward import forward_traced
from openspyre.tools.layered import Layered, NotLayered, bare_model, kept_layers, layered
from openspyre.tools.progress import Step

if TYPE_CHECKING:
    from openspyre.frontend.shapes_only import Traced

DTYPE = "float16"
_TOKENS = 1024
_LENGTH = 64  # of what a model is called with that has no one stack of layers


@dataclass(frozen=True, slots=True)
class PhaseOutlook:
    """One forward of the whole model.

    Attributes:
        us: card time, without what runs on the CPU.
        cache: bytes of keys, values and states.
        activations: bytes of its results and of the largest pool of a kernel.
    """

    name: str
    tokens: int
    context: int
    us: float
    cache: int
    activations: int


@dataclass(frozen=True, slots=True)
class Outlook:
    """What can be said of a model before its weights are loaded.

    Attributes:
        why: why it does not run as one graph; empty if it does.
        ops: calls in the graphs that were traced (of few layers, where the others are alike), by
            op and dtype.
        layers: how many were traced, and how many there are; 0 where all were.
        weights: bytes.
    """

    model: str
    parameters: int
    why: str
    ops: Mapping[tuple[str, str], int]
    layers: tuple[int, int]
    phases: tuple[PhaseOutlook, ...]
    weights: int
    card: int
    kernels: tuple[SavedKernel, ...] = ()
    fallbacks: tuple[Fallback, ...] = field(default=())

    @property
    def needed(self) -> int:
        """Bytes of device memory at the worst phase."""
        return self.weights + max((p.cache + p.activations for p in self.phases), default=0)

    @property
    def fits(self) -> bool:
        """Whether the card has room for it."""
        return self.needed <= self.card

    def as_dict(self) -> dict[str, Any]:
        """For JSON, without kernels and fallbacks."""
        ops = [
            {"op": op, "dtype": dtype, "calls": calls} for (op, dtype), calls in self.ops.items()
        ]
        return {
            "type": self.model,
            "parameters": self.parameters,
            "dtype": DTYPE,
            "runs": not self.why,
            "why": self.why,
            "layers_traced": self.layers[0],
            "layers": self.layers[1],
            "ops": ops,
            "phases": [asdict(phase) for phase in self.phases],
            "memory": {
                "weights": self.weights,
                "needed": self.needed,
                "card": self.card,
                "fits": self.fits,
            },
        }


def outlook(config: Any, card: CardSpec, step: Step) -> Outlook:
    """What a config's stock model will do in float16: a prompt and a token after it where it
    decodes, else one forward.

    Raises:
        SpyreError: transformers cannot make the model, or how to call it is not known.
    """
    try:
        model = layered(config)
    except NotLayered:
        return _of_whole(config, card, step)
    found = _Found(config.model_type, model.parameters, card)
    kept = kept_layers(model.kinds)
    found.layers = (len(kept), len(model.kinds))
    for phase in _phases(model):
        step(f"{phase.name}: tracing {len(kept)} of {len(model.kinds)} layers")
        try:
            forward = forward_traced(
                model, kept, tokens=phase.tokens, context=phase.context, batch=1, dtype=DTYPE
            )
        except SpyreError as error:
            found.why = f"{phase.name}: {error}"
            continue
        step(f"{phase.name}: compiling")
        compiled = [compiled_kernel(k, card, model.name) for k in forward.traced.kernels]
        us, cache = extrapolated(model, forward, compiled, card)
        found.add(phase, forward.traced, compiled, us, cache)
    return found.outlook()


def _phases(model: Layered) -> Iterator[Phase]:
    tokens = min(_TOKENS, getattr(model.config, "max_position_embeddings", None) or _TOKENS)
    if not model.decodes:
        yield Phase("forward", tokens, tokens)
        return
    yield Phase("prefill", tokens, tokens)
    yield Phase("decode", 1, tokens)


def _of_whole(config: Any, card: CardSpec, step: Step) -> Outlook:
    """Of a model that has no one stack of layers: all of it is traced, in one forward."""
    # Loads Inductor, which needs the device to be registered.
    from openspyre.frontend.shapes_only import fake_mode, faked, traced

    model = bare_model(config, getattr(torch, DTYPE))
    found = _Found(config.model_type, sum(p.numel() for p in model.parameters()), card)
    inputs = random_inputs(model, config, 1, _LENGTH, 0)
    mode = fake_mode()
    faked(model, mode)
    with mode:
        arguments = {name: _fake(value) for name, value in inputs.items()}
    step("forward: tracing")
    try:
        seen = traced(model, mode, {**arguments, **_without_cache(config)})
    except SpyreError as error:
        found.why = str(error)
        return found.outlook()
    step("forward: compiling")
    compiled = [compiled_kernel(kernel, card, "") for kernel in seen.kernels]
    cycles = sum(card_timer(card)(one.program) for one in compiled)
    phase = Phase("forward", _LENGTH, _LENGTH)
    found.add(phase, seen, compiled, card.microseconds(cycles), 0)
    return found.outlook()


def _fake(value: torch.Tensor) -> torch.Tensor:
    dtype = getattr(torch, DTYPE) if value.is_floating_point() else value.dtype
    return torch.empty(value.shape, dtype=dtype, device="spyre")


def _without_cache(config: Any) -> dict[str, Any]:
    return {"use_cache": False} if hasattr(config, "use_cache") else {}


class _Found:
    """Collects an outlook, phase by phase."""

    def __init__(self, model: str, parameters: int, card: CardSpec) -> None:
        self.model, self.parameters, self.card = model, parameters, card
        self.why, self.layers = "", (0, 0)
        self.kernels: list[SavedKernel] = []
        self.phases: list[PhaseOutlook] = []
        self.ops: Counter[tuple[str, str]] = Counter()
        self.fallbacks: Counter[str] = Counter()

    def add(
        self, phase: Phase, traced: Traced, compiled: Sequence[CompiledKernel], us: float,
        cache: int,
    ) -> None:  # fmt: skip
        self.kernels += [_saved(one, phase.name) for one in compiled]
        self.ops.update(traced.ops)
        self.fallbacks.update(traced.fallbacks)
        bytes_ = max((one.program.pool_bytes for one in compiled), default=0)
        bytes_ += sum(map(_results, compiled))
        outlook = PhaseOutlook(phase.name, phase.tokens, phase.context, us, cache, bytes_)
        self.phases.append(outlook)

    def outlook(self) -> Outlook:
        reason = "it does not compile"
        return Outlook(
            self.model, self.parameters, self.why, dict(self.ops.most_common()), self.layers,
            tuple(self.phases), self.parameters * getattr(torch, DTYPE).itemsize,
            self.card.memory_bytes, tuple(self.kernels),
            tuple(Fallback(op, n, reason) for op, n in self.fallbacks.items()),
        )  # fmt: skip


def _results(one: CompiledKernel) -> int:
    """Bytes of the tensors that a kernel makes."""
    total = 0
    for tensor in one.kernel.tensors.values():
        if tensor.role is Role.OUTPUT:
            elements = 1
            for extent in tensor.shape:
                elements *= extent.evaluate({})
            total += elements * tensor.dtype.bytes
    return total


def _saved(one: CompiledKernel, phase: str) -> SavedKernel:
    variant = Variant(encode(one.program), (), ())
    use = Use(0, (), 1, 0.0, 1, {})
    name = f"{phase} {one.kernel.name}"
    return SavedKernel(name, print_kernel(one.kernel), (variant,), (use,))
