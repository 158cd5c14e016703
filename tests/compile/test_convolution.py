"""Convolutions on the card: any rank, stride, padding, dilation, groups; transposed; gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from openspyre.ir.kernel import Kind
from tests.compile.comparing import compare, generated, kernels_in, moved, same, tensor

Arguments = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]

DIRECT: dict[str, Arguments] = {
    "patches": ((2, 3, 16, 16), (9, 3, 4, 4), {"stride": 4}),
    "patches with a rest": ((1, 3, 15, 18), (9, 3, 4, 4), {"stride": 4}),
    "1d": ((2, 3, 17), (9, 3, 3), {"padding": 1}),
    "dilated": ((2, 3, 17), (9, 3, 3), {"padding": 2, "stride": 2, "dilation": 2}),
    "unequal": ((2, 4, 9, 7), (5, 4, 3, 2), {"padding": (0, 1), "stride": (1, 2)}),
    "3d": ((2, 3, 5, 6, 7), (4, 3, 3, 3, 3), {"padding": 1}),
    "one tap": ((2, 5, 6, 7), (70, 5, 1, 1), {}),
    "grouped": ((2, 4, 5, 6), (6, 2, 3, 3), {"groups": 2, "padding": (1, 0)}),
    "depthwise": ((2, 4, 5, 6), (4, 1, 3, 3), {"groups": 4, "padding": 1}),
    "depthwise times two": ((2, 4, 5, 6), (8, 1, 3, 3), {"groups": 4, "padding": 1}),
    "padding of the size": ((2, 3, 1, 2), (4, 3, 3, 3), {"padding": (1, 2)}),
    "strided to one place": ((2, 8, 1, 2), (8, 8, 3, 3), {"stride": 2, "padding": 1}),
    "one row": ((1, 1, 1), (1, 1, 1), {}),
    "same": ((1, 2, 8, 9), (3, 2, 5, 3), {"padding": "same"}),
    "unbatched": ((3, 8, 9), (4, 3, 3, 3), {}),
    "no rows": ((0, 3, 8), (4, 3, 3), {}),
}
TRANSPOSED: dict[str, Arguments] = {
    "stride": ((2, 3, 5, 6), (3, 4, 3, 3), {"stride": 2}),
    "cropped": ((2, 3, 5), (3, 4, 3), {"padding": 2}),
    "all": (
        (2, 4, 5, 6),
        (4, 3, 3, 3),
        {"stride": (2, 3), "padding": 1, "output_padding": (1, 2), "groups": 2, "dilation": (1, 2)},
    ),
    "3d": ((1, 2, 3, 2, 4), (2, 3, 2, 2, 2), {"stride": 2}),
    "padded by a stride": (
        (2, 4, 3, 5),
        (4, 2, 2, 3),
        {"stride": (2, 1), "output_padding": (2, 1), "dilation": (3, 2), "padding": 1},
    ),
}
CASES = [
    *((f"conv{len(w) - 2}d", x, w, o) for x, w, o in DIRECT.values()),
    *((f"conv_transpose{len(w) - 2}d", x, w, o) for x, w, o in TRANSPOSED.values()),
]
NAMES = [*DIRECT, *(f"transposed {name}" for name in TRANSPOSED)]


def called(name: str, options: dict[str, Any]) -> Callable[..., torch.Tensor]:
    return lambda x, weight, bias: getattr(F, name)(x, weight, bias, **options)


def arguments(
    name: str, x: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any]
) -> list[torch.Tensor]:
    outs = weight[1] * options.get("groups", 1) if "transpose" in name else weight[0]
    return [tensor(*x), tensor(*weight), tensor(outs)]


@pytest.mark.parametrize(("name", "x", "weight", "options"), CASES, ids=NAMES)
def test_compiled(
    name: str, x: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any]
) -> None:
    compare(called(name, options), *arguments(name, x, weight, options))


@pytest.mark.parametrize(("name", "x", "weight", "options"), CASES, ids=NAMES)
def test_eager_with_gradients(
    name: str, x: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any]
) -> None:
    given = [t.requires_grad_() for t in arguments(name, x, weight, options)]
    here = [t.detach().to("spyre").requires_grad_() for t in given]
    torch.spyre.reset_fallbacks()
    theirs, ours = (called(name, options)(*a) for a in (given, here))
    assert ours.stride() == theirs.stride()
    same(ours, theirs)
    gradient = tensor(*theirs.shape, seed=7)
    theirs.backward(gradient)
    ours.backward(gradient.to("spyre"))
    assert torch.spyre.fallback_reasons() == {}
    for mine, other in zip(here, given, strict=True):
        same(mine.grad, other.grad, {"rtol": 1e-4, "atol": 1e-4})


@pytest.mark.parametrize(
    "case",
    [
        "dilated",
        "grouped",
        "depthwise",
        "transposed all",
        "transposed padded by a stride",
    ],
)
def test_compiled_gradients(case: str) -> None:
    name, x, weight, options = CASES[NAMES.index(case)]

    def gradients(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = called(name, options)(*given).square().sum()
        return torch.autograd.grad(loss, given)

    expected = gradients(*(t.requires_grad_() for t in arguments(name, x, weight, options)))
    torch._dynamo.reset()
    compiled = torch.compile(called(name, options))
    here = [t.to("spyre").requires_grad_() for t in arguments(name, x, weight, options)]
    torch.spyre.reset_fallbacks()
    compiled(*here).square().sum().backward()
    assert torch.spyre.fallback_reasons() == {}
    for mine, other in zip(here, expected, strict=True):
        same(mine.grad, other, {"rtol": 1e-4, "atol": 1e-4})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrow(dtype: torch.dtype) -> None:
    x, weight, bias = (tensor(*s, dtype=dtype) for s in ((2, 3, 9, 9), (5, 3, 3, 3), (5,)))
    compare(lambda x, w: F.conv2d(x, w, padding=1), x, weight, wide=True)
    compare(
        lambda x, w, b: F.conv2d(x, w, b),
        x,
        weight,
        bias,
        wide=True,
        tolerance={"rtol": 3e-2, "atol": 3e-2}
        if dtype == torch.bfloat16
        else {"rtol": 4e-3, "atol": 4e-3},
    )


@pytest.mark.parametrize("layout", ["channels last", "offset", "stepped", "expanded"])
def test_layouts_of_the_input(layout: str) -> None:
    x = {
        "channels last": lambda: tensor(2, 3, 6, 7).to(memory_format=torch.channels_last),
        "offset": lambda: tensor(3, 4, 8, 9)[1:, 1:, 2:, 1:8],
        "stepped": lambda: tensor(2, 3, 12, 7)[:, :, ::2],
        "expanded": lambda: tensor(1, 3, 6, 1).expand(2, 3, 6, 7),
    }[layout]()
    weight = tensor(4, 3, 3, 3)
    compare(lambda x, w: F.conv2d(x, w, padding=1), x, weight)
    same(F.conv2d(moved(x), moved(weight), padding=1).contiguous(), F.conv2d(x, weight, padding=1))


def test_one_compilation_for_all_sizes() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: F.conv2d(x, w, stride=2, padding=1).relu(), dynamic=True)
    counter = torch._dynamo.utils.counters["stats"]
    before = None
    for batch, high, wide in ((2, 9, 8), (3, 16, 5), (5, 33, 70)):
        x, weight = tensor(batch, 3, high, wide), tensor(4, 3, 3, 3)
        same(
            compiled(x.to("spyre"), weight.to("spyre")),
            F.conv2d(x, weight, stride=2, padding=1).relu(),
        )
        before = before or counter["unique_graphs"]
        assert counter["unique_graphs"] == before


def test_patches_are_a_matrix_product_and_nothing_else() -> None:
    code = generated(
        lambda x, w: F.conv2d(x, w, stride=4), tensor(1, 3, 16, 16), tensor(9, 3, 4, 4)
    )
    (kernel,) = kernels_in(code)
    assert [op.kind for op in kernel.ops if op.rdims] == [Kind.CONTRACT]


def test_a_missing_fallback_is_counted() -> None:
    x, weight = tensor(1, 2, 5).double(), tensor(3, 2, 3).double()
    torch.spyre.reset_fallbacks()
    found = F.conv1d(x.to("spyre"), weight.to("spyre"))
    assert "aten::convolution" in torch.spyre.fallbacks()
    torch.testing.assert_close(found.cpu(), F.conv1d(x, weight))
