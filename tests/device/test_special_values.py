"""NaN, infinities, zeros with signs, and the ends of integer ranges, as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

NAN, INF = float("nan"), float("inf")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SPECIAL = (NAN, INF, -INF, -0.0, 0.0, 1.5, -2.5, 65504.0, -3.0)
UNARY = [
    "abs",
    "neg",
    "sign",
    "sgn",
    "exp",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sin",
    "cos",
    "tan",
    "tanh",
    "sigmoid",
    "floor",
    "ceil",
    "round",
    "trunc",
    "frac",
    "isnan",
    "isinf",
    "isfinite",
    "signbit",
    "erf",
    "square",
    "logical_not",
    "atan",
    "nan_to_num",
    "exp2",
    "sinh",
    "cosh",
    "asin",
    "acos",
    "erfc",
    "erfinv",
]
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "atan2",
    "fmod",
    "remainder",
    "pow",
    "copysign",
    "hypot",
    "logical_and",
    "logical_xor",
    "floor_divide",
    "xlogy",
]
REDUCED = [
    "sum",
    "mean",
    "amax",
    "amin",
    "prod",
    "argmax",
    "argmin",
    "var",
    "logsumexp",
    "softmax",
    "log_softmax",
    "cumsum",
    "cumprod",
    "any",
    "all",
    "max",
    "min",
    "nansum",
    "count_nonzero",
]
WHOLE = [
    "add",
    "sub",
    "mul",
    "maximum",
    "minimum",
    "eq",
    "lt",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "div",
    "floor_divide",
    "remainder",
    "fmod",
    "bitwise_left_shift",
    "bitwise_right_shift",
]
# IEEE 754 leaves the sign of their zeros open.
ANY_ZERO = frozenset({"fmax", "fmin", "maximum", "minimum", "amax", "amin", "max", "min"})


def function_of(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(torch, name, None) or getattr(F, name)
    return found


def same(ours: Any, theirs: Any, *, signs: bool = True) -> None:
    leaves = torch.utils._pytree.tree_leaves
    for a, b in zip(leaves(ours), leaves(theirs), strict=True):
        a, close = a.cpu(), TOLERANCE.get(b.dtype, 0)
        torch.testing.assert_close(a, b, rtol=close, atol=close, equal_nan=True)
        if signs and b.dtype.is_floating_point:
            zeros = (a == 0) & (b == 0)
            assert torch.equal(torch.signbit(a[zeros]), torch.signbit(b[zeros]))


def pairs(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every value with every other."""
    n = len(values)
    return values.repeat_interleave(n), values.repeat(n)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_of_one_float(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor(SPECIAL).to(dtype)
    same(function_of(name)(x.to("spyre")), function_of(name)(x))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_of_two_floats(name: str, dtype: torch.dtype) -> None:
    a, b = pairs(torch.tensor(SPECIAL).to(dtype))
    ours = function_of(name)(a.to("spyre"), b.to("spyre"))
    same(ours, function_of(name)(a, b), signs=name not in ANY_ZERO)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", REDUCED)
def test_of_rows(name: str, dtype: torch.dtype) -> None:
    rows = [
        list(SPECIAL), [1.0] * 8 + [NAN], [NAN] + [1.0] * 8, [2.0] * 7 + [INF, -INF],
        [-INF] * 9, [-0.0] * 9, [0.0] * 4 + [-0.0] * 5,
        [3.0, 1.0, 3.0, -2.0, 0.5, 1.0, 2.0, 3.0, 1.0],
    ]  # fmt: skip
    x = torch.tensor(rows).to(dtype)
    for dim in (0, 1):
        ours = function_of(name)(x.to("spyre"), dim=dim)
        same(ours, function_of(name)(x, dim=dim), signs=name not in ANY_ZERO)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", WHOLE)
def test_of_two_integers(name: str, dtype: torch.dtype) -> None:
    ends = torch.iinfo(dtype)
    a, b = pairs(torch.tensor([ends.min, ends.max, 0, 1, 2, 7, 100, ends.max - 3], dtype=dtype))
    if "shift" in name:
        b = b.clamp(0, 7)
    if name in ("floor_divide", "remainder", "fmod"):
        b = torch.where(b == 0, 1, b)
    same(function_of(name)(a.to("spyre"), b.to("spyre")), function_of(name)(a, b))


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool], ids=str)
def test_sums_and_extremes_of_integers(dtype: torch.dtype) -> None:
    ends = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    x = torch.tensor([*ends, 1, 0, ends[1]]).to(dtype)
    card = x.to("spyre")
    for name in ("sum", "prod", "amax", "amin", "any", "all", "argmax", "cumsum"):
        if not (dtype == torch.bool and name == "argmax"):
            same(function_of(name)(card, dim=0), function_of(name)(x, dim=0))


def test_floor_division_agrees_with_the_remainder() -> None:
    a = torch.tensor([1.0, -1.0, 7.5, 0.3, -0.3, INF, 1e30])
    b = torch.tensor([0.1, 0.1, -0.5, 0.1, 0.1, 2.0, 3.0])
    assert (a // b)[0] == 9
    forms: tuple[Callable[..., torch.Tensor], ...] = (
        lambda a, b: a // b,
        lambda a, b: a // 0.1,
        lambda a, b: torch.div(a, b, rounding_mode="floor"),
        lambda a, b: torch.div(a.long(), b, rounding_mode="floor") if a.isfinite().all() else b,
        lambda a, b: a.half() // b,
        lambda a, b: a.half() // 0.1,
    )
    for form in forms:
        same(form(a.to("spyre"), b.to("spyre")), form(a, b))
        torch._dynamo.reset()
        same(torch.compile(form)(a.to("spyre"), b.to("spyre")), form(a, b))


FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@pytest.mark.parametrize("other", [*FLOATS, *FP8, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_conversions_of_fp8(dtype: torch.dtype, other: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(dtype)
    there = every.to(other)
    ours = every.to("spyre").to(other).cpu()
    assert torch.equal(ours.float().nan_to_num(7e9), there.float().nan_to_num(7e9))
    x = torch.tensor([0.0, -0.0, 1.0, 448.0, 460.0, 1e5, -1e5, 0.002, 1e-9, NAN, INF]).to(other)
    back = x.to("spyre").to(dtype).cpu().view(torch.uint8)
    assert torch.equal(back, x.to(dtype).view(torch.uint8))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", [1, 2, 9, 65])
def test_a_zero_keeps_its_sign_at_every_size(size: int, dtype: torch.dtype) -> None:
    x = torch.full((size,), -0.0, dtype=dtype)
    card = x.to("spyre")
    for ours, theirs in ((card * 2.5, x * 2.5), (card + card, x + x), (card / 3, x / 3)):
        same(ours, theirs)
    same(card.expand(3, size) * card.abs().add(1), x.expand(3, size) * x.abs().add(1))
