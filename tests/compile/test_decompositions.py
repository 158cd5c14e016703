"""Ops that Inductor only calls, on the card: eagerly and compiled, against the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._inductor.codegen.common import pointwise_overrides_data
from torch.nn import functional as F

from openspyre.frontend.functions import FUNCTIONS
from openspyre.frontend.lowerings import _without_row
from openspyre.frontend.triangular import solve_triangular
from tests.compile.comparing import compare, moved, same, tensor

NAN, INF = float("nan"), float("inf")
Function = Callable[..., Any]


def eagerly(function: Function, *args: Any) -> None:
    """The CPU's result, eagerly, without leaving the card."""
    torch.spyre.reset_fallbacks()
    found = function(*moved(args))
    leaves = torch.utils._pytree.tree_leaves
    for ours, theirs in zip(leaves(found), leaves(function(*args)), strict=True):
        assert ours.dtype == theirs.dtype
        same(ours, theirs)
    assert torch.spyre.fallback_reasons() == {}


def both(function: Function, *args: Any) -> None:
    eagerly(function, *args)
    compare(function, *args)


def special(*shape: int) -> torch.Tensor:
    x = tensor(*shape)
    x.view(-1)[1::7] = NAN
    x.view(-1)[3::11] = INF
    x.view(-1)[4::13] = -INF
    return x


RUNNING = (torch.float32, torch.float16, torch.int64)


@pytest.mark.parametrize("dtype", RUNNING, ids=str)
@pytest.mark.parametrize("op", [torch.cummax, torch.cummin])
def test_running_extremes_tell_the_last_place(op: Function, dtype: torch.dtype) -> None:
    x = (tensor(3, 37) * 2).round().to(dtype)
    both(lambda x: op(x, 1), x)
    eagerly(lambda x: op(x, 0), x[:, :1])


def test_running_extremes_of_nan() -> None:
    both(lambda x: torch.cummax(x, -1), special(2, 30))
    eagerly(lambda x: torch.cummin(x, 0), special(30, 2))


MEDIANS = ([3.0, NAN, 1.0, 2.0, NAN], [NAN] * 5, [5.0, 4.0, 3.0, 2.0, 1.0], [0.0, INF, -INF, 2, 2])


def test_nanmedian_leaves_nan_out() -> None:
    x = torch.tensor(MEDIANS)
    both(lambda x: (x.nanmedian(1).values, x.nanmedian(), x.nanmedian(1, keepdim=True)[0]), x)
    eagerly(lambda x: x.nanmedian(0), tensor(9, 5, dtype=torch.int64)[:, :0].reshape(0, 9).t())


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
def test_mode_is_the_least_of_the_most_frequent(dtype: torch.dtype) -> None:
    x = tensor(6, 9, dtype=torch.int64).remainder(4).to(dtype)
    both(lambda x: x.mode(1).values, x)
    values, places = moved(x).mode(1)
    assert torch.equal(x.gather(1, places.cpu()[:, None])[:, 0], values.cpu())


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, INF])
def test_distances(p: float) -> None:
    both(lambda a, b: torch.cdist(a, b, p), tensor(2, 4, 5), tensor(3, 5, seed=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64], ids=str)
def test_addbmm(dtype: torch.dtype) -> None:
    factors = {"beta": 2, "alpha": 3}
    a, b = tensor(4, 3, 5, dtype=dtype), tensor(4, 5, 2, dtype=dtype)
    both(lambda x, a, b: torch.addbmm(x, a, b, **factors), tensor(3, 2, dtype=dtype), a, b)


@pytest.mark.parametrize(("beta", "alpha"), [(0.2, 0.6), (1.7, -2.5), (0, 2.9), (1, 0.6)])
def test_factors_of_integers_are_cut(beta: float, alpha: float) -> None:
    whole = {"dtype": torch.int64}
    a, b, x = tensor(2, 3, 5, **whole), tensor(2, 5, 4, **whole), tensor(2, 3, 4, **whole)
    factors = {"beta": beta, "alpha": alpha}
    compare(lambda x, a, b: torch.baddbmm(x, a, b, **factors), x, a, b, fallbacks=("baddbmm",))
    for op, given in ((torch.baddbmm, (x, a, b)), (torch.addmm, (x[0], a[0], b[0]))):
        same(op(*moved(given), **factors), op(*given, **factors))


