"""Whether what the card returned is right, measured on what the CPU returned.

A value is right if it is the CPU's within PyTorch's own tolerance for the dtype, or the value
computed in float64 within that tolerance, or no farther from the float64 value than a few times
what the CPU's own result is at its worst element: being more accurate than the CPU is no fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

# torch.testing.assert_close's
_TOLERANCE = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
}
_CPU_ERRORS = 4.0  # how many times the CPU's worst error is no worse than the CPU

Wide = Callable[[], Any]


def form_problem(got: Any, expected: Any, *, strides: bool) -> str:
    """What is wrong with a result but for the values of its tensors; empty if nothing is.

    Args:
        strides: whether PyTorch promises the strides of results.
    """
    ours, structure = tree_flatten(got)
    theirs, wanted = tree_flatten(expected)
    if structure != wanted or len(ours) != len(theirs):
        return f"a result of the form {structure}, not {wanted}"
    for place, (mine, his) in enumerate(zip(ours, theirs, strict=True)):
        if said := _leaf_problem(mine, his, strides):
            return f"result {place}: {said}" if len(theirs) > 1 else said
    return ""


def _leaf_problem(got: Any, expected: Any, strides: bool) -> str:
    if not isinstance(expected, torch.Tensor):
        return _object_problem(got, expected)
    if not isinstance(got, torch.Tensor):
        return f"{type(got).__name__}, not a tensor"
    return next(_form_problems(got, expected, strides), "")


def values_problem(got: Any, expected: Any, wide: Wide) -> str:
    """What is wrong with the values of the tensors of a result of the right form.

    Args:
        wide: computes the same in float64, or gives None where that cannot be.
    """
    ours, theirs = tree_flatten(got)[0], tree_flatten(expected)[0]
    exact: list[list[Any]] = []

    def exact_leaf(place: int) -> Any:
        if not exact:
            exact.append(tree_flatten(wide())[0])
        return exact[0][place] if len(exact[0]) == len(theirs) else None

    for place, (mine, his) in enumerate(zip(ours, theirs, strict=True)):
        if isinstance(his, torch.Tensor):
            said = tensor_problem(mine.detach().cpu(), his.detach(), partial(exact_leaf, place))
            if said:
                return f"result {place}: {said}" if len(theirs) > 1 else said
    return ""


def _object_problem(got: Any, expected: Any) -> str:
    if isinstance(expected, float) and isinstance(got, float):
        same = math.isclose(got, expected, rel_tol=1e-5, abs_tol=1e-6) or (
            math.isnan(got) and math.isnan(expected)
        )
    elif isinstance(expected, torch.device):
        same = got.type == "spyre"
    else:
        same = type(got) is type(expected) and bool(got == expected)
    return "" if same else f"{got!r}, not {expected!r}"


def _form_problems(got: torch.Tensor, expected: torch.Tensor, strides: bool) -> Iterator[str]:
    if got.device.type != "spyre":
        yield f"it lies on {got.device}"
    if got.shape != expected.shape:
        yield f"shape {tuple(got.shape)}, not {tuple(expected.shape)}"
    if got.dtype != expected.dtype:
        yield f"{got.dtype}, not {expected.dtype}"
    if got.layout != expected.layout:
        yield f"{got.layout}, not {expected.layout}"
    if strides and expected.layout is torch.strided and _steps(got) != _steps(expected):
        yield f"strides {got.stride()}, not {expected.stride()} of {tuple(got.shape)}"


def _steps(tensor: torch.Tensor) -> list[int]:
    """The strides that lead to elements."""
    if tensor.numel() == 0:
        return []
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    return [stride for stride, size in pairs if size > 1]


def tensor_problem(got: torch.Tensor, expected: torch.Tensor, wide: Wide) -> str:
    """What is wrong with the values of a tensor of the same form."""
    if expected.layout is not torch.strided:
        got, expected = got.to_dense(), expected.to_dense()
    if not (expected.is_floating_point() or expected.is_complex()):
        return _differing(got == expected, got, expected)
    got, expected = _real(got), _real(expected)
    right = _close(got, expected)
    if bool(right.all()):
        return ""
    exact = wide()
    if (
        isinstance(exact, torch.Tensor)
        and exact.shape.numel() * (2 if exact.is_complex() else 1) == expected.numel()
    ):
        right |= _near(got, expected, _real(exact.detach()).reshape(expected.shape))
    return _differing(right, got, expected)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _close(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    relative, absolute = _TOLERANCE[expected.dtype]
    return torch.isclose(got, expected, rtol=relative, atol=absolute, equal_nan=True)


def _near(got: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Which elements are as near to the exact values as the CPU's own are."""
    rounded = exact.to(expected.dtype)
    ours, theirs = (got.double() - exact).abs(), (expected.double() - exact).abs()
    finite = theirs[theirs.isfinite()]
    worst = float(finite.max()) if finite.numel() else 0.0
    relative, absolute = _TOLERANCE[expected.dtype]
    allowed = relative * exact.double().abs() + absolute + _CPU_ERRORS * worst
    return _close(got, rounded) | (ours <= allowed)


