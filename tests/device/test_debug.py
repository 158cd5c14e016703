"""OPENSPYRE_DEBUG reaches the card of a process."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

CODE = """
import torch
import openspyre

openspyre.require()
fresh = torch.empty(5000, dtype=torch.uint8, device="spyre")
kept = torch.arange(5000, dtype=torch.uint8).to("spyre")
address = kept.data_ptr()
del kept
again = torch.empty(5000, dtype=torch.uint8, device="spyre")
assert again.data_ptr() == address
print((fresh.cpu() == 0xCB).all().item(), (again.cpu() == 0xCB).all().item())
"""


def test_memory_without_contents(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    poisoned = run_python(CODE, OPENSPYRE_DEBUG="poison")
    assert poisoned.stdout.split() == ["True", "True"], poisoned.stderr
    plain = run_python(CODE, OPENSPYRE_DEBUG="")  # also where these tests run in debug mode
    assert plain.stdout.split() == ["False", "False"], plain.stderr


def test_late_transfers(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    code = """
import torch
import openspyre

openspyre.require()
x = torch.randn(50, 70)
function = torch.compile(lambda x: torch.softmax(x, -1) @ x.T)
torch.testing.assert_close(function(x.to("spyre")).cpu(), function(x))
print("same")
"""
    late = run_python(code, OPENSPYRE_DEBUG="late,poison")
    assert late.stdout.split() == ["same"], late.stderr
