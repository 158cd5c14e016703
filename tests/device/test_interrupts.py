"""Launches that take too long: refused, or ended by Ctrl-C or by the end of the process."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest
import torch

from openspyre.errors import CardError
from openspyre.runtime.launch import load_kernel
from tests.device.streams import PLUS, plus

pytestmark = pytest.mark.timeout(120)
Run = Callable[..., CompletedProcess[str]]
SUM = """kernel long
arguments x y
input x: f32[1]
output y: f32[1]
op s reduce i0:1 | r0:{rows} r1:{columns}
  at "model.py:3 sum"
  y[i0] <- sum: x[i0]
"""
HOURS = f"""
import os, signal, threading, torch, openspyre
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
openspyre.require()
from openspyre.runtime.launch import load_kernel
x, y = torch.ones(1, device="spyre"), torch.empty(1, device="spyre")
torch.spyre.synchronize()
load_kernel('''{SUM.format(rows=1 << 24, columns=1 << 24)}''')(x, y)
"""


def test_a_launch_without_end_is_refused() -> None:
    """When it runs, or when it is submitted if events with times exist."""
    x, y = torch.ones(1, device="spyre"), torch.empty(1, device="spyre")
    refused = r"asks for .* scalar operations|too many instructions"
    other = torch.spyre.Stream()

    def ask() -> None:
        load_kernel(SUM.format(rows=1 << 30, columns=1 << 30))(x, y)
        with other:
            assert torch.equal(plus(torch.zeros(9, device="spyre")).cpu(), torch.ones(9))
        torch.spyre.synchronize()

    with pytest.raises(CardError, match=refused):
        ask()
    assert torch.equal(plus(x).cpu(), torch.tensor([2.0]))


def test_the_end_of_the_process_ends_a_launch(run_python: Run) -> None:
    done = run_python(HOURS + "print('over')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")


@pytest.mark.parametrize("wait", ["torch.spyre.synchronize()", "y.cpu()"])
def test_ctrl_c_ends_a_launch(run_python: Run, wait: str) -> None:
    code = """
threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    WAIT
except KeyboardInterrupt:
    print("stopped")
try:
    torch.spyre.synchronize()
except Exception as error:
    print(type(error).__name__, error)
print((x + 1).cpu().tolist())
"""
    done = run_python(HOURS + code.replace("WAIT", wait))
    assert done.stdout == "stopped\nCardError long: interrupted\n[2.0]\n", done.stderr


def test_ctrl_c_ends_a_wait_for_a_slot(run_python: Run) -> None:
    """A full ring of launches: the one that does not fit waits on the host."""
    code = f"""
plus = load_kernel({PLUS!r})
plus(x, x, 1)
threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    while True:
        plus(x, x, 1)
except KeyboardInterrupt:
    print("stopped")
"""
    done = run_python(HOURS + code)
    assert done.stdout == "stopped\n", done.stderr
