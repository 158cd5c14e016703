"""Calls that PyTorch refuses on other devices are refused here, with its types of exception."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import openspyre

openspyre.require()

HERE, THERE = torch.ones(3, 3), torch.ones(3, 3, device="spyre")


@pytest.mark.parametrize(
    "call",
    [
        lambda: HERE + THERE,
        lambda: THERE + HERE,
        lambda: THERE @ HERE,
        lambda: F.linear(THERE, HERE),
        lambda: F.layer_norm(THERE, (3,), HERE[0]),
        lambda: F.embedding(torch.tensor([1]), THERE),
        lambda: torch.cat([THERE, HERE]),
        lambda: torch.where(THERE > 0, THERE, HERE),
        lambda: torch.add(THERE, THERE, out=torch.empty(3, 3)),
        lambda: torch.ones(3, 3, device="spyre").add_(HERE),
    ],
)
def test_devices_are_not_mixed(call: Callable[[], torch.Tensor]) -> None:
    with pytest.raises(RuntimeError, match=r"spyre|PrivateUse1"):
        call()
    assert (THERE + 1).cpu().equal(HERE + 1)


def test_a_compiled_function_does_not_mix_devices() -> None:
    with pytest.raises(RuntimeError, match=r"spyre:0.*cpu|cpu.*spyre:0"):
        torch.compile(lambda a, b: a + b)(THERE, HERE)


def test_a_number_on_the_host_is_no_other_device() -> None:
    assert (THERE + torch.tensor(2.0)).cpu().equal(HERE + 2)
    assert (torch.tensor(2.0) * THERE).cpu().equal(HERE * 2)


@pytest.mark.filterwarnings("ignore:Torchinductor does not support")  # it says that it is slow
def test_complex_numbers(counted: None) -> None:
    a = torch.randn(5, 4, dtype=torch.complex64)
    b = a.to("spyre")
    assert b.cpu().equal(a)
    assert (b * 2 + 1j).cpu().equal(a * 2 + 1j)
    assert b.abs().cpu().equal(a.abs())
    assert b.conj().mT.cpu().equal(a.conj().mT)
    assert torch.view_as_real(b).cpu().equal(torch.view_as_real(a))
    torch.testing.assert_close((b @ b.mH).cpu(), a @ a.mH)
    torch.testing.assert_close(torch.compile(lambda x: x * x + 1)(b).cpu(), a * a + 1)
    assert torch.spyre.fallbacks()


def test_memory_that_ends_inside_a_graph(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_python(
        """
import torch, openspyre; openspyre.require()
def f(x):
    return x + 1, x.repeat(64) * 2
x = torch.ones(1 << 20, device="spyre")
g = torch.compile(f)
for call in (g, f):
    before = torch.spyre.memory_allocated()
    try:
        call(x)
    except torch.OutOfMemoryError as error:
        message = str(error)
    print("OPENSPYRE_MEMORY" in message, torch.spyre.memory_allocated() == before)
print((x + 1).sum().item(), g(x[:1000])[1].sum().item())
""",
        OPENSPYRE_MEMORY="64MiB",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True True\nTrue True\n2097152.0 128000.0\n"
