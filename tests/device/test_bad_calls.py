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

Run = Callable[..., subprocess.CompletedProcess[str]]
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


WHOLE = torch.arange(1, 4)
WORDS: dict[str, Callable[[str], object]] = {
    "dtype of out": lambda d: torch.add(
        HERE.to(d), HERE.to(d), out=torch.zeros(3, 3, device=d).int()
    ),
    "dtype of out of cat": lambda d: torch.cat([HERE.to(d)], out=HERE.to(d).long()),
    "dtype of out of mm": lambda d: torch.mm(HERE.to(d), HERE.to(d), out=HERE.to(d).long()),
    "mask of bytes": lambda d: HERE.to(d).masked_fill_(HERE.to(d).byte(), 1.0),
    "mask of floats": lambda d: HERE.to(d).masked_scatter(HERE.to(d), HERE.to(d)),
    "dims of boundaries": lambda d: torch.bucketize(HERE.to(d), HERE.to(d)),
    "whole numbers": lambda d: torch.addcdiv(*[WHOLE.to(d)] * 3, out=WHOLE.to(d)),
    "whole numbers in place": lambda d: WHOLE.to(d).addcdiv_(WHOLE.to(d), WHOLE.to(d)),
    "dims": lambda d: HERE.to(d).flip((0, -2)),
    "shifts": lambda d: HERE.to(d).roll((1, 2), (0,)),
    "sizes": lambda d: torch.add(HERE.to(d), torch.ones(2, device=d)),
}


@pytest.mark.parametrize("case", WORDS)
def test_wrong_calls_are_refused_in_the_words_of_pytorchs_kernels(case: str, counted: None) -> None:
    """Its checks in Python, which run before a program, say some of it in other words."""
    with pytest.raises((RuntimeError, TypeError)) as here:
        WORDS[case]("cpu")
    torch.spyre.reset_fallbacks()
    with pytest.raises(type(here.value)) as there:
        WORDS[case]("spyre")
    assert str(there.value) == str(here.value)
    assert torch.spyre.fallbacks() == {}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("d", ["cpu", "spyre"])
def test_what_is_read_is_not_written(d: str) -> None:
    """Where PyTorch's kernels refuse it, not only the checks that it has for programs."""
    x, mask, place = HERE.to(d)[0].clone(), HERE.to(d)[0] > 0, torch.tensor([0], device=d)
    none = torch.zeros(0, device=d)
    number = torch.zeros((), dtype=torch.int64, device=d)
    calls: list[Callable[[], object]] = [
        lambda: torch.kthvalue(x, 2, out=(x, number)),
        lambda: torch.take(x, place, out=x),
        lambda: torch.masked_select(x, mask, out=x),
        lambda: torch.masked_select(mask, mask, out=mask),
        lambda: torch.masked_select(x, mask, out=x[:1].expand(3)),
        lambda: torch.nonzero(place, out=place),
        lambda: torch.cat((none, x), out=x),
        lambda: torch.cat((none, x), out=none),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="unsupported operation"):
            call()
    assert x.cpu().equal(HERE[0])


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


def test_tensors_that_have_no_data_are_refused() -> None:
    """Dynamo indexes with a sequence of tensors that are none: it read what was not there."""

    def chosen(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        rows, columns = zip(*places, strict=True)
        x[rows, columns] = 0
        return x

    places = torch.tensor([[0, 1], [1, 2]], device="spyre")
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        torch.compile(chosen, backend="eager")(torch.ones(2, 9, device="spyre"), places)


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
    run_python: Run, tmp_path: Path, case: str
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
