"""Whether a replacement's results are as good as the original's: an error bound per element.

With `exact` the original in float64 on the same values, an element of the replacement is right if
it is what the original gave, or what `exact` rounds to, or no further from `exact` than

    FACTOR x the original's own error + ULPS units in the last place + CONDITION x condition

where `condition` is by how much `exact` moves when each input moves by one rounding of the dtype:
what any way to compute it from these inputs must be allowed. Where `exact` jumps it counts nothing.
Whole numbers and bools must be equal.

In float64 means in float64 throughout: where a model's code asks for float32 (norms do), it gets
float64, the original and the replacement alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

FACTOR, ULPS, CONDITION = 2.0, 4.0, 4.0
_MOVES = 6
_FINER = 64.0
# One rounding of the dtype; float64's is taken wider, so that its finer moves are above its noise.
_ROUNDING = {torch.float64: 2.0**-44}
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Result:
    """What a call gave.

    Attributes:
        leaves: the tensors, and what else it gave, in order.
        form: of the structure that holds them.
        changed: it wrote to an argument.
        shares: some result lies in an argument's memory.
    """

    leaves: tuple[Any, ...]
    form: str
    changed: bool
    shares: bool


class Wide(TorchDispatchMode):
    """Inside, what would be made in a narrower floating dtype is made in float64."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        dtype = kwargs.get("dtype")
        if dtype is not None and dtype.is_floating_point:
            kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)


def called(function: Function, args: Any, kwargs: Any, dtype: torch.dtype) -> Result | str:
    """The result of a call on copies of the arguments of a dtype, or what it raised."""
    given, form = tree_flatten((args, kwargs))
    own = [_copied(leaf) for leaf in given]
    own_args, own_kwargs = torch.utils._pytree.tree_unflatten(own, form)
    try:
        with torch.no_grad(), Wide() if dtype == torch.float64 else nullcontext():
            made, shape = tree_flatten(function(*own_args, **own_kwargs))
    except Exception as error:  # of an op, or of anybody's replacement
        text = str(error).strip().splitlines()
        return f"{type(error).__name__}: {text[0][:200] if text else ''}"
    pairs = zip(own, given, strict=True)
    changed = any(not same_values(a, b) for a, b in pairs if isinstance(b, Tensor))
    places = {t.untyped_storage().data_ptr() for t in own if isinstance(t, Tensor) and t.numel()}
    shares = any(
        isinstance(t, Tensor) and t.numel() > 0 and t.untyped_storage().data_ptr() in places
        for t in made
    )
    return Result(tuple(made), str(shape), changed, shares)


def _copied(leaf: Any) -> Any:
    """A tensor's values in memory of its own, with its strides."""
    if not isinstance(leaf, Tensor):
        return leaf
    copy = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype)
    if 0 in leaf.stride():  # elements that lie on one another
        return copy.copy_(leaf) if not leaf.numel() else leaf.clone()[:1].expand(leaf.shape)
    return copy.copy_(leaf)


