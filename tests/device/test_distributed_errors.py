"""spyreccl: what users do wrong, and ranks that are gone."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from openspyre import SpyreError, Unsupported
from openspyre.device.distributed.calls import CollectiveError, RankLost
from openspyre.device.distributed.checks import check_outputs
from openspyre.device.distributed.exchange import meet
from tests.device.ranks import Rank, join, on_ranks
from tests.device.streams import fail_late


def reducing(op: ReduceOp.RedOpType) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return options


def rooted(root: int) -> dist.ReduceOptions:
    options = dist.ReduceOptions()
    options.rootRank = root
    return options


def spyre(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="spyre")


Act = Callable[[Rank], dist.Work]
Writer = Callable[[Rank, torch.Tensor], dist.Work]
# What rank 0 and rank 1 do, and what both are told.
DIFFER: dict[str, tuple[Act, Act, str]] = {
    "shape": (
        lambda r: r.group.allreduce([spyre(4, 3)]),
        lambda r: r.group.allreduce([spyre(3)]),
        "all_reduce: the shape differs between ranks 0 and 1\n"
        "  why: rank 0: all_reduce of float32[4, 3], sum; rank 1: all_reduce of float32[3], sum\n"
        "  try: make the same calls in the same order on every rank of the group",
    ),
    "same count, other shape": (
        lambda r: r.group.allreduce([spyre(2, 3)]),
        lambda r: r.group.allreduce([spyre(3, 2)]),
        "all_reduce: the shape differs between ranks 0 and 1",
    ),
    "dtype": (
        lambda r: r.group.broadcast(spyre(2), 0),
        lambda r: r.group.broadcast(spyre(2, dtype=torch.int32), 0),
        "broadcast: the dtype differs between ranks 0 and 1\n"
        "  why: rank 0: broadcast of float32[2], root 0; rank 1: broadcast of int32[2], root 0",
    ),
    "size": (
        lambda r: r.group.broadcast(spyre(2), 0),
        lambda r: r.group.broadcast(spyre(5), 0),
        "broadcast: rank 0 gives rank 1 2 elements, which expects 5",
    ),
    "root": (
        lambda r: r.group.reduce([spyre(2)], rooted(0)),
        lambda r: r.group.reduce([spyre(2)], rooted(1)),
        "reduce: the root differs between ranks 0 and 1",
    ),
    "reduction": (
        lambda r: r.group.allreduce([spyre(2)], reducing(ReduceOp.MAX)),
        lambda r: r.group.allreduce([spyre(2)], reducing(ReduceOp.MIN)),
        "all_reduce: the reduction differs between ranks 0 and 1",
    ),
    "collective": (
        lambda r: r.group.allreduce([spyre(2)]),
        lambda r: r.group.broadcast(spyre(2), 0),
        "a collective: the kind differs between ranks 0 and 1",
    ),
    "output of all_gather": (
        lambda r: r.group.allgather([[spyre(2), spyre(3)]], [spyre(2)]),
        lambda r: r.group.allgather([[spyre(2), spyre(4)]], [spyre(4)]),
        "all_gather: rank 1 gives rank 0 4 elements, which expects 3",
    ),
}


def test_ranks_that_differ_are_told_how_and_go_on() -> None:
    def act(rank: Rank) -> None:
        for name, (*acts, message) in DIFFER.items():
            with pytest.raises(CollectiveError) as told:
                acts[rank.number](rank).wait()
            assert str(told.value).startswith(message), name
            x = rank.full(2)
            rank.group.allreduce([x]).wait()
            assert x.tolist() == [3, 3], name

    on_ranks(2, act)


# What one rank alone can tell, before anything moves.
REFUSED: dict[str, tuple[Act, type[Exception], str]] = {
    "two dtypes": (
        lambda r: r.group._allgather_base(spyre(2, dtype=torch.float16), spyre(2)),
        SpyreError,
        r"all_gather_into_tensor: tensor 1 is float16\[2\], others are float32\[2\]",
    ),
    "the CPU's tensor beside the card's": (
        lambda r: r.group._allgather_base(spyre(2), torch.zeros(2)),
        SpyreError,
        "all_gather_into_tensor: tensor 0 lies on cpu, others on spyre:0",
    ),
    "size of the output": (
        lambda r: r.group._allgather_base(spyre(3), spyre(2)),
        SpyreError,
        "all_gather_into_tensor: 3 elements of the output, but 2 are needed",
    ),
    "size of the input": (
        lambda r: r.group._reduce_scatter_base(spyre(3), spyre(2)),
        SpyreError,
        "reduce_scatter_tensor: 2 elements of the input, but 3 are needed",
    ),
    "number of outputs": (
        lambda r: r.group.allgather([[spyre(2), spyre(2)]], [spyre(2)]),
        SpyreError,
        "all_gather: 2 outputs, but 1 are needed",
    ),
    "splits": (
        lambda r: r.group.all_to_all_single(spyre(3), spyre(3), [2], [3]),
        SpyreError,
        r"output_split_sizes \[2\] do not deal out 3 rows to 1 ranks",
    ),
    "its own part of all_gather": (
        lambda r: r.group.allgather([[spyre(3)]], [spyre(2)]),
        SpyreError,
        "all_gather: 2 elements for this rank's own part, but 3 are needed",
    ),
    "its own part of gather": (
        lambda r: r.group.gather([[spyre(3)]], [spyre(2)], dist.GatherOptions()),
        SpyreError,
        "gather: 2 elements for this rank's own part, but 3 are needed",
    ),
    "its own part of scatter": (
        lambda r: r.group.scatter([spyre(2)], [[spyre(3)]], dist.ScatterOptions()),
        SpyreError,
        "scatter: 2 elements for this rank's own part, but 3 are needed",
    ),
    "its own part of all_to_all_single": (
        lambda r: r.group.all_to_all_single(spyre(3), spyre(2), [], []),
        SpyreError,
        "all_to_all_single: 3 elements from this rank itself, but 2 are needed",
    ),
    "fewer outputs than inputs": (
        lambda r: r.group.allgather_into_tensor_coalesced([spyre(2)], [spyre(2), spyre(2)]),
        SpyreError,
        "all_gather_into_tensor: 1 outputs, but 2 are needed",
    ),
    "a root that is no rank": (
        lambda r: r.group.broadcast(spyre(2), 7),
        SpyreError,
        "broadcast: the root is rank 7 of a group of 1\n  why: .*\n  try: name one of 0 to 0",
    ),
    "a receiver that is no rank": (
        lambda r: r.group.send([spyre(2)], 1, 0),
        SpyreError,
        "send: the receiver is rank 1 of a group of 1",
    ),
    "a sender that is no rank": (
        lambda r: r.group.recv([spyre(2)], -3, 0),
        SpyreError,
        "receive: the sender is rank -3 of a group of 1",
    ),
    "a tag below 0": (
        lambda r: r.group.send([spyre(2)], 0, -1),
        SpyreError,
        "send: the tag -1\n  why: tags are whole numbers from 0",
    ),
    "a tag that gloo has no room for": (
        lambda r: r.group.recv_anysource([spyre(2)], 2**31 - 1),
        SpyreError,
        "receive: the tag 2147483647",
    ),
    "sum of fp8": (
        lambda r: r.group.allreduce([spyre(2).to(torch.float8_e4m3fn)]),
        Unsupported,
        "all_reduce: sum of torch.float8_e4m3fn\n  why: 8-bit floats",
    ),
    "bits of floats": (
        lambda r: r.group.allreduce([spyre(2)], reducing(ReduceOp.BXOR)),
        Unsupported,
        "all_reduce: bxor of torch.float32\n  why: bitwise reductions are for whole numbers",
    ),
    "average of whole numbers": (
        lambda r: r.group.allreduce([spyre(2).long()], reducing(ReduceOp.AVG)),
        Unsupported,
        "all_reduce: avg of torch.int64",
    ),
    "nothing to coalesce": (
        lambda r: (
            r.group._start_coalescing(torch.device("spyre")),
            r.group._end_coalescing(torch.device("spyre")),
        )[1],
        SpyreError,
        "coalescing: there was no call",
    ),
}


def test_calls_that_cannot_be() -> None:
    def act(rank: Rank) -> None:
        for name, (call, error, message) in REFUSED.items():
            with pytest.raises(error, match=message):
                call(rank)
            x = rank.full(2)
            rank.group.allreduce([x]).wait()
            assert x.tolist() == [1, 1], name

    on_ranks(1, act)


# Every call that writes, into a tensor of two elements, from others.
WRITES: dict[str, Writer] = {
    "broadcast": lambda r, x: r.group.broadcast(x, 1),
    "all_reduce": lambda r, x: r.group.allreduce([x]),
    "reduce": lambda r, x: r.group.reduce([x], rooted(r.number)),
    "all_gather": lambda r, x: r.group.allgather([[spyre(2), x]], [spyre(2)]),
    "all_gather_into_tensor": lambda r, x: r.group._allgather_base(x, spyre(1)),
    "gather": lambda r, x: r.group.gather([[spyre(2), x]], [spyre(2)], dist.GatherOptions()),
    "scatter": lambda r, x: r.group.scatter([x], [[spyre(2)] * 2], dist.ScatterOptions()),
    "reduce_scatter": lambda r, x: r.group.reduce_scatter([x], [[spyre(2)] * 2]),
    "reduce_scatter_tensor": lambda r, x: r.group._reduce_scatter_base(x, spyre(4)),
    "all_to_all_single": lambda r, x: r.group.all_to_all_single(x, spyre(2), [], []),
    "all_to_all": lambda r, x: r.group.alltoall([x, spyre(2)], [spyre(2)] * 2),
    "receive": lambda r, x: r.group.recv([x], 1, 0),
}


def test_outputs_whose_elements_share_memory_are_refused_and_the_group_goes_on() -> None:
    def act(rank: Rank) -> None:
        if rank.number == 0:
            for name, call in WRITES.items():
                message = rf"^{name}: elements of float32\[2\] share memory \(strides \[0\]\)"
                with pytest.raises(Unsupported, match=message):
                    call(rank, spyre(1).expand(2))
        given = rank.full(1).expand(2) if rank.number == 0 else spyre(2)
        rank.group.broadcast(given, 0).wait()  # its root only reads
        assert given.tolist() == [1, 1]

    on_ranks(2, act)


def test_only_elements_that_share_memory_are_refused() -> None:
    whole = torch.arange(40)
    for shape in ((2, 3), (1, 4), (3, 2, 2), (0, 2)):
        for steps in itertools.product(range(5), repeat=len(shape)):
            view = whole.as_strided(shape, steps)
            if len(set(view.reshape(-1).tolist())) == view.numel():
                check_outputs("a call", [view])
            else:
                with pytest.raises(Unsupported, match="share memory"):
                    check_outputs("a call", [view])


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


def test_a_message_that_does_not_fit() -> None:
    def act(rank: Rank) -> None:
        if rank.number == 0:
            rank.group.send([spyre(3)], 1, 0).wait()
            rank.group.send([rank.full(3)], 1, 0).wait()
            return
        message = r"receive: rank 0 has sent float32\[3\], there is room for int64\[4\]"
        with pytest.raises(CollectiveError, match=message):
            rank.group.recv([spyre(4, dtype=torch.int64)], 0, 0).wait()
        x = spyre(3)
        rank.group.recv([x], 0, 0).wait()
        assert x.tolist() == [1] * 3

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
