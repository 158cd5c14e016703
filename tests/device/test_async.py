"""Queues: launches return early, streams order work, errors come late, waits let Python run."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest
import torch

from openspyre.ir.text import parse_kernel
from openspyre.runtime.launch import _callable
from tests.device.streams import (
    PLUS,
    Held,
    fail_late,
    held,
    let_go_soon,
    plus,
    plus_kernel,
)

SLOTS = 1024  # csrc/device/slots.h
Run = Callable[..., CompletedProcess[str]]


def new_event() -> torch.Event:
    return torch.Event("spyre")


# --- order ------------------------------------------------------------------------------------


def test_a_launch_returns_before_the_card_has_finished() -> None:
    x = torch.arange(70.0).to("spyre")
    torch.spyre.synchronize()
    stream, event = torch.spyre.current_stream(), new_event()
    assert stream.query()
    with held():
        y = plus(plus(x))
        event.record()
        assert not event.query()
        assert not stream.query()
    event.synchronize()
    assert event.query()
    assert stream.query()
    assert torch.equal(y.cpu(), torch.arange(70.0) + 2)


def test_other_streams_go_on_meanwhile() -> None:
    slow, quick = torch.spyre.Stream(), torch.spyre.Stream()
    with held(slow), slow:
        y = plus(torch.ones(9, device="spyre"))
        with quick:
            x = torch.arange(9.0).to("spyre")
            assert torch.equal(plus(x).cpu(), torch.arange(9.0) + 1)
            quick.synchronize()
            assert quick.query()
        assert not slow.query()
    slow.synchronize()
    assert (y.cpu() == 2).all()


def test_a_stream_waits_for_an_event_of_another() -> None:
    first, second = torch.spyre.Stream(), torch.spyre.Stream()
    x = torch.zeros(5, device="spyre")
    torch.spyre.synchronize()
    with held(first) as hold:
        with first:
            plus_kernel()(x, x, 5)
            event = first.record_event()
        second.wait_event(event)
        with second:
            y = plus(x)
            done = second.record_event()
        assert not done.query()
        hold.let_go()
        done.synchronize()
        assert y.tolist() == [2] * 5


def test_wait_stream_and_events_that_were_never_recorded() -> None:
    first, second = torch.spyre.Stream(), torch.spyre.Stream()
    with held(first):
        second.wait_stream(first)
        assert not second.query()
    second.synchronize()
    assert second.query()
    new_event().wait(second)
    assert new_event().query()
    new_event().synchronize()
    assert second.query()


def test_an_event_means_what_it_was_last_recorded_for() -> None:
    event, waiting = new_event(), torch.spyre.Stream()
    event.record()
    event.synchronize()
    with held() as hold:
        waiting.wait_event(event)
        assert waiting.query()  # of the first recording
        event.record()
        assert not event.query()
        waiting.wait_event(event)
        assert not waiting.query()
        hold.let_go()
    event.synchronize()
    waiting.synchronize()


@pytest.mark.parametrize(("priority", "last"), [(0, 20), (-1, 10)])
def test_streams_of_high_priority_go_first(priority: int, last: int) -> None:
    gate, early = torch.spyre.Stream(), torch.spyre.Stream()
    late = torch.spyre.Stream(priority=priority)
    ten, twenty = (torch.full((4,), value, device="spyre") for value in (9.0, 19.0))
    target = torch.zeros(4, device="spyre")
    torch.spyre.synchronize()
    with held(gate) as hold:
        event = gate.record_event()
        for stream, value in ((early, ten), (late, twenty)):
            stream.wait_event(event)
            with stream:
                plus_kernel()(value, target, 4)
        hold.let_go()
    torch.spyre.synchronize()
    assert target.tolist() == [last] * 4


def test_streams_belong_to_threads() -> None:
    mine, seen = torch.spyre.Stream(), []
    with mine:
        thread = threading.Thread(target=lambda: seen.append(torch.spyre.current_stream()))
        thread.start(), thread.join()
        assert torch.spyre.current_stream() == mine
    assert seen == [torch.spyre.default_stream()]
    several = {torch.spyre.Stream().stream_id for _ in range(100)}
    assert len(several) == 32  # a pool, in turn
    assert not several & {torch.spyre.Stream(priority=-1).stream_id for _ in range(100)}
    with pytest.raises(RuntimeError, match="there is no stream 999"):
        torch.Stream(stream_id=999, device_index=0, device_type=mine.device_type).synchronize()


# --- waits let other Python threads run -------------------------------------------------------

WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "synchronize": lambda y: torch.spyre.synchronize(),
    "accelerator": lambda y: torch.accelerator.synchronize(),
    "stream": lambda y: torch.spyre.current_stream().synchronize(),
    "event": lambda y: torch.spyre.current_stream().record_event().synchronize(),
    "copy": lambda y: y.cpu(),
    "convert": lambda y: y.to("cpu", torch.float64),
    "item": lambda y: y[0].item(),
    "fallback": lambda y: torch.linalg.qr(y.reshape(1, -1)),
    "empty_cache": lambda y: torch.spyre.empty_cache(),
}


@pytest.mark.parametrize("name", WAITS)
def test_waits_release_the_gil(name: str) -> None:
    x = torch.zeros(5, device="spyre")
    hold = Held()
    y = plus(x)
    thread = let_go_soon(hold)
    WAITS[name](y)
    assert torch.spyre.current_stream().query()
    thread.join()
    assert y.tolist() == [1] * 5


def test_a_full_ring_of_slots_waits() -> None:
    x = torch.zeros(3, device="spyre")
    kernel, started = plus_kernel(), []
    stream = torch.spyre.Stream()
    kernel(x, x, 3)
    torch.spyre.synchronize()

    def work() -> None:
        with stream:
            for _ in range(SLOTS + 50):
                kernel(x, x, 3)
                started.append(1)

    with held(stream) as hold:
        thread = threading.Thread(target=work)
        thread.start()
        deadline = time.monotonic() + 60
        while len(started) < SLOTS and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        assert len(started) == SLOTS  # this thread has the GIL, that one waits without it
        hold.let_go()
        thread.join()
    stream.synchronize()
    assert x.tolist() == [SLOTS + 51] * 3


def test_programs_in_flight_stay_alive() -> None:
    x = torch.zeros(300, device="spyre")
    kernel, programs = _callable(parse_kernel(PLUS))
    del programs
    with held():
        kernel(x, x, 300)
        assert sys.getrefcount(kernel) == 2
        del kernel
    assert (x.cpu() == 1).all()


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["synchronize", "accelerator", "stream", "event", "copy", "item"])
def test_errors_come_with_the_next_wait_and_once(name: str) -> None:
    y = torch.zeros(5, device="spyre")
    fail_late()
    after = plus(y)
    with pytest.raises(IndexError) as caught:
        WAITS[name](y)
    assert "pick: " in str(caught.value)
    assert "model.py:3 embedding" in str(caught.value)
    WAITS[name](y)
    torch.spyre.synchronize()
    assert after.tolist() == [1] * 5  # the card went on


def test_of_several_errors_the_first_is_raised() -> None:
    fail_late(), fail_late()
    with pytest.raises(IndexError, match="pick: "):
        torch.spyre.synchronize()
    torch.spyre.synchronize()


def test_errors_follow_events_and_do_not_reach_other_streams() -> None:
    failing, depending, other = (torch.spyre.Stream() for _ in range(3))
    with failing:
        fail_late()
    event = failing.record_event()
    depending.wait_event(event)
    with other:
        assert plus(torch.zeros(2, device="spyre")).tolist() == [1, 1]
        other.synchronize()
    with pytest.raises(IndexError, match="pick"):
        depending.synchronize()
    failing.synchronize()
    event.synchronize()
    torch.spyre.synchronize()


def test_an_error_in_another_class(run_python: Run) -> None:
    done = run_python(
        f"""