@pytest.mark.parametrize("size", [1, (3, 5, 2), (7, 9, 11)])
def test_adaptive_pooling_of_boxes(size: Any) -> None:
    x = special(2, 3, 5, 6, 7)
    eagerly(lambda x: F.adaptive_avg_pool3d(x, size), tensor(2, 3, 5, 6, 7))
    eagerly(lambda x: F.adaptive_max_pool3d(x, size), x)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce: str, include_self: bool) -> None:
    x, src = tensor(6, 7), tensor(4, 5, seed=1)
    index = tensor(4, 3, dtype=torch.int64).remainder(7)

    def scattered(x: torch.Tensor, index: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(1, index, src, reduce, include_self=include_self)

    both(scattered, x, index, src)
    eagerly(scattered, (x * 9).long(), index, (src * 9).long())


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
def test_index_reduce(reduce: str) -> None:
    index = torch.tensor([3, 0, 3, 3])
    both(
        lambda x, i, s: x.index_reduce(0, i, s, reduce, include_self=False),
        tensor(5, 3), index, tensor(4, 3, seed=1),
    )  # fmt: skip


def test_sums_and_products_in_bool() -> None:
    x = tensor(5, 3, dtype=torch.bool)
    x[2] = True
    both(lambda x: (x.prod(1, dtype=torch.bool), x.sum(0, dtype=torch.bool), x.prod(1)), x)


def test_masked_scatter_and_take() -> None:
    x, source = tensor(4, 5), tensor(40, seed=2)
    both(torch.masked_scatter, x, tensor(4, 5, dtype=torch.bool), source)
    eagerly(torch.masked_scatter, x, torch.zeros(5, dtype=torch.bool), source)
    both(torch.take, x, torch.tensor([[0, 19, -1], [7, 7, -20]]))


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_the_moments_of_nothing_are_nan() -> None:
    both(lambda x: (*torch.var_mean(x, 1), *torch.std_mean(x)), torch.ones(3, 0))


@pytest.mark.parametrize("op", [F.hardshrink, F.softshrink])
def test_gradients_of_shrinking(op: Function) -> None:
    x = torch.tensor([-2.0, -0.5, -0.3, 0.0, 0.5, 0.7, NAN])
    grads = []
    for device in ("spyre", "cpu"):
        leaf = x.to(device).requires_grad_()
        op(leaf).sum().backward()
        grads.append(leaf.grad)
    same(*grads)


@pytest.mark.parametrize("length", [8, 9, 10, 11])
def test_gradient_of_a_short_last_window(length: int) -> None:
    x = tensor(1, 2, length)
    grads = []
    for device in ("spyre", "cpu"):
        leaf = x.to(device).requires_grad_()
        F.avg_pool1d(leaf, 7, 3, ceil_mode=True).sum().backward()
        grads.append(leaf.grad)
    same(*grads)


@pytest.mark.parametrize("depth", [3, 4, 5, 6])
def test_results_of_one_window(depth: int) -> None:
    """A size of 1 in a result is part of its pattern, and depends on the size behind it."""
    eagerly(lambda x: F.avg_pool3d(x, 2), tensor(2, 3, depth, 4, 4))
    eagerly(lambda x: F.avg_pool2d(x, 3), tensor(2, 3, depth, 7))


def test_values_written_by_number() -> None:
    index = torch.tensor([[0, 2], [1, 1]])
    for number in (2.5, -1.0):
        eagerly(lambda x, i, n=number: x.scatter(1, i, n), tensor(2, 3), index)
        eagerly(lambda x, i, n=number: x.scatter(1, i, n, reduce="add"), tensor(2, 3), index)


def test_an_out_variant_is_not_taken_for_another_overload() -> None:
    x = tensor(3, 5)
    for op in (torch.max, torch.min):
        out = torch.empty((), device="spyre")
        op(moved(x), out=out)
        same(out, op(x))


def names() -> Iterator[str]:
    return (n for n in pointwise_overrides_data if n not in FUNCTIONS)


def test_functions_without_a_row_are_called() -> None:
    """Whatever function Inductor knows, a graph compiles: here one of each kind."""
    called = {op._schema.name for op in _without_row()}
    aten = torch.ops.aten
    known = {n for n in names() if hasattr(aten, pointwise_overrides_data[n].name)}
    assert {f"aten::{pointwise_overrides_data[n].name}" for n in known} == called
    x = tensor(9).abs()
    function = torch.compile(lambda x: torch.special.airy_ai(x + 1) + 1)
    torch.testing.assert_close(function(moved(x)).cpu(), torch.special.airy_ai(x + 1) + 1)
    degree = torch.arange(9)
    polynomial = torch.compile(lambda x, n: torch.special.chebyshev_polynomial_v(x + 1, n) + 1)
    wanted = torch.special.chebyshev_polynomial_v(x + 1, degree) + 1
    torch.testing.assert_close(polynomial(*moved((x, degree))).cpu(), wanted)


# --- triangular systems ---------------------------------------------------------------------------


def triangle(*shape: int) -> torch.Tensor:
    """A well-conditioned one, whose other half is NaN."""
    n = shape[-1]
    return (tensor(*shape) * 0.3).tril(-1) + 2 * torch.eye(n) + torch.full((n, n), NAN).triu(1)


def lower(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.linalg.solve_triangular(a, b, upper=False)


def test_triangular_systems() -> None:
    a, b = triangle(2, 5, 5), tensor(2, 5, 3)
    both(lower, a, b)
    a[0, 3, 1], b[1, 2, 1] = NAN, NAN  # rows before them are finite
    eagerly(lower, a, b)
    eagerly(lower, triangle(1, 1), tensor(1, 4))


@pytest.mark.parametrize("n", [18, 48])
def test_triangular_systems_of_several_blocks(n: int) -> None:
    """The op that stands for them, wherever it is computed."""
    for upper, left, ones in itertools.product((False, True), repeat=3):
        a = triangle(n, n) / 4
        a[n // 2, n // 3] = NAN
        a, b = a.mT if upper else a, tensor(n, 3)
        b[-2 if upper else 2, 1] = NAN
        b = b if left else b.mT
        how = {"upper": upper, "left": left, "unitriangular": ones}
        wanted = torch.linalg.solve_triangular(a, b, **how)
        assert 0 < int(wanted.isnan().sum()) < wanted.numel()
        torch.testing.assert_close(solve_triangular(a, b, **how), wanted, equal_nan=True)


def test_triangular_systems_of_other_forms() -> None:
    def right(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve_triangular(a.mT, b, upper=True, left=False, unitriangular=True)

    eagerly(right, triangle(3, 1, 4, 4), tensor(2, 5, 4))  # one matrix for several
    a = torch.tensor([[1.0, 0, 0], [0, 0, 0], [0, 0, 1]], device="spyre")
    assert not torch.linalg.solve_triangular(a, torch.ones(3, 1).to(a), upper=False)[1].isfinite()
    assert torch.linalg.solve_triangular(a, torch.ones(3, 0).to(a), upper=False).shape == (3, 0)


# --- resizing with a filter -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiased_resizing(mode: str) -> None:
    """A NaN is in the results that its place is under, and in no other."""

    def resized(x: torch.Tensor, **how: Any) -> torch.Tensor:
        return F.interpolate(x, mode=mode, antialias=True, **how)

    x = tensor(2, 3, 13, 17)
    x[0, 1, 6, 8] = NAN
    both(lambda x: resized(x, size=(5, 20)), x)
    eagerly(lambda x: resized(x, size=(4, 6), align_corners=True), x.transpose(2, 3))
    eagerly(lambda x: resized(x, scale_factor=0.37), x[..., :3, :])
