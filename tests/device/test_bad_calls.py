"""Calls that PyTorch refuses on other devices are refused here, with its types of exception."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

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


MODEL = """
import torch, openspyre; openspyre.require()
def model(x):
    factors = torch.arange(1.0, 65.0, device=x.device)[:, None]
    return torch.where(factors > 2, x, factors), x + 1
def fallen(x):
    return (x * (16 * len(x))).long().bincount()
x = torch.ones(1 << 20, device="spyre")
"""
CASES = {
    "eager": ("model", r"needed by aten::where.self"),
    "compiled": ("torch.compile(model)", r"needed by model.py:5 .*where"),
    "fallback": ("fallen", r"needed by aten::bincount"),
}


@pytest.mark.parametrize("case", CASES)
def test_memory_that_ends_names_the_op_and_the_remedy(
    run_python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, case: str
) -> None:
    """And what was taken on the way is given back."""
    (tmp_path / "model.py").write_text(MODEL)
    function, words = CASES[case]
    done = run_python(
        f"""
import re
from model import *
call = {function}
before = torch.spyre.memory_allocated()
try:
    call(x)
except torch.OutOfMemoryError as error:
    message = str(error)
assert "OPENSPYRE_MEMORY" in message, message
assert re.search(r"{words}", message), message
assert torch.spyre.memory_allocated() == before
assert (x + 1).sum().item() == 2 << 20
results = call(x[:1000])
torch.spyre.synchronize()
""",
        OPENSPYRE_MEMORY="64MiB",
        path=(tmp_path,),
    )
    assert done.returncode == 0, done.stderr
