"""One op in one variant and dtype: run on the card, and what became of it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ShapeFuncInfo, UnaryUfuncInfo
from torch.utils._pytree import tree_leaves, tree_map

from openspyre import _C
from openspyre.ci.capability import State
from openspyre.ci.op_judging import distribution_problem, form_problem, values_problem
from openspyre.ci.op_samples import Arguments, arguments_of, placed, samples_of, widened
from openspyre.ci.op_ties import without_choices
from openspyre.device.random import manual_seed

# Their values mean nothing.
_UNINITIALISED = re.compile(r"(new_)?empty(_like|_strided|_permuted)?|resize_(as_)?")
# How many results of an op are the same on all devices. PyTorch's own decompositions give what
# these save another shape ("CPU and CUDA give different shapes") and dtype on the CPU.
_BY_DEVICE = {"native_batch_norm": 1, "_batch_norm_with_update": 1, "native_layer_norm": 1}
# PyTorch wants all tensors but the first on the host, on any device.
_OF_HOST = frozenset({"tensor_split"})
_OTHER_SEEDS = range(9)
_RUNS = 100  # of a random op, to tell its distribution
_ELEMENTS = 20_000  # of its results are enough

Call = Callable[[Arguments], Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one sample, or of all of a pair: the worst."""

    state: State
    reason: str = ""


def tried(info: Any, variant: str, dtype: str, count: int) -> Verdict:
    """The worst of up to `count` samples, and of the first with other strides."""
    worst = Verdict(State.UNTRIED, "the CPU runs none of its samples")
    try:
        samples = samples_of(info, dtype, count, gradient=variant == "gradient")
        if variant == "function" and samples:
            samples.append(samples[0].noncontiguous())
    except Exception as error:  # whatever an entry's own code raises
        return Verdict(State.UNTRIED, f"its samples cannot be made: {_said(error)}")
    for sample in samples:
        found = _tried_sample(info, variant, dtype, sample)
        if found.state.worse(worst.state):
            worst = found
    return worst


def _tried_sample(info: Any, variant: str, dtype: str, sample: Any) -> Verdict:
    call = _call(info, variant, sample)
    ours = _compiled(info) if variant == "compiled" else call
    expected = _on_cpu(call, sample)
    if expected is None:
        return Verdict(State.UNTRIED, "the CPU runs none of its samples")
    try:
        with _quiet():
            manual_seed(0)
            arguments = _on_card(info, sample)
            _C.reset_fallbacks()
            # What makes a tensor of numbers alone makes it where tensors are made by default.
            with torch.device("spyre") if info.is_factory_function else nullcontext():
                got = _run(ours, arguments)
            torch.accelerator.synchronize()
            reasons = _C.fallback_reasons()
            return _judged(info, dtype, call, sample, got, expected) or _fallen(reasons)
    except Exception as error:  # whatever PyTorch or we raise is what is measured
        return Verdict(State.RAISED, f"{type(error).__name__}: {_said(error)}")


def _fallen(reasons: dict[str, str]) -> Verdict:
    if not reasons:
        return Verdict(State.CARD)
    return Verdict(State.FALLBACK, "; ".join(f"{op}: {why}" for op, why in reasons.items()))


def _judged(
    info: Any, dtype: str, call: Call, sample: Any, got: Any, expected: Any
) -> Verdict | None:
    """What is wrong with a result, or None."""
    if _UNINITIALISED.fullmatch(info.name):
        got, expected = _zeros(got), _zeros(expected)
    strides = isinstance(info, (UnaryUfuncInfo, BinaryUfuncInfo, ShapeFuncInfo))
    got, expected = (_comparable(info, result) for result in (got, expected))
    said = form_problem(got, expected, strides=strides)
    if said:
        return Verdict(State.WRONG, said)
    got, expected = (without_choices(info.name, sample, r) for r in (got, expected))
    wide = partial(_on_cpu, call, sample, widened(dtype))
    said = values_problem(got, expected, lambda: _comparable(info, wide()))
    if said and _is_random(call, sample):
        said = _random_problem(info, call, sample, expected)
    return Verdict(State.WRONG, said) if said else None


def _comparable(info: Any, result: Any) -> Any:
    """A result without what PyTorch defines otherwise for devices than for the CPU."""
    if result is None:
        return None
    outputs, arguments = result
    first = _BY_DEVICE.get(info.name)
    if first is not None:
        outputs = [o[:first] for o in outputs] if isinstance(outputs, list) else outputs[:first]
    return outputs, ([] if info.name in _OF_HOST else arguments)


