"""Complex numbers on the card: sums and products by their parts, Fourier transforms as products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.usefixtures("counted")

NAN, INF = float("nan"), float("inf")


def both(call: Callable[..., Any], *arguments: Any, error: float = 0.0) -> None:
    """Within `error` of the largest number of the CPU's result, with no op on the CPU."""
    wanted = call(*arguments)
    there = [x.to("spyre") if isinstance(x, Tensor) else x for x in arguments]
    torch.spyre.reset_fallbacks()
    found = call(*there)
    assert torch.spyre.fallbacks() == {}
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    bound = error * wanted.abs().nan_to_num(0, 0).max().item() if wanted.numel() else 0
    found, wanted = (
        torch.view_as_real(x.cpu()) if x.is_complex() else x.cpu() for x in (found, wanted)
    )
    torch.testing.assert_close(found, wanted, rtol=0, atol=bound, equal_nan=True)


def numbers(*sizes: int) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(sizes, dtype=torch.complex64)


def test_arithmetic() -> None:
    a, b = numbers(5, 4), numbers(4)
    a.real[1, 2], a.imag[3, 1] = NAN, INF
    for call, error in ((torch.mul, 1e-7), (torch.add, 0), (torch.sub, 0)):
        both(call, a, b, error=error)
        both(call, a.t(), numbers(4, 5).real, error=error)
        both(call, a[:0], b)
        both(call, a, 2)
        both(call, a, 1.5 - 2j, error=error)
        both(call, torch.tensor(2j), b)
    both(lambda x: x.clone().mul_(x.conj()), a[::2, 1:3], error=1e-7)
    both(
        lambda x, y: torch.add(x, y, out=torch.zeros(4, 5, dtype=x.dtype, device=x.device).t()),
        a,
        b,
    )


def test_polar() -> None:
    length, angle = torch.tensor([1.0, 2.0, 0.0, 3.0]), torch.tensor([0.0, 1.0, 2.0, -3.0])
    both(torch.polar, length, angle, error=1e-6)
    both(torch.polar, length[:0], angle[:0])


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_fourier_transforms(norm: str) -> None:
    z, x = numbers(3, 7, 10), torch.randn(2, 12, 5)
    for call, what in (
        (lambda z: torch.fft.fft(z, norm=norm), z),
        (lambda z: torch.fft.ifft(z, dim=1, norm=norm), z.transpose(0, 2)),
        (lambda z: torch.fft.fftn(z, dim=(1, 2), norm=norm), z),
        (lambda x: torch.fft.fft(x, dim=1, norm=norm), x),
        (lambda x: torch.fft.rfft2(x, norm=norm), x),
        (lambda z: torch.fft.irfftn(z, s=(3, 7, 9), norm=norm), z[..., :5]),
        (lambda z: torch.fft.irfft(z, norm=norm), z),
        (lambda z: torch.fft.hfft(z, dim=0, norm=norm), z),
    ):
        both(call, what, error=1e-6)
    both(torch.fft.fft, numbers(2, 1))


def test_a_long_transform() -> None:
    both(torch.fft.rfft, torch.randn(1, 509), error=1e-6)


@pytest.mark.filterwarnings("ignore:Torchinductor does not support")  # it says that it is slow
def test_compiled() -> None:
    """As calls: the graph holds, and the strides are those that it was told."""

    def mixed(x: Tensor, angle: Tensor) -> Tensor:
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.polar(angle.cos(), angle)
        found: Tensor = torch.fft.fftn(torch.view_as_real(turned).flatten(-2), dim=(0, 1)).real
        return found

    x, angle = torch.randn(3, 8), torch.randn(4)
    torch._dynamo.reset()
    both(torch.compile(mixed, fullgraph=True), x, angle, error=2e-6)
