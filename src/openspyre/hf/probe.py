"""Whether an adapter is still needed: the original, compiled for the card."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from openspyre import _C
from openspyre.hf.adapters import Adapter, module_of, original_of
from openspyre.hf.judging import Result, called, condition, problem
from openspyre.hf.proof_inputs import one_instance

_DTYPES = (torch.float32, torch.float16)
_SEED = 11


@dataclass(frozen=True, slots=True)
class Probe:
    """`needed`: the original does not lower, or comes out wrong; `why` says which."""

    needed: bool
    why: str


def probe(adapter: Adapter) -> Probe:
    """Compiles what an adapter replaces for the card, and compares it with the CPU."""
    for dtype in _DTYPES:
        if why := _gap(adapter, dtype):
            return Probe(True, why)
    return Probe(False, "it lowers and is right without the adapter")


def _gap(adapter: Adapter, dtype: torch.dtype) -> str:
    call = one_instance(adapter.probe or adapter.cases[0], dtype, _SEED)
    name = str(dtype).removeprefix("torch.")
    module = module_of(adapter, _SEED, dtype)
    wide = module_of(adapter, _SEED, dtype)
    expected = called(original_of(adapter, module), call.args, call.kwargs, dtype)
    args, kwargs = tree_map_only(
        Tensor, lambda t: t.double() if t.is_floating_point() else t, (call.args, call.kwargs)
    )
    function = original_of(adapter, None if wide is None else wide.double())
    exact = called(function, args, kwargs, torch.float64)
    if isinstance(expected, str) or isinstance(exact, str):
        return ""  # nothing that the card could be asked for
    before = Counter(_C.fallbacks())
    got = _on_card(adapter, dtype, call.args, call.kwargs)
    fell = Counter(_C.fallbacks()) - before
    if fell:
        reasons = _C.fallback_reasons()
        return f"{name}: " + "; ".join(f"{op} on the CPU: {reasons.get(op, '')}" for op in fell)
    if isinstance(got, str):
        return f"{name}: it does not compile: {got}"
    moves = partial(condition, function, args, kwargs, dtype, wide)
    wrong = problem(got, expected, exact, moves)
    return f"{name}: it is wrong: {wrong}" if wrong else ""


def _on_card(adapter: Adapter, dtype: torch.dtype, args: object, kwargs: object) -> Result | str:
    module = module_of(adapter, _SEED, dtype)
    function = original_of(adapter, None if module is None else module.to("spyre"))
    torch._dynamo.reset()
    compiled = torch.compile(function)

    def run(*given: object, **named: object) -> object:
        moved, moved_named = tree_map_only(Tensor, lambda t: t.to("spyre"), (given, named))
        return tree_map_only(Tensor, lambda t: t.cpu(), compiled(*moved, **moved_named))

    return called(run, args, kwargs, dtype)