def _is_random(call: Call, sample: Any) -> bool:
    """Whether the CPU does not repeat itself either."""
    one, *others = (_on_cpu(call, sample, seed=seed) for seed in _OTHER_SEEDS)
    return any(values_problem(other, one, lambda: None) for other in others)


def _random_problem(info: Any, call: Call, sample: Any, expected: Any) -> str:
    size = sum(t.numel() for t in tree_leaves(expected) if isinstance(t, torch.Tensor))
    runs = min(_RUNS, max(_ELEMENTS // max(size, 1), 8))
    got = [_run(call, _on_card(info, sample)) for _ in range(runs)]
    theirs = [_on_cpu(call, sample, seed=seed) for seed in range(runs)]
    return distribution_problem(got, theirs)


def _zeros(result: Any) -> Any:
    return tree_map(
        lambda t: t.detach().clone().zero_() if isinstance(t, torch.Tensor) else t, result
    )


def _on_card(info: Any, sample: Any) -> Arguments:
    first, others, named = arguments_of(sample)
    if info.name in _OF_HOST:
        return placed(first, "spyre"), others, named
    return placed((first, others, named), "spyre")  # type: ignore[no-any-return]


def _run(call: Call, arguments: Arguments) -> Any:
    """The result, and the arguments as the call leaves them."""
    result = call(arguments)
    return result, [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]


def _on_cpu(
    call: Call, sample: Any, convert: Callable[[Any], Any] = lambda leaf: leaf, seed: int = 0
) -> Any:
    """What the CPU makes of a sample; None if it cannot."""
    torch.manual_seed(seed)
    try:
        with _quiet():
            return _run(call, placed(arguments_of(sample), "cpu", convert))
    except Exception:  # then the sample tells nothing of the card
        return None


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _said(error: BaseException) -> str:
    """The beginning of an error's text on one line."""
    return " ".join(str(error).split())[:240]


# --- what a variant calls ---------------------------------------------------------------------


def _call(info: Any, variant: str, sample: Any) -> Call:
    match variant:
        case "function" | "compiled":
            return lambda a: info(a[0], *a[1], **a[2])
        case "inplace":
            return _in_place(info, sample)
        case "out":
            return _into_given(info)
        case "gradient":
            return _gradient(info, sample)
    raise ValueError(f"there is no variant {variant!r}")


def _compiled(info: Any) -> Call:
    reset: Any = torch._dynamo.reset
    reset()
    function: Any = torch.compile(info.op)
    return lambda a: function(a[0], *a[1], **a[2])


def _in_place(info: Any, sample: Any) -> Call:
    written = info.get_inplace()

    def call(arguments: Arguments) -> Any:
        if sample.broadcasts_input:
            raise ValueError("its result has another shape than its input")
        result = written(arguments[0], *arguments[1], **arguments[2])
        if result is not arguments[0]:
            raise ValueError("it does not return the tensor that it writes")
        return result

    return call


def _into_given(info: Any) -> Call:
    """Once into tensors that must grow, once into every other element of one."""

    def call(arguments: Arguments) -> Any:
        plain = info(arguments[0], *arguments[1], **arguments[2])
        single = isinstance(plain, torch.Tensor)
        forms = [plain] if single else list(plain)
        results = []
        for made in (_grows, _every_other):
            out = [made(t) for t in forms]
            given = out[0] if single else tuple(out)
            info(arguments[0], *arguments[1], out=given, **arguments[2])
            if out[0].is_cpu:  # where the CPU writes nonsense behind strides, its result is right
                for written, right in zip(out, forms, strict=True):
                    written.copy_(right)
            results.append(out)
        return results

    return call


def _grows(like: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=like.dtype, device=like.device)


def _every_other(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros((*like.shape, 2), dtype=like.dtype, device=like.device)[..., 0]


def _gradient(info: Any, sample: Any) -> Call:
    def call(arguments: Arguments) -> Any:
        result = info(arguments[0], *arguments[1], **arguments[2])
        used: Any = sample.output_process_fn_grad(result)
        outputs = [t for t in tree_leaves(used) if _differentiable(t)]
        inputs = [t for t in tree_leaves(arguments) if _differentiable(t)]
        if not outputs or not inputs:
            raise ValueError("there is nothing to differentiate")
        into = [_weights(t) for t in outputs]
        grad: Any = torch.autograd.grad
        return grad(outputs, inputs, into, allow_unused=True)

    return call


def _differentiable(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _weights(like: torch.Tensor) -> torch.Tensor:
    """What flows back into a result: numbers between -1 and 1 that repeat nowhere nearby."""
    steps = torch.arange(like.numel(), dtype=torch.float64).mul_(0.7).sin_()
    return steps.reshape(like.shape).to(like.dtype).to(like.device)
