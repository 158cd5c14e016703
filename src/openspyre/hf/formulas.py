"""A function of tensors as a list of ATen calls in plain data: what a formula is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten


@dataclass(frozen=True, slots=True)
class Formula:
    """Calls in order, as lists that JSON keeps.

    Attributes:
        calls: name, op and arguments of each; `["of", name]` stands for another's result.
        constants: what the function holds besides its arguments, by name: shape and values.
        inputs: names of the tensors, in order.
        results: names of the tensors that it gives.
        problem: why there are no calls.
    """

    calls: tuple[Any, ...] = ()
    constants: tuple[Any, ...] = ()
    inputs: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    problem: str = ""


def formula_of(function: Callable[..., Any], args: Any, kwargs: Any) -> Formula:
    """The calls of a function with these arguments, taken apart as PyTorch does it."""
    leaves, form = tree_flatten((args, kwargs))
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def of_tensors(*tensors: Tensor) -> Any:
        given = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        own_args, own_kwargs = tree_unflatten(given, form)
        made = tree_flatten(function(*own_args, **own_kwargs))[0]
        return [leaf for leaf in made if isinstance(leaf, Tensor)]

    try:
        with torch.no_grad():
            table: Any = core_aten_decompositions()
            traced = make_fx(of_tensors, table)(*(leaves[k] for k in places))
    except Exception as error:  # of an op, or of anybody's replacement
        text = str(error).strip().splitlines()
        return Formula(problem=f"{type(error).__name__}: {text[0][:150] if text else ''}")
    return _formula(traced)


def _formula(traced: torch.fx.GraphModule) -> Formula:
    calls, constants, inputs, results = [], [], [], ()
    for node in traced.graph.nodes:
        match node.op:
            case "placeholder":
                inputs.append(node.name)
            case "get_attr":
                held = getattr(traced, node.target)
                shape = list(held.shape)
                constants.append([node.name, shape, held.double().flatten().tolist()])
            case "call_function":
                given = [_plain(a) for a in node.args]
                named = {k: _plain(v) for k, v in node.kwargs.items()}
                calls.append([node.name, str(node.target), given, named])
            case "output":
                results = tuple(one.name for one in node.args[0])
    return Formula(tuple(calls), tuple(constants), tuple(inputs), results)


def _plain(value: Any) -> Any:
    match value:
        case torch.fx.Node():
            return ["of", value.name]
        case list() | tuple():
            return ["list", *map(_plain, value)]
        case bool() | int() | float() | str() | None:
            return value
        case _:
            return str(value)  # dtypes, devices: formulas have none


def as_plain(formula: Formula) -> dict[str, Any]:
    """For JSON."""
    return {name: getattr(formula, name) for name in Formula.__dataclass_fields__}


def of_plain(found: Any) -> Formula:
    """Of what `as_plain` gave and JSON brought back."""
    parts: dict[str, Sequence[Any]] = {
        name: tuple(found[name]) for name in ("calls", "constants", "inputs", "results")
    }
    return Formula(**parts, problem=str(found["problem"]))  # type: ignore[arg-type]
