"""fp8 tensors in programs, compiled and eager: every code, as the CPU has them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.functional import ScalingType

from tests.compile.comparing import compare, fallbacks_in, generated, kernels_in, tensor

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
FP8 = (E4, E5)
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _nothing_leaves_the_card() -> Iterator[None]:
    torch._dynamo.reset()
    torch.spyre.reset_fallbacks()
    yield
    torch.spyre.reset_fallbacks()


def codes(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8).view(dtype)


def raw(x: torch.Tensor) -> torch.Tensor:
    """What tells two tensors apart: values, signs of zeros, one NaN for all."""
    host = x.detach().cpu()
    if not host.is_floating_point():
        return host
    wide = host.float().double()
    return torch.where(wide.isnan(), 1e300, wide + torch.where(wide.signbit(), -1e-300, 1e-300))


def both_ways(function: Function, *args: torch.Tensor) -> None:
    """Compiled and eager give the CPU's bits, and no op runs there."""
    wanted = function(*args)
    here = [a.to("spyre") for a in args]
    torch.spyre.reset_fallbacks()
    for form in (torch.compile(function, fullgraph=True, dynamic=False), function):
        got = form(*here)
        assert got.device.type == "spyre"
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        assert torch.equal(raw(got), raw(wanted))
    assert torch.spyre.fallbacks() == {}


@pytest.mark.parametrize("dtype", FP8, ids=str)
@pytest.mark.parametrize("other", [*FLOATS, *FP8, torch.int32, torch.int64, torch.uint8,
                                   torch.bool], ids=str)  # fmt: skip
def test_every_code_converts(dtype: torch.dtype, other: torch.dtype) -> None:
    given = codes(dtype)
    if not other.is_floating_point and other != torch.bool:
        wide = given.float()
        fits = wide.isfinite() & (wide.abs() < 2**31) & ((wide > -1) | (other != torch.uint8))
        fits &= (wide < 256) | (other != torch.uint8)
        given = given[fits]
    both_ways(lambda x: x.to(other), given)


@pytest.mark.parametrize("dtype", FP8, ids=str)
@pytest.mark.parametrize("other", FLOATS, ids=str)
def test_everything_converts_to_fp8(dtype: torch.dtype, other: torch.dtype) -> None:
    """All 16-bit values; of float32 every fp8 value, the ties between, and their neighbours."""
    if other != torch.float32:
        given = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(other)
    else:
        values = codes(dtype).float()
        values = values[values.isfinite()].unique()
        ends = values.max() * torch.tensor([1.0, 1.03, 1.0357, 1.0715, 1.125, 1.5, 1e30])
        near = torch.cat([values, (values[1:] + values[:-1]) / 2, ends, -ends])
        infinity = torch.tensor(torch.inf)
        special = torch.tensor([torch.inf, -torch.inf, torch.nan, -torch.nan, 1e-45, -1e-40, -0.0])
        given = torch.cat(
            [near, near.nextafter(infinity), near.nextafter(-infinity), special]
        )  # fmt: skip
    both_ways(lambda x: x.to(dtype), given)


@pytest.mark.parametrize("dtype", FP8, ids=str)
@pytest.mark.parametrize("other", [torch.int32, torch.int64, torch.int8, torch.bool], ids=str)
def test_integers_convert_to_fp8(dtype: torch.dtype, other: torch.dtype) -> None:
    given = torch.arange(-600, 600, 1 if other != torch.bool else 300).to(other)
    both_ways(lambda x: x.to(dtype), given)


FUNCTIONS: dict[str, Function] = {
    "cat": lambda x: torch.cat([x, x[:1], x[3:3]]),
    "stack": lambda x: torch.stack([x, x], 1),
    "where": lambda x: torch.where(x.float() > 0, x, x.flip(0)),
    "transposed": lambda x: x.t().contiguous(),
    "strided": lambda x: x[1:, ::3].contiguous(),
    "offset": lambda x: x.flatten()[5:].clone(),
    "expanded": lambda x: x[:1].expand(4, -1).contiguous(),
    "rows": lambda x: x[torch.tensor([2, 0, 2], device=x.device)],
    "pad": lambda x: F.pad(x, (1, 2)),
    "roll": lambda x: x.roll(1),
    "repeat": lambda x: x.repeat(2, 1),
    "eq": lambda x: x == x.roll(1),
    "ne": lambda x: x != x.roll(1),
    "isnan": torch.isnan,
    "abs": torch.abs,
    "mul": lambda x: x * x.flip(0),
    "fill": lambda x: torch.full_like(x, 1.5),
    "through": lambda x: (x.half() * 3).to(x.dtype),
    "quantised": lambda x: (x.float() / x.float().nan_to_num().clamp(-9, 9).abs().amax()).to(
        x.dtype
    ),
}


