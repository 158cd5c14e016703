"""spyreccl: what users do wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from openspyre import SpyreError, Unsupported
from openspyre.device.distributed.calls import CollectiveError
from openspyre.device.distributed.checks import check_outputs
from tests.device.ranks import Rank, on_ranks, spyre


def reducing(op: ReduceOp.RedOpType) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return options


def rooted(root: int) -> dist.ReduceOptions:
    options = dist.ReduceOptions()
    options.rootRank = root
    return options


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