def same_values(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal, NaN for NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    equal = a == b
    return bool((equal | ((a != a) & (b != b))).all())


def condition(
    function: Function, args: Any, kwargs: Any, dtype: torch.dtype, module: nn.Module | None = None
) -> list[Tensor]:
    """By how much each element moves when the float64 inputs do, by a rounding of `dtype`.

    Args:
        module: whose parameters are inputs too.
    """
    exact = called(function, args, kwargs, torch.float64)
    if isinstance(exact, str):
        return []
    weights = [] if module is None else [p.data for p in module.parameters()]
    kept = [weight.clone() for weight in weights]
    rounding = _ROUNDING.get(dtype, torch.finfo(dtype).eps)
    most: list[list[Tensor]] = []
    for step in (rounding, rounding / _FINER):
        most.append([torch.zeros_like(x, dtype=torch.float64) for x in _tensors(exact)])
        for seed in range(_MOVES):
            move = _mover(step, seed)
            moved_args, moved_kwargs = tree_map_only(Tensor, move, (args, kwargs))
            for weight, value in zip(weights, kept, strict=True):
                weight.copy_(move(value))
            moved = called(function, moved_args, moved_kwargs, torch.float64)
            if not isinstance(moved, str):
                _widen(most[-1], moved, exact)
    for weight, value in zip(weights, kept, strict=True):
        weight.copy_(value)
    return [torch.where(b <= a / 2, a, torch.zeros_like(a)) for a, b in zip(*most, strict=True)]


def _mover(step: float, seed: int) -> Function:
    generator = torch.Generator().manual_seed(seed)

    def move(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        signs = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
        return x * (1 + step * signs.to(x.dtype))

    return move


def _widen(most: list[Tensor], moved: Result, exact: Result) -> None:
    """Takes in by how much the elements of `moved` are away from `exact`."""
    for number, (new, old) in enumerate(zip(_tensors(moved), _tensors(exact), strict=False)):
        if new.shape == old.shape and old.is_floating_point():
            by = (new - old).abs().double().nan_to_num(0.0, 0.0, 0.0)
            most[number] = torch.maximum(most[number], by)


def _tensors(result: Result) -> list[Tensor]:
    return [leaf for leaf in result.leaves if isinstance(leaf, Tensor)]


Moves = Callable[[], Sequence[Tensor]]


def problem(new: Result | str, original: Result, exact: Result, moves: Moves) -> str:
    """What is wrong with a replacement's result; empty if nothing is.

    Args:
        original: in the dtype that is tried.
        exact: the original in float64, on the same values.
        moves: gives its `condition`; asked only where the rest of the bound does not do.
    """
    if isinstance(new, str):
        return f"it raises {new}"
    if new.form != original.form:
        return f"it gives {new.form}, the original {original.form}"
    if new.changed and not original.changed:
        return "it changes an argument"
    if new.shares and not original.shares:
        return "its result lies in the memory of an argument"
    place = 0  # among the tensors
    for ours, theirs, best in zip(new.leaves, original.leaves, exact.leaves, strict=True):
        if not isinstance(theirs, Tensor):
            if ours != theirs:
                return f"it gives {ours!r}, the original {theirs!r}"
            continue
        if not isinstance(ours, Tensor):
            return f"it gives {type(ours).__name__} where the original gives a tensor"
        found = _tensor_problem(ours, theirs, best, None)
        found = found and _tensor_problem(ours, theirs, best, moves()[place])
        if found:
            return found
        place += 1
    return ""


def _tensor_problem(new: Tensor, original: Tensor, exact: Tensor, moved: Tensor | None) -> str:
    if (new.shape, new.dtype) != (original.shape, original.dtype):
        return (
            f"it gives {tuple(new.shape)} of {new.dtype}, the original"
            f" {tuple(original.shape)} of {original.dtype}"
        )
    if not new.is_floating_point():
        good = new == original
        return "" if bool(good.all()) else _told(good, new, original, exact, None)
    bound = (
        FACTOR * (original.double() - exact).abs().nan_to_num(0.0, 0.0, 0.0)
        + ULPS * _ulp(exact, new.dtype)
        + (0.0 if moved is None else CONDITION * moved)
    )
    near = (new.double() - exact).abs() <= bound
    rounded = exact.to(new.dtype)
    equal = (new == original) | (new == rounded)
    nothing = (new != new) & ((original != original) | (exact != exact))
    good = near | equal | nothing
    return "" if bool(good.all()) else _told(good, new, original, exact, bound)


def _ulp(exact: Tensor, dtype: torch.dtype) -> Tensor:
    facts = torch.finfo(dtype)
    size = exact.abs().nan_to_num(0.0, 0.0, 0.0).clamp(facts.tiny, facts.max)
    return torch.exp2(torch.floor(torch.log2(size))) * facts.eps


def _told(good: Tensor, new: Tensor, original: Tensor, exact: Tensor, bound: Tensor | None) -> str:
    place = int((~good).flatten().nonzero()[0])
    values = [t.flatten()[place].item() for t in (new, original, exact)]
    within = "" if bound is None else f", allowed {bound.flatten()[place].item():.3g}"
    return (
        f"{int((~good).sum())} of {good.numel()} elements, at {place}: {values[0]!r}, the"
        f" original {values[1]!r}, in float64 {values[2]!r}{within}"
    )
