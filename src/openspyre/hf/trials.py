"""Whole models with an adapter in force, on the card, against the stock model."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from openspyre import _C
from openspyre.hf.adapters import Adapter, Applies, Trial, adapted
from openspyre.hf.judging import Wide
from openspyre.hf.weights import kept, named

_FACTOR, _ULPS = 2.0, 16.0


@dataclass(frozen=True, slots=True)
class Tried:
    """`done`: the model was run."""

    passed: bool
    detail: str
    done: bool = True


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a model gave on the card, eagerly and compiled, with an adapter in force.

    Attributes:
        places: how many modules it was on.
        replaced: calls of the replacement, of the eager run.
        fallbacks: of both runs.
        restored: the model was as before once it was taken off.
    """

    eager: tuple[Tensor, ...]
    compiled: tuple[Tensor, ...]
    places: int
    replaced: int
    fallbacks: Mapping[str, int]
    restored: bool


def tried(adapter: Adapter, trial: Trial) -> Tried:
    """Proves an adapter on a model; a model whose weights are not there is said to be left out."""
    if trial.weights and kept(named(trial.weights)) is None:
        return Tried(True, f"`spyre weights get {trial.weights}` fetches its weights", done=False)
    model, inputs = trial.build()
    found = outputs_of(model, inputs, adapter)
    return judged(found, Reference.of(model, inputs), adapter.gap.op)


def outputs_of(model: nn.Module, inputs: Any, adapter: Adapter) -> Outputs:
    """Runs a copy of a model on the card with an adapter in force, whatever its type."""
    counted, calls = _counted(replace(adapter, applies=Applies()))
    on_card, given = copy.deepcopy(model).to("spyre"), _to(inputs, "spyre")
    before = {name: dict(vars(m)) for name, m in on_card.named_modules()}
    fallbacks = Counter(_C.fallbacks())
    with torch.no_grad(), adapted(on_card, None, (counted,)) as applied:
        places = sum(len(one.places) for one in applied.applied)
        eager = _tensors(_call(on_card, given))
        replaced = len(calls)
        torch._dynamo.reset()
        compiled = _tensors(_call(torch.compile(on_card), given))
    after = {name: dict(vars(m)) for name, m in on_card.named_modules()}
    same = all(
        "forward" in before[name] or "forward" not in after[name] for name in before
    ) and all(
        after[name].get(key) is value for name, own in before.items() for key, value in own.items()
    )
    fell = dict(Counter(_C.fallbacks()) - fallbacks)
    return Outputs(eager, compiled, places, replaced, fell, same)


def _counted(adapter: Adapter) -> tuple[Adapter, list[str]]:
    """The adapter with a list that grows by one with every eager call of its replacement."""
    calls: list[str] = []

    def replacement(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            calls.append(adapter.id)
        return adapter.replacement(*args, **kwargs)

    return replace(adapter, replacement=replacement), calls


@dataclass(frozen=True, slots=True)
class Reference:
    """The stock model's results on the CPU in float64, and in float32 there and on the card."""

    exact: tuple[Tensor, ...]
    stock: tuple[tuple[Tensor, ...], ...]

    @staticmethod
    def of(model: nn.Module, inputs: Any) -> Reference:
        with torch.no_grad():
            with Wide():
                exact = _tensors(_call(copy.deepcopy(model).double(), _to(inputs, torch.float64)))
            here = _tensors(_call(model, inputs))
            card = _tensors(_call(copy.deepcopy(model).to("spyre"), _to(inputs, "spyre")))
        return Reference(exact, (here, card))


def judged(found: Outputs, reference: Reference, op: str) -> Tried:
    """Whether a model's results are as near float64 as the stock model's, without the op's gap."""
    problem = next(_problems(found, reference, op), "")
    worst = max(_distances(found.compiled, reference.exact), default=0.0)
    return Tried(not problem, problem or f"{found.replaced} calls replaced, error {worst:.2g}")


def _problems(found: Outputs, reference: Reference, op: str) -> Iterator[str]:
    if not reference.exact:
        yield "the model gives no tensors"
    if not found.places or not found.replaced:
        yield "the model never comes to the replacement"
    packet = op.removeprefix("aten.").split(".")[0]
    for name in found.fallbacks:
        if name.removeprefix("aten::").lstrip("_").split(".")[0] == packet.lstrip("_"):
            yield f"{name} runs on the CPU with it, too"
    if not found.restored:
        yield "the model is not as it was once the adapter is off"
    stock = [_distances(one, reference.exact) for one in reference.stock]
    for how, got in (("eager", found.eager), ("compiled", found.compiled)):
        if [t.shape for t in got] != [t.shape for t in reference.exact]:
            yield f"{how}: other outputs than the stock model's"
            continue
        for number, error in enumerate(_distances(got, reference.exact)):
            exact = reference.exact[number]
            allowed = _FACTOR * max(one[number] for one in stock)
            if exact.is_floating_point():
                allowed += _ULPS * torch.finfo(torch.float32).eps * _size(exact)
            if not error <= allowed:
                yield f"{how}: output {number} is {error:.3g} from float64, allowed {allowed:.3g}"


def _distances(got: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """The largest distance per output; where both are NaN or the same infinity there is none."""
    found = []
    for a, b in zip(got, exact, strict=False):
        same = (a.double() == b) | ((a != a) & (b != b))
        far = torch.where(same, 0.0, (a.double() - b).abs())
        found.append(float(far.max()) if far.numel() else 0.0)
    return found


def _size(tensor: Tensor) -> float:
    return float(tensor.abs().nan_to_num(0.0, 0.0, 0.0).max()) if tensor.numel() else 0.0


def _call(model: Any, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)


def _to(inputs: Any, where: Any) -> Any:
    def moved(tensor: Tensor) -> Tensor:
        keep = isinstance(where, torch.dtype) and not tensor.is_floating_point()
        return tensor if keep else tensor.to(where)

    plain = dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs)
    return tree_map_only(Tensor, moved, plain)


def _tensors(outputs: Any) -> tuple[Tensor, ...]:
    leaves = tree_leaves(outputs)
    return tuple(t.cpu() for t in leaves if isinstance(t, Tensor))
