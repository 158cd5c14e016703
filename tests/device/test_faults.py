"""A fault of a running program: raised once, by the next call that waits, and nothing else stops.

Three faults: an index of the user's out of range, and two programs that were damaged behind the
compiler's back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from openspyre.compiler.pipeline import compile_kernel
from openspyre.errors import CardError
from openspyre.ir.binary import encode
from openspyre.ir.kernel import Space
from openspyre.ir.program import Copy, Vec
from openspyre.ir.text import parse_kernel
from openspyre.runtime.launch import Kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.card.checking import Instr, edited
from tests.device.streams import fail_late, held, plus

ROOT = Path(__file__).parents[2]
FAR = 1 << 50  # no memory of a card lies there
FIVE = """kernel five
arguments x y
input x: f32[5]
output y: f32[5]
op add map i0:5
  at "model.py:9 add"
  y[i0] <- x[i0] + 1.0
"""


def stores_far(instr: Instr) -> Instr:
    """A store outside of the card's memory."""
    if isinstance(instr, Copy) and instr.target.space is Space.DEVICE:
        return replace(instr, target=replace(instr.target, base=FAR))
    return instr


def reads_far(instr: Instr) -> Instr:
    """A vector operation on bytes behind its buffer."""
    if isinstance(instr, Vec):
        (place,) = instr.inputs
        return replace(instr, inputs=(replace(place, base=FAR),))
    return instr


def run_damaged(damage: Callable[[Instr], Instr]) -> None:
    right = compile_kernel(parse_kernel(FIVE), SPYRE_CARD_V1)
    program = encode(edited(right, lambda _, instr: damage(instr)))
    kernel = Kernel("five", ("f32", "f32"), 0, lambda sizes: (program, (), ()))
    x = torch.zeros(5, device="spyre")
    kernel(x, torch.empty_like(x))


FAULTS: dict[str, tuple[Callable[[], None], type[Exception], str]] = {
    "index": (fail_late, IndexError, r"pick: .*model.py:3 embedding.*index 10"),
    "store": (partial(run_damaged, stores_far), CardError, r"five: .*model.py:9 add"),
    "read": (partial(run_damaged, reads_far), CardError, r"five: .*model.py:9 add"),
}
Wait = Callable[[torch.Tensor, torch.Event], object]
WAITS: dict[str, Wait] = {
    "torch.spyre.synchronize": lambda x, event: torch.spyre.synchronize(),
    "torch.accelerator.synchronize": lambda x, event: torch.accelerator.synchronize(),
    "stream": lambda x, event: torch.spyre.current_stream().synchronize(),
    "event": lambda x, event: event.synchronize(),
    "cpu": lambda x, event: x.cpu(),
    "item": lambda x, event: x[0].item(),
    "tolist": lambda x, event: x.tolist(),
    "to": lambda x, event: x.to("cpu", torch.float64),
}


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_raised_once_and_its_stream_works_again(fault: str, wait: str) -> None:
    run, error, message = FAULTS[fault]
    stream = torch.spyre.Stream()
    with stream:
        x = torch.arange(5.0, device="spyre")
        stream.synchronize()
        run()
        after = plus(x)
        event = stream.record_event()
        with pytest.raises(error, match=message):
            WAITS[wait](x, event)
        for again in WAITS.values():
            again(x, event)
        assert after.tolist() == [1, 2, 3, 4, 5]
        assert plus(after).tolist() == [2, 3, 4, 5, 6]
        run()  # and the next one is told again
        with pytest.raises(error, match=message):
            WAITS[wait](x, stream.record_event())


@pytest.mark.parametrize("fault", FAULTS)
def test_other_streams_keep_their_work(fault: str) -> None:
    """Work of B is queued before, behind and while A fails; nothing of it hears of the fault."""
    run, error, message = FAULTS[fault]
    a, b = torch.spyre.Stream(), torch.spyre.Stream()
    with b:
        x = torch.arange(5.0, device="spyre")
        b.synchronize()
        with held(b):
            before = plus(x)
            with a:
                run()
                assert a.query() in (True, False)
            behind = plus(before)
            assert not b.query()
        event = b.record_event()
        event.synchronize()
        assert behind.tolist() == [2, 3, 4, 5, 6]
        assert (torch.ones(64, 64, device="spyre") @ torch.ones(64, 64, device="spyre"))[0, 0] == 64
        b.synchronize()
    with pytest.raises(error, match=message):
        a.synchronize()
    torch.spyre.synchronize()


def test_what_one_card_does_the_other_does_not_hear_of(
    run_python: Callable[..., CompletedProcess[str]],
) -> None:
    done = run_python(
        """
import torch, openspyre
openspyre.require()
from tests.device.test_faults import FAULTS
x = torch.ones(8, device="spyre:1")
for run, error, _ in FAULTS.values():
    run()
    y = (x * 2).sum()
    torch.spyre.synchronize(1)
    print(y.item(), (x @ x).cpu().item())
    try:
        torch.spyre.synchronize(0)
        print("nothing")
    except error as failure:
        print(type(failure) is error)
    print(torch.ones(3, device="spyre:0").sum().item(), x.to("spyre:0").sum().item())
""",
        OPENSPYRE_DEVICES="2",
        path=(ROOT,),
    )
    assert done.stdout.split() == ["16.0", "8.0", "True", "3.0", "8.0"] * len(FAULTS), done.stderr