import torch, openspyre
from openspyre.errors import CardError
openspyre.require()
from openspyre.runtime.launch import load_kernel
x = torch.zeros(4, device="spyre")
load_kernel({PLUS!r})(x, torch.empty_like(x), 1 << 22)   # more than the card's memory
for wait in (torch.accelerator.synchronize, lambda: x.new_zeros(3).cpu()):
    try:
        wait()
        print("nothing")
    except CardError as error:
        print(type(error).__name__, str(error)[:6])
""",
        OPENSPYRE_MEMORY="8MiB",
    )
    assert done.stdout == "CardError plus: \nnothing\n", done.stderr


# --- processes --------------------------------------------------------------------------------


def test_the_process_ends_with_work_in_flight(run_python: Run) -> None:
    done = run_python(
        f"""
import torch, openspyre
openspyre.require()
from openspyre import _C
from openspyre.runtime.launch import load_kernel
x = torch.zeros(1 << 20, device="spyre")
for _ in range(20): load_kernel({PLUS!r})(x, x, 1 << 20)
hold = _C.hold(0)
for _ in range(20): load_kernel({PLUS!r})(x, x, 1 << 20)
print("done")
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_forks(run_python: Run) -> None:
    done = run_python(
        f"""
import os, sys, torch, openspyre
openspyre.require()
from openspyre import _C
from openspyre.runtime.launch import load_kernel
kernel = load_kernel({PLUS!r})

def child(act):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except RuntimeError as error:
            sys.exit(7 if "spawn" in str(error) else 9)
        sys.exit(0)                            # not _exit: the process must end the normal way
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def work():
    x = torch.zeros(5, device="spyre")
    hold = _C.hold(0)
    kernel(x, x, 5)
    _C.let_go(hold)                            # the compute queue's thread exists now
    assert x.tolist() == [1] * 5

print(child(work), child(work))                # no card was open yet
work()
x, event = torch.zeros(5, device="spyre"), torch.Event("spyre")
hold = _C.hold(0)
kernel(x, x, 5)
event.record()
print(child(lambda: torch.zeros(5, device="spyre")), child(lambda: x.cpu()),
      child(lambda: torch.spyre.synchronize()), child(lambda: kernel(x, x, 5)),
      child(lambda: torch.ones(3).sum().item()))
_C.let_go(hold)
event.synchronize()
print(x.tolist())
"""
    )
    assert done.stdout == "0 0\n7 7 7 7 0\n[1.0, 1.0, 1.0, 1.0, 1.0]\n", done.stderr


