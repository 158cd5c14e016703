"""spyreccl: card time of collectives is the link's law, and depends on no thread of the host."""

from __future__ import annotations

import itertools
import time

import pytest
import torch

from openspyre import _C
from openspyre.device.distributed.link import reduction_picoseconds
from openspyre.runtime.profiler import profile
from openspyre.spec import SPYRE_CARD_V1
from tests.device.ranks import Rank, on_ranks

SIZE = 40_000
LINK = 4 * SIZE / SPYRE_CARD_V1.host_link  # ns
REDUCTION = reduction_picoseconds(2, 4 * SIZE) / 1000


def event() -> torch.Event:
    made = torch.Event("spyre", enable_timing=True)
    made.record(torch.spyre.current_stream())
    return made


def nanoseconds(start: torch.Event, end: torch.Event) -> float:
    torch.spyre.current_stream().synchronize()
    return start.elapsed_time(end) * 1e6


def test_a_collective_takes_the_link_and_the_reduction() -> None:
    def act(rank: Rank) -> tuple[float, ...]:
        x = torch.ones(SIZE, device="spyre")
        out = torch.empty(2 * SIZE, device="spyre")
        marks = [event()]
        for call in (
            lambda: rank.group.allreduce([x]),
            lambda: rank.group.broadcast(x, 1),
            lambda: rank.group._allgather_base(out, x),
            lambda: rank.group._reduce_scatter_base(x, out),
        ):
            call().wait()
            marks.append(event())
        rank.barrier()
        return tuple(nanoseconds(a, b) for a, b in itertools.pairwise(marks))

    expected = (LINK + REDUCTION, LINK, LINK, LINK + REDUCTION)
    for found in on_ranks(2, act):
        # The first one waits for the rank whose card is ready last.
        assert found[1:] == pytest.approx(expected[1:], rel=1e-6)
        assert found[0] >= expected[0] * (1 - 1e-6)


def test_what_is_computed_meanwhile_overlaps_and_the_host_does_not_count() -> None:
    def act(rank: Rank) -> list[tuple[float, float]]:
        x, y = torch.ones(SIZE, device="spyre"), torch.ones(SIZE, device="spyre")
        marks = []
        for pause in (0.0, 0.05, 0.0):
            rank.group.broadcast(x, 0).wait()
            start = event()
            work = rank.group.broadcast(x, 0)
            time.sleep(pause)
            if rank.number == 0:  # the ranks of this test share a card
                y.copy_(x)
            middle = event()
            work.wait()
            marks.append((start, middle, event()))
        rank.barrier()  # whoever waits for the card's time to pass holds up all ranks of a process
        return [(nanoseconds(a, b), nanoseconds(a, c)) for a, b, c in marks]

    for number, found in enumerate(on_ranks(2, act)):
        assert found[0] == found[1] == found[2]
        middle, end = found[0]
        assert end == pytest.approx(LINK, rel=1e-6)
        assert 0 < middle < LINK if number == 0 else middle == 0


def test_messages_take_the_link() -> None:
    def act(rank: Rank) -> float:
        x = torch.ones(SIZE, device="spyre")
        rank.barrier()
        start = event()
        if rank.number:
            rank.group.recv([x], 0, 0).wait()
        else:
            rank.group.send([x], 1, 0).wait()
        return nanoseconds(start, event())

    sent, received = on_ranks(2, act)
    assert sent == pytest.approx(LINK, rel=1e-6)
    assert received >= LINK * (1 - 1e-6)


def test_a_profile_shows_collectives_and_not_how_they_are_done() -> None:
    def act(rank: Rank) -> None:
        rank.group.allreduce([torch.ones(SIZE, device="spyre")]).wait()

    on_ranks(2, act)
    position = _C.start_spans()
    with profile() as measured:
        on_ranks(2, act)
    spans = _C.stop_spans(position)
    assert not measured.kernels
    assert sorted(name for name, *_ in spans) == ["all_reduce"] * 2 + ["copy"] * 2  # of ones()
    for name, _, _, _, _, begins, ends, *_ in spans:
        if name == "all_reduce":
            assert (ends - begins) / 1000 == pytest.approx(LINK + REDUCTION, rel=1e-6)
