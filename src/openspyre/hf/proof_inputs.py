"""The calls that a proof makes: random and adversarial values, sizes and strides of arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Size = int | str  # a number, or the name of an extent that the proof varies


@dataclass(frozen=True, slots=True)
class Floats:
    """A floating-point tensor of the dtype that is being tried."""

    shape: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class Integers:
    """A tensor of a whole or bool dtype with values from `low` up to but without `high`."""

    shape: tuple[Size, ...]
    low: int
    high: int
    dtype: torch.dtype = torch.int64


@dataclass(frozen=True, slots=True)
class Case:
    """A call: Floats, Integers and plain values. Equal names of extents are equal extents."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Instance:
    """A call with tensors; `about` names what is special about it."""

    about: str
    dtype: torch.dtype
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_USUAL = (3, 4, 2, 5)  # extents in order of their names
_ODD = (7, 5, 9, 3)
_LARGE = (17, 65, 33, 10)
Values = Callable[[tuple[int, ...], torch.dtype, torch.Generator], Tensor]


def instances(case: Case, dtype: torch.dtype, seed: int) -> Iterator[Instance]:
    """The calls of a case in a dtype: kinds of values, then sizes, then strides."""
    names = _names(case)
    usual = _extents(names, _USUAL)
    for number, (about, values) in enumerate(VALUES.items()):
        yield _made(case, about, dtype, usual, seed + number, values)
    for number, (about, extents) in enumerate(_sizes(names)):
        yield _made(case, about, dtype, extents, seed + 100 + number, _random)
    for number, (about, strided) in enumerate(STRIDES.items()):
        yield _made(case, about, dtype, usual, seed + 200 + number, _random, strided)


def one_instance(case: Case, dtype: torch.dtype, seed: int) -> Instance:
    """An ordinary call of a case."""
    return _made(case, "random", dtype, _extents(_names(case), _USUAL), seed, _random)


def formula_call(case: Case) -> Instance:
    """A call of a case whose named extents are all 2: its elements can be symbols."""
    return _made(case, "symbols", torch.float64, dict.fromkeys(_names(case), 2), 0, _random)


def has_floats(case: Case) -> bool:
    """Whether a case differs from dtype to dtype."""
    return any(isinstance(spec, Floats) for spec in (*case.args, *case.kwargs.values()))


def _names(case: Case) -> list[str]:
    specs = [s for s in (*case.args, *case.kwargs.values()) if isinstance(s, (Floats, Integers))]
    return list(dict.fromkeys(n for spec in specs for n in spec.shape if isinstance(n, str)))


def _extents(names: list[str], numbers: tuple[int, ...]) -> dict[str, int]:
    return {name: numbers[k % len(numbers)] for k, name in enumerate(names)}


def _sizes(names: list[str]) -> Iterator[tuple[str, dict[str, int]]]:
    if not names:
        return
    yield "all sizes 1", dict.fromkeys(names, 1)
    yield "odd sizes", _extents(names, _ODD)
    yield "larger sizes", _extents(names, _LARGE)
    usual = _extents(names, _USUAL)
    for name in names:
        yield f"{name} = 0", {**usual, name: 0}
        yield f"{name} = 1", {**usual, name: 1}


def _made(
    case: Case,
    about: str,
    dtype: torch.dtype,
    extents: Mapping[str, int],
    seed: int,
    values: Values,
    strided: Callable[[Tensor], Tensor] = lambda t: t,
) -> Instance:
    generator = torch.Generator().manual_seed(seed)

    def shape(sizes: tuple[Size, ...]) -> tuple[int, ...]:
        return tuple(extents[s] if isinstance(s, str) else s for s in sizes)

    def made(spec: Any) -> Any:
        match spec:
            case Floats():
                return strided(values(shape(spec.shape), dtype, generator).to(dtype))
            case Integers(low=low, high=high):
                top = low + 1 if about == "zeros" else max(high, low + 1)
                least = top - 1 if about == "equal" else low
                drawn = torch.randint(least, top, shape(spec.shape), generator=generator)
                return strided(drawn.to(spec.dtype))
            case _:
                return spec

    args = tuple(made(spec) for spec in case.args)
    return Instance(about, dtype, args, {k: made(v) for k, v in case.kwargs.items()})


# --- values, made in float64 ----------------------------------------------------------------------


def _random(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def _spread(low: float, high: float) -> Values:
    """Magnitudes between powers of two, equally often each; `low`, `high`: shares of the range."""

    def values(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        top = math.log2(torch.finfo(dtype).max)
        drawn = torch.rand(shape, dtype=torch.float64, generator=generator)
        size = torch.exp2(top * (low + (high - low) * drawn))
        sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
        return size * sign

    return values


def _tiny(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Magnitudes from the root of the smallest normal number down to subnormal ones."""
    bottom = math.log2(torch.finfo(dtype).tiny)
    drawn = torch.rand(shape, dtype=torch.float64, generator=generator)
    sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return torch.exp2(bottom * (0.5 + 0.52 * drawn)) * sign


def _with_one(value: float | None) -> Values:
    """Random, but for one element; None: one so large that its square is infinite."""

    def values(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        made = _random(shape, dtype, generator)
        if made.numel():
            place = int(torch.randint(0, made.numel(), (), generator=generator))
            odd = torch.finfo(dtype).max / 3 if value is None else value
            made.view(-1)[place] = odd
        return made

    return values


VALUES: Mapping[str, Values] = {
    "random": _random,
    "negative": lambda *a: -_random(*a).abs() - 2.0**-10,
    "positive": lambda *a: _random(*a).abs() + 2.0**-10,
    "zeros": lambda shape, *_: torch.zeros(shape, dtype=torch.float64),
    "negative zeros": lambda shape, *_: torch.zeros(shape, dtype=torch.float64).neg(),
    "one zero": _with_one(0.0),
    "whole numbers": lambda *a: (_random(*a) * 3).round(),
    "equal": lambda shape, *_: torch.full(shape, 0.75, dtype=torch.float64),
    "wide": _spread(-0.12, 0.12),
    "large": _spread(0.12, 0.24),
    "tiny": _tiny,
    "one huge": _with_one(None),
    "one NaN": _with_one(math.nan),
    "one inf": _with_one(math.inf),
    "one -inf": _with_one(-math.inf),
}


# --- strides --------------------------------------------------------------------------------------


def _backwards(tensor: Tensor) -> Tensor:
    """The same values with the dims in the opposite order in memory."""
    turned = tuple(reversed(range(tensor.dim())))
    return tensor.permute(turned).contiguous().permute(turned)


def _every_other(tensor: Tensor) -> Tensor:
    """The same values with a stride of two and an offset in the last dim."""
    if not tensor.dim():
        return tensor
    wide = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), 7)
    wide[..., 1::2] = tensor
    return wide[..., 1::2]


def _repeated(tensor: Tensor) -> Tensor:
    """The first row everywhere, of stride zero."""
    return tensor[:1].expand(tensor.shape) if tensor.dim() else tensor


STRIDES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "dims in another order": _backwards,
    "every other element": _every_other,
    "one row repeated": _repeated,
}