@pytest.mark.parametrize("dtype", FP8, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(dtype: torch.dtype, name: str) -> None:
    both_ways(FUNCTIONS[name], codes(dtype).reshape(8, 32))


@pytest.mark.parametrize("shape", [(0,), (1,), (), (0, 3), (3, 1), (7, 129)])
def test_sizes(shape: tuple[int, ...]) -> None:
    for dtype in FP8:
        both_ways(lambda x: (x.float() + 1).to(torch.float16), tensor(*shape).to(dtype))
        both_ways(lambda x: x.to(dtype), tensor(*shape))  # noqa: B023


def test_growing_sizes_and_mutation() -> None:
    compiled = torch.compile(lambda x: x.to(E4), dynamic=True)
    for n in (1, 2, 127, 128, 129, 1000):
        x = tensor(n)
        assert torch.equal(
            compiled(x.to("spyre")).cpu().view(torch.uint8), x.to(E4).view(torch.uint8)
        )

    def store(into: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        into[2:5] = x.to(into.dtype)
        return into.float()

    into, x = tensor(9).to(E5), tensor(3, seed=1)
    there = into.to("spyre")
    got = torch.compile(store)(there, x.to("spyre"))
    assert torch.equal(got.cpu(), store(into, x))
    assert torch.equal(there.cpu().view(torch.uint8), into.view(torch.uint8))


def test_printing() -> None:
    x = codes(E4)[40:60]
    assert repr(x.to("spyre")).split(", device")[0] == repr(x).split(", dtype")[0]
    assert "float8_e4m3fn" in repr(x.to("spyre"))


# --- products ------------------------------------------------------------------------------------

SHAPES = [(5, 48, 7), (1, 64, 130), (16, 200, 33), (3, 1, 1), (2, 17, 5)]


def operands(
    shape: tuple[int, int, int], left: torch.dtype, right: torch.dtype, *, by_row: bool, nk: bool
) -> tuple[torch.Tensor, ...]:
    m, k, n = shape
    a = tensor(m, k).to(left)
    b = tensor(n, k, seed=1).to(right).t() if nk else tensor(k, n, seed=1).to(right)
    if not by_row:
        return a, b, torch.tensor(0.37), torch.tensor([1.7])
    return a, b, tensor(m, 1, seed=2).abs() + 0.1, tensor(1, n, seed=3).abs() + 0.1


def agree(function: Function, *args: torch.Tensor) -> None:
    wanted = function(*args)
    compare(function, *args, tolerance=None if wanted.dtype in FLOATS else {"rtol": 0, "atol": 0})
    here = [a.to("spyre") for a in args]
    torch.spyre.reset_fallbacks()
    got = function(*here)
    assert torch.spyre.fallbacks() == {}, torch.spyre.fallback_reasons()
    close = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
    bound = close.get(wanted.dtype, 0)
    torch.testing.assert_close(got.cpu().float(), wanted.float(), rtol=bound, atol=bound)


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("nk", [False, True])
@pytest.mark.parametrize("kinds", list(itertools.product(FP8, FP8)), ids=str)
def test_scaled_mm(kinds: tuple[torch.dtype, torch.dtype], by_row: bool, nk: bool) -> None:
    number = 4 * FP8.index(kinds[0]) + 2 * FP8.index(kinds[1]) + by_row + nk
    for n in (number, number + 1):  # each shape, result and bias with some of the others
        shape, out, bias = SHAPES[n % 5], [*FLOATS, None][n % 4], [*FLOATS, None][n // 2 % 4]
        args = operands(shape, *kinds, by_row=by_row, nk=nk)
        if bias is None:
            agree(lambda a, b, s, t: torch._scaled_mm(a, b, s, t, out_dtype=out), *args)  # noqa: B023
            continue
        agree(
            lambda a, b, s, t, c: torch._scaled_mm(a, b, s, t, bias=c, out_dtype=out),  # noqa: B023
            *args, tensor(shape[2], seed=4).to(bias),
        )  # fmt: skip


@pytest.mark.parametrize("shape", [(0, 16, 16), (16, 0, 16), (16, 16, 0), (0, 0, 0)])
def test_scaled_mm_of_nothing(shape: tuple[int, int, int]) -> None:
    bias = tensor(shape[2])
    args = operands(shape, E4, E4, by_row=False, nk=True)
    agree(
        lambda a, b, s, t, c: torch._scaled_mm(a, b, s, t, bias=c, out_dtype=torch.float32),
        *args, bias,
    )  # fmt: skip


def test_fp8_results_saturate_and_take_a_scale() -> None:
    a = torch.full((2, 64), 448.0).to(E4)
    one, big = torch.tensor(1.0), torch.tensor(1e5)
    for out in FP8:
        agree(lambda a, s: torch._scaled_mm(a, a.t(), s, s, out_dtype=out), a, one)  # noqa: B023
        agree(
            lambda a, s, r: torch._scaled_mm(a, a.t(), s, s, scale_result=r, out_dtype=out),  # noqa: B023
            a, one, big,
        )  # fmt: skip


def test_scaled_mm_by_words() -> None:
    for by_row, kind in ((False, ScalingType.TensorWise), (True, ScalingType.RowWise)):
        args = operands((5, 48, 7), E4, E5, by_row=by_row, nk=True)
        agree(
            lambda a, b, s, t: F.scaled_mm(a, b, s, kind, t, kind, output_dtype=torch.float16),  # noqa: B023
            *args,
        )  # fmt: skip


def test_what_the_cpu_refuses_is_refused() -> None:
    a, b, s, t = operands((5, 48, 7), E4, E4, by_row=False, nk=True)
    for args in ((a, b[:40], s, t), (a, b, torch.rand(5), torch.rand(7)), (a, b, s.half(), t)):
        here = [x.to("spyre") for x in args]
        with pytest.raises((RuntimeError, ValueError)) as wanted:
            torch._scaled_mm(*args)
        with pytest.raises(type(wanted.value), match=r"shapes cannot|Invalid scaling"):
            torch._scaled_mm(*here)
        with pytest.raises(Exception, match=r"shapes cannot|Invalid scaling"):
            torch.compile(torch._scaled_mm)(*here)


def test_the_kernel_multiplies_codes() -> None:
    """PT takes fp8 operands, and no wider copy of them is made."""
    args = operands((64, 256, 128), E4, E5, by_row=False, nk=True)
    code = generated(
        lambda a, b, s, t: torch._scaled_mm(a, b, s, t, out_dtype=torch.float16), *args
    )
    assert fallbacks_in(code) == []
    (kernel,) = kernels_in(code)
    assert [t.dtype.value for t in kernel.tensors.values()][:2] == ["f8e4m3", "f8e5m2"]


def test_plain_products_of_fp8() -> None:
    a, b = tensor(9, 40).to(E4), tensor(40, 11, seed=1).to(E4)
    agree(lambda a, b: a @ b, a, b)
    agree(lambda a, b: a.half() @ b.half(), a, b)


@pytest.mark.parametrize("narrow", [*FP8, torch.int8])
@pytest.mark.parametrize("wide", FLOATS, ids=str)
def test_narrow_weights_of_a_linear(narrow: torch.dtype, wide: torch.dtype) -> None:
    """Widened, and scaled, where they are used."""
    x, scale = tensor(7, 130).to(wide), tensor(70, seed=2).abs().to(wide)
    weight = (tensor(70, 130, seed=1) * (20 if narrow is torch.int8 else 1)).to(narrow)
    compare(lambda x, w, s: F.linear(x, w.to(x.dtype)) * s, x, weight, scale)
    compare(lambda x, w, s: F.linear(x, w.to(x.dtype) * s[:, None]), x, weight, scale)
    compare(lambda x, w, s: x @ (w.T.to(x.dtype) * s), x[:1], weight, scale)
