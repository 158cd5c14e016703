"""Card time of events: a law of what was submitted in which order, not of the host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from openspyre.runtime.profiler import profile
from openspyre.spec import SPYRE_CARD_V1
from tests.device.streams import held, plus_kernel

SIZE = 40_000


def event(stream: torch.Stream | None = None) -> torch.Event:
    made = torch.Event("spyre", enable_timing=True)
    made.record(stream or torch.spyre.current_stream())
    return made


def milliseconds(act: Callable[[], object]) -> float:
    """Of the card, between events around an act."""
    start = event()
    act()
    end = event()
    torch.spyre.synchronize()
    return start.elapsed_time(end)


@pytest.fixture
def x() -> torch.Tensor:
    made = torch.zeros(SIZE, device="spyre")
    plus_kernel()(made, made, SIZE)
    torch.spyre.synchronize()
    event()  # card time counts from the first event on
    return made


@pytest.fixture
def launch(x: torch.Tensor) -> Callable[[], None]:
    return lambda: plus_kernel()(x, x, SIZE)


@pytest.fixture
def launch_time(launch: Callable[[], None]) -> float:
    with profile() as p:
        launch()
    return p.kernels[0].microseconds / 1000


def link_time(count: int) -> float:
    return count / SPYRE_CARD_V1.host_link * 1e-6


def test_a_launch_takes_its_cycles(launch: Callable[[], None], launch_time: float) -> None:
    assert launch_time > 0
    assert milliseconds(launch) == pytest.approx(launch_time, rel=1e-6)
    assert milliseconds(lambda: (launch(), launch())) == pytest.approx(2 * launch_time, rel=1e-6)
    assert milliseconds(lambda: None) == 0


def test_the_hosts_time_does_not_count(launch: Callable[[], None]) -> None:
    def slowly() -> None:
        launch()
        time.sleep(0.02)
        torch.spyre.synchronize()
        launch()

    assert milliseconds(slowly) == milliseconds(lambda: (launch(), launch()))


def test_copies_take_the_link(x: torch.Tensor) -> None:
    host = torch.zeros(SIZE).pin_memory()
    there = link_time(4 * SIZE)
    assert milliseconds(lambda: x.copy_(host, non_blocking=True)) == pytest.approx(there)
    assert milliseconds(lambda: x.cpu()) == pytest.approx(there)
    inside = 1e-6 * 4 * SIZE * (2 / SPYRE_CARD_V1.dram_oneway + SPYRE_CARD_V1.dram_turnaround)
    y = torch.empty_like(x)
    assert milliseconds(lambda: y.copy_(x)) == pytest.approx(inside, rel=1e-6)


def test_engines_overlap_and_one_engine_does_not(
    x: torch.Tensor, launch: Callable[[], None], launch_time: float
) -> None:
    one, two = torch.spyre.Stream(), torch.spyre.Stream()
    host, y = torch.zeros(SIZE).pin_memory(), torch.empty_like(x)
    copied = link_time(4 * SIZE)

    def both(second: Callable[[], object]) -> float:
        torch.spyre.synchronize()
        start = event(one)
        two.wait_event(start)
        with one:
            launch()
        with two:
            second()
        one.wait_stream(two)
        end = event(one)
        torch.spyre.synchronize()
        return start.elapsed_time(end)

    assert both(launch) == pytest.approx(2 * launch_time, rel=1e-6)
    assert both(lambda: y.copy_(host, non_blocking=True)) == pytest.approx(
        max(launch_time, copied), rel=1e-6
    )


def test_a_stream_that_waits_starts_later(launch: Callable[[], None], launch_time: float) -> None:
    one, two = torch.spyre.Stream(), torch.spyre.Stream()
    start = event(two)
    with one:
        launch()
        two.wait_event(event(one))
    with two:
        end = event(two)
    torch.spyre.synchronize()
    assert start.elapsed_time(end) == pytest.approx(launch_time, rel=1e-6)


def test_the_same_submissions_take_the_same_time(x: torch.Tensor) -> None:
    streams = [torch.spyre.Stream(), torch.spyre.Stream(priority=-1)]
    host = torch.zeros(SIZE).pin_memory()

    def times(pause: float) -> list[float]:
        torch.spyre.synchronize()
        begin, events = event(), []
        for stream in streams:
            stream.wait_event(begin)
        for step in range(12):
            with streams[step % 2]:
                if step % 3:
                    plus_kernel()(x, x, SIZE - step)
                else:
                    x.copy_(host, non_blocking=True)
                events.append(event())
            time.sleep(pause)
        torch.spyre.synchronize()
        return [begin.elapsed_time(e) for e in events]

    first = times(0)
    assert times(0.002) == first
    assert len(set(first)) > 6


def test_events_that_are_not_complete_have_no_time() -> None:
    start = event()
    with held():
        end = event()
        with pytest.raises(RuntimeError, match="must be completed"):
            start.elapsed_time(end)
    torch.spyre.synchronize()
    assert start.elapsed_time(end) == 0
