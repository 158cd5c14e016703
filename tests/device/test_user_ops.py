"""Ops that a user registers for the device."""

from __future__ import annotations

import torch


@torch.library.custom_op("spyre_test::plus", mutates_args=(), device_types="spyre")
def plus(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@plus.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("spyre_test::grow", mutates_args=("x",), device_types=("spyre", "cpu"))
def grow(x: torch.Tensor) -> None:
    x.mul_(3)


def test_a_kernel_of_the_user() -> None:
    with torch.library._scoped_library("spyre_test_kernels", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "PrivateUse1")
        assert torch.ops.spyre_test_kernels.twice(torch.ones(2, device="spyre")).tolist() == [2, 2]


def test_a_kernel_for_the_cpu_serves_as_fallback() -> None:
    torch.spyre.reset_fallbacks()
    with torch.library._scoped_library("spyre_test_kernels", "FRAGMENT") as library:
        library.define("product(Tensor x, Tensor y) -> Tensor")
        library.impl("product", lambda x, y: x * y, "CPU")
        x = torch.full((2,), 3.0, device="spyre")
        assert torch.ops.spyre_test_kernels.product(x, x).tolist() == [9, 9]
    assert torch.spyre.fallbacks() == {"spyre_test_kernels::product": 1}


def test_custom_ops() -> None:
    x = torch.ones(2, device="spyre")
    assert plus(x).tolist() == [2, 2]
    torch._dynamo.reset()
    assert torch.compile(lambda x: plus(x * 2) * 3, fullgraph=True)(x).tolist() == [9, 9]
    torch.library.opcheck(plus, (x,))


def test_custom_ops_that_change_a_view() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        grow(y[1:])
        grow(x)
        return y + x

    for compiled in (False, True):
        x, card = torch.arange(4.0), torch.arange(4.0, device="spyre")
        torch._dynamo.reset()
        ours = (torch.compile(function) if compiled else function)(card)
        assert torch.equal(ours.cpu(), function(x))
        assert torch.equal(card.cpu(), x)
