"""spyreccl: how groups meet, whose defaults they know, and ranks that are gone."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from openspyre.device.distributed.calls import CollectiveError, RankLost
from openspyre.device.distributed.exchange import meet
from tests.device.ranks import Rank, join, on_ranks, spyre
from tests.device.streams import fail_late


def test_a_barrier_knows_no_default_dtype() -> None:
    came = threading.Event()

    def act(rank: Rank) -> None:
        if rank.number == 0:
            work = rank.come()
            came.set()
        else:
            assert came.wait(60)
            torch.set_default_dtype(torch.float64)  # of the whole process
            try:
                work = rank.come()
            finally:
                torch.set_default_dtype(torch.float32)
        work.wait()

    on_ranks(2, act)


@pytest.mark.parametrize("near", [True, False], ids=["shared memory", "gloo"])
def test_a_default_device_is_for_the_users_tensors(near: bool) -> None:
    store = dist.HashStore()

    def act(rank: Rank) -> None:
        with torch.device("spyre"):
            again = join(store, rank.number, 2, 60, near=near)
            x = rank.full(2)
            again.group.allreduce([x]).wait()
            if rank.number == 0:
                again.group.send([x], 1, 0).wait()
            else:
                again.group.recv([x], 0, 0).wait()
        assert x.tolist() == [3, 3]
        again.group.shutdown()

    on_ranks(2, act)


def test_groups_meet_over_one_store_as_often_as_they_like() -> None:
    store = dist.HashStore()

    def act(rank: Rank) -> None:
        x = rank.full(2)
        rank.group.allreduce([x]).wait()
        assert x.tolist() == [3, 3]

    for _ in range(3):
        on_ranks(2, act, store=store, seconds=20)


def test_a_rank_that_has_left_does_not_blame_the_others() -> None:
    store = dist.HashStore()

    def act(rank: Rank) -> None:
        control = meet(store, rank.number, range(2), timedelta(seconds=20))
        rank.barrier()
        control.leave()
        with pytest.raises(CollectiveError, match="failed before\n  why: this rank") as told:
            control.say([1], timedelta(seconds=20))
        assert not isinstance(told.value, RankLost)

    on_ranks(2, act)


@pytest.mark.parametrize("near", [True, False], ids=["shared memory", "gloo"])
def test_a_rank_that_does_not_come_is_an_error_in_time(near: bool) -> None:
    told = threading.Event()

    def act(rank: Rank) -> None:
        rank.barrier()
        if rank.number == 1:
            assert told.wait(60)  # calls nothing
            return
        began = time.monotonic()
        x = rank.full(2)
        late = rank.group.allreduce([rank.full(2)])
        message = r"^all_reduce: another rank has not answered within 0\.5 s\n  why: gloo"
        with pytest.raises(RankLost, match=message):
            late.wait()
        told.set()
        assert time.monotonic() - began < 20
        assert late.is_completed()
        assert isinstance(late.get_future().done(), bool)
        with pytest.raises(RankLost):  # again
            late.wait()
        with pytest.raises(
            CollectiveError, match="broadcast: this process group has failed before"
        ):
            rank.group.broadcast(x, 0)
        with pytest.raises(RuntimeError, match="another rank"):
            late.get_future().wait()

    on_ranks(2, act, near=near, seconds=0.5)


def test_a_message_that_does_not_come_is_an_error_in_time() -> None:
    told = threading.Event()

    def act(rank: Rank) -> None:
        rank.barrier()
        if rank.number == 1:
            with pytest.raises(RankLost, match=r"receive: .* has not answered within 0\.5 s"):
                rank.group.recv([spyre(2)], 0, 0).wait()
            told.set()
        else:
            assert told.wait(60)

    on_ranks(2, act, seconds=0.5)


def test_a_call_may_have_a_time_of_its_own() -> None:
    told = threading.Event()

    def act(rank: Rank) -> None:
        rank.barrier()
        if rank.number == 1:
            assert told.wait(60)
            return
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=0.3)
        with pytest.raises(RankLost, match=r"within 0\.3 s"):
            rank.group.allreduce([spyre(2)], options).wait()
        told.set()

    on_ranks(2, act)


def test_what_failed_on_a_card_before_is_told_there_and_lets_nobody_wait() -> None:
    def act(rank: Rank) -> None:
        rank.barrier()
        if rank.number == 0:
            fail_late()
            with pytest.raises(IndexError, match="embedding"):
                rank.group.allreduce([spyre(2)]).wait()
            with pytest.raises(CollectiveError, match="has failed before"):
                rank.group.allreduce([spyre(2)])
            return
        began = time.monotonic()
        with pytest.raises(RankLost, match="another rank has ended, or has left the group"):
            rank.group.allreduce([spyre(2)]).wait()
        assert time.monotonic() - began < 30

    on_ranks(2, act)


def test_a_group_that_was_ended() -> None:
    def act(rank: Rank) -> None:
        rank.barrier()
        rank.group.shutdown()
        with pytest.raises(CollectiveError, match="all_reduce: this process group was ended"):
            rank.group.allreduce([spyre(2)])

    on_ranks(1, act)


def test_abort_ends_what_waits() -> None:
    def act(rank: Rank) -> None:
        rank.barrier()
        if rank.number == 1:
            time.sleep(0.5)
            rank.group.abort()
            with pytest.raises(CollectiveError, match="the process group was aborted"):
                rank.group.allreduce([spyre(2)])
            return
        with pytest.raises(RankLost, match="another rank has ended, or has left the group"):
            rank.group.allreduce([spyre(2)]).wait()

    on_ranks(2, act, seconds=3)