def _differing(right: torch.Tensor, got: torch.Tensor, expected: torch.Tensor) -> str:
    if bool(right.all()):
        return ""
    places = (~right).nonzero()
    at = tuple(int(i) for i in places[0])
    return (
        f"{len(places)} of {right.numel()} elements differ, at {list(at)} "
        f"{got[at].item()!r}, not {expected[at].item()!r}"
    )


# --- random results ---------------------------------------------------------------------------

_UNUSUAL = 1e6  # what infinities count as; NaN is twice that
_KS = math.sqrt(-math.log(1e-6 / 2) / 2)  # of samples of one distribution, one in a million differ


def distribution_problem(got: list[Any], expected: list[Any]) -> str:
    """What tells apart the distributions of results of many runs; empty if nothing does.

    Kolmogorov and Smirnov's test on the elements of all runs, counted for as many as are
    independent of each other, judging by how much the means of runs vary.
    """
    for place in range(len(tree_flatten(expected[0])[0])):
        ours, theirs = ([tree_flatten(run)[0][place] for run in runs] for runs in (got, expected))
        if not isinstance(theirs[0], torch.Tensor) or theirs[0].numel() == 0:
            continue
        said = next(_form_problems(ours[0], theirs[0], strides=False), "")
        if said:
            return said
        mine, his = (torch.stack([_numbers(t) for t in runs]) for runs in (ours, theirs))
        relative, absolute = _TOLERANCE.get(theirs[0].dtype, (0.0, 0.0))
        usual = his[his.abs() < _UNUSUAL].abs()
        slack = relative * float(usual.max() if usual.numel() else 0) + absolute
        distance = _distance(mine.flatten(), his.flatten(), slack)
        allowed = _KS * math.sqrt(2 / _independent(his))
        if distance > allowed:
            return f"another distribution: {distance:.2f} apart, {allowed:.2f} may be"
    return ""


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().cpu()
    return _real(tensor).double().flatten().nan_to_num(2 * _UNUSUAL, _UNUSUAL, -_UNUSUAL)


def _independent(runs: torch.Tensor) -> float:
    """How many of the elements of all runs count as independent."""
    number, size = runs.shape
    spread = float(runs.mean(1).var())
    if spread == 0:
        return float(number)
    return number * min(max(float(runs.var()) / spread, 1.0), float(size))


def _distance(a: torch.Tensor, b: torch.Tensor, slack: float) -> float:
    """The largest difference of two empirical distribution functions, values being uncertain."""
    points = torch.cat([a, b])
    first, second = a.sort().values, b.sort().values

    def ahead(one: torch.Tensor, other: torch.Tensor) -> float:
        sooner = torch.searchsorted(one, points - slack, right=True) / one.numel()
        later = torch.searchsorted(other, points + slack, right=True) / other.numel()
        return float((sooner - later).max())

    return max(ahead(first, second), ahead(second, first))