def test_two_cards(run_python: Run) -> None:
    done = run_python(
        f"""
import torch, openspyre
openspyre.require()
from openspyre import _C
from openspyre.runtime.launch import load_kernel
kernel = load_kernel({PLUS!r})
x, far = torch.zeros(5, device="spyre:0"), torch.zeros(5, device="spyre:1")
torch.spyre.synchronize(0), torch.spyre.synchronize(1)
zero, one = torch.spyre.current_stream(0), torch.spyre.current_stream(1)

hold = _C.hold(0)
kernel(x, x, 5)                                # 0: x = 1
y = x.to("spyre:1")                            # from 0, for 1: both wait
kernel(y, y, 5)                                # 1: y = 2
assert not zero.query() and not one.query()
other = torch.spyre.Stream(device="spyre:1")
with other:
    far += 1
    assert far.tolist() == [1] * 5             # another stream of 1 does not wait
_C.let_go(hold)
assert y.tolist() == [2] * 5 and x.tolist() == [1] * 5

hold = _C.hold(1)
x.copy_(y)                                     # from 1, for 0
kernel(x, x, 5)
assert not zero.query()
_C.let_go(hold)
assert x.tolist() == [3] * 5

hold = _C.hold(0)
kernel(x, x, 5)
event = zero.record_event()
one.wait_event(event)                          # an event of 0 orders 1
kernel(y, y, 5)
assert not one.query()
_C.let_go(hold)
torch.spyre.synchronize(1)
assert y.tolist() == [3] * 5
print(x.tolist())
""",
        OPENSPYRE_DEVICES="2",
        OPENSPYRE_MEMORY="64MiB",
    )
    assert done.stdout == "[4.0, 4.0, 4.0, 4.0, 4.0]\n", done.stderr
