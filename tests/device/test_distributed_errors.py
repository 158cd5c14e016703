"""spyreccl: what users do wrong, and ranks that are gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from openspyre import SpyreError, Unsupported
from openspyre.device.distributed.calls import CollectiveError, RankLost
from tests.device.ranks import Rank, on_ranks
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
    def act(rank: Rank) -> None:
        rank.barrier()
        if rank.number == 1:
            time.sleep(1.5)  # calls nothing
            return
        began = time.monotonic()
        x = rank.full(2)
        late = rank.group.allreduce([rank.full(2)])
        with pytest.raises(
            RankLost, match=r"all_reduce: another rank .* within 0.5 s\n  why: gloo"
        ):
            late.wait()
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
    def act(rank: Rank) -> None:
        rank.barrier()
        if rank.number == 1:
            with pytest.raises(RankLost, match="receive: another rank"):
                rank.group.recv([spyre(2)], 0, 0).wait()
        else:
            time.sleep(1.5)

    on_ranks(2, act, seconds=0.5)


def test_a_call_may_have_a_time_of_its_own() -> None:
    def act(rank: Rank) -> None:
        rank.barrier()
        if rank.number == 1:
            return
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=0.3)
        with pytest.raises(RankLost, match=r"within 0\.3 s"):
            rank.group.allreduce([spyre(2)], options).wait()

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
        with pytest.raises(RankLost):
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
        with pytest.raises(RankLost):
            rank.group.allreduce([spyre(2)]).wait()

    on_ranks(2, act, seconds=3)
