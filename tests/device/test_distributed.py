"""spyreccl: values of every collective, on ranks that are threads; see also the other files."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp

from openspyre.device.distributed import collectives, exchange
from tests.device.ranks import Rank, on_ranks
from tests.device.streams import held

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
WHOLE = (torch.int64, torch.uint8)
ARITHMETIC = {
    "SUM": lambda x: x.sum(0, dtype=x.dtype),
    "PRODUCT": lambda x: x.prod(0, dtype=x.dtype),
    "MIN": lambda x: x.amin(0),
    "MAX": lambda x: x.amax(0),
}
BITWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
}  # fmt: skip


@pytest.fixture(params=(True, False), ids=("shared memory", "gloo"))
def near(request: pytest.FixtureRequest) -> bool:
    """How bytes move between ranks."""
    return bool(request.param)


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rank shows at a time is so little that tensors take many rounds."""
    monkeypatch.setattr(exchange, "WINDOW", 1024)
    monkeypatch.setattr(collectives, "_SHARED_OUT", 2048)


def operands(count: int, dtype: torch.dtype, size: int) -> Tensor:
    """Operands of ranks, on the CPU; floats are such that sums are exact."""
    generator = torch.Generator().manual_seed(size)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count, size), generator=generator).bool()
    low = 0 if not dtype.is_signed else -5
    return torch.randint(low, 6, (count, size), generator=generator).to(dtype)


def reduce(rank: Rank, op: ReduceOp | ReduceOp.RedOpType, x: Tensor) -> Tensor:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    rank.group.allreduce([x], options).wait()
    return x.cpu()


def test_reductions_of_every_dtype() -> None:
    def act(rank: Rank) -> None:
        for dtype in FLOATS + WHOLE:
            whole = operands(3, dtype, 7)
            mine = whole[rank.number]
            for name, expected in ARITHMETIC.items():
                found = reduce(rank, getattr(ReduceOp, name), mine.to("spyre"))
                assert torch.equal(found, expected(whole)), (name, dtype)
            if dtype in WHOLE:
                for name, two in BITWISE.items():
                    found = reduce(rank, getattr(ReduceOp, name), mine.to("spyre"))
                    assert torch.equal(found, two(two(whole[0], whole[1]), whole[2])), name
                continue
            found = reduce(rank, ReduceOp.AVG, mine.to("spyre"))
            torch.testing.assert_close(found, whole.mean(0))
            scaled = dist._make_nccl_premul_sum(0.5)
            torch.testing.assert_close(reduce(rank, scaled, mine.to("spyre")), whole.sum(0) / 2)
        bools = operands(3, torch.bool, 40)
        for name, expected_bools in (
            ("SUM", bools.any(0)), ("MAX", bools.any(0)), ("BOR", bools.any(0)),
            ("PRODUCT", bools.all(0)), ("MIN", bools.all(0)), ("BAND", bools.all(0)),
            ("BXOR", bools.sum(0) % 2 == 1),
        ):  # fmt: skip
            found = reduce(rank, getattr(ReduceOp, name), bools[rank.number].to("spyre"))
            assert torch.equal(found, expected_bools), name

    on_ranks(3, act)


def test_special_values_come_through() -> None:
    values = torch.tensor([[1, float("nan"), float("inf"), 0], [float("nan"), 2, 1, -0.0]])

    def act(rank: Rank) -> None:
        for name in ("SUM", "MAX", "MIN"):
            found = reduce(rank, getattr(ReduceOp, name), values[rank.number].to("spyre"))
            torch.testing.assert_close(found, ARITHMETIC[name](values), equal_nan=True)

    on_ranks(2, act)


def test_sums_of_halves_round_once_and_equally_on_all_ranks() -> None:
    whole = torch.randn(3, 5000, generator=torch.Generator().manual_seed(1)).half()

    def act(rank: Rank) -> Tensor:
        return reduce(rank, ReduceOp.SUM, whole[rank.number].to("spyre"))

    results = on_ranks(3, act)
    assert torch.equal(results[0], whole.float().sum(0).half())
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.usefixtures("small_windows")
def test_sizes_and_strides(near: bool) -> None:
    """0, 1, odd and many rounds; with and without gaps."""

    def act(rank: Rank) -> None:
        n = rank.number
        for size in (0, 1, 7, 300, 2001):
            x = torch.arange(size, device="spyre", dtype=torch.float32) + n
            assert torch.equal(reduce(rank, ReduceOp.SUM, x), torch.arange(size) * 3.0 + 3)
            y = torch.full((size,), n, device="spyre", dtype=torch.int8)
            rank.group.broadcast(y, 1).wait()
            assert y.tolist() == [1] * size
            outputs = [torch.empty(size + r, device="spyre") for r in range(3)]  # uneven
            rank.group.allgather([outputs], [rank.full(size + n)]).wait()
            assert [o.tolist() for o in outputs] == [[r + 1.0] * (size + r) for r in range(3)]
        gaps = torch.zeros(6, 10, device="spyre")[::2, 1::3]
        gaps += n
        rank.group.allreduce([gaps.t()]).wait()
        assert torch.equal(gaps.cpu(), torch.full((3, 3), 3.0))
        whole = torch.zeros(4, 9, device="spyre")
        rank.group._allgather_base(whole[:, ::3], rank.full(2, 2)[:, ::1]).wait()
        assert whole[:, ::3].reshape(-1).tolist() == [1.0] * 4 + [2.0] * 4 + [3.0] * 4
        assert not whole[:, 1::3].any()
        assert not whole[:, 2::3].any()

    on_ranks(3, act, near=near)


def test_collectives(near: bool) -> None:
    def act(rank: Rank) -> None:
        n, group = rank.number, rank.group
        x = torch.arange(6, device="spyre").reshape(2, 3) + 10 * n
        rows = [[v + 10 * r for v in range(6)] for r in range(3)]
        for root in range(3):
            y = x.clone()
            group.broadcast(y, root).wait()
            assert y.reshape(-1).tolist() == rows[root]
            y = x.clone()
            options = dist.ReduceOptions()
            options.rootRank = root
            group.reduce([y], options).wait()
            total = [3 * v + 30 for v in range(6)]
            assert y.reshape(-1).tolist() == (total if n == root else rows[n])
            out = [[torch.empty_like(x) for _ in range(3)]] if n == root else []
            gather = dist.GatherOptions()
            gather.rootRank = root
            group.gather(out, [x], gather).wait()
            assert n != root or [o.reshape(-1).tolist() for o in out[0]] == rows
            given = [[x + 100 * r for r in range(3)]] if n == root else []
            scatter = dist.ScatterOptions()
            scatter.rootRank = root
            group.scatter([y], given, scatter).wait()
            assert y.reshape(-1).tolist() == [v + 100 * n for v in rows[root]]
        whole = torch.empty(6, 3, dtype=torch.int64, device="spyre")
        group._allgather_base(whole, x).wait()
        assert whole.reshape(-1).tolist() == [v for row in rows for v in row]
        group._allgather_base(whole, whole[2 * n : 2 * n + 2]).wait()  # in place
        assert whole.reshape(-1).tolist() == [v for row in rows for v in row]
        part = torch.empty(2, 3, dtype=torch.int64, device="spyre")
        group._reduce_scatter_base(part, whole).wait()
        assert part.reshape(-1).tolist() == [3 * v for v in rows[n]]
        parts = list((whole + n).chunk(3))
        group.reduce_scatter([part], [parts]).wait()
        assert part.reshape(-1).tolist() == [3 * v + 3 for v in rows[n]]
        taken = [torch.empty(2, device="spyre") for _ in range(3)]
        group.alltoall(
            taken, [torch.tensor([n, r], device="spyre").float() for r in range(3)]
        ).wait()
        assert [t.tolist() for t in taken] == [[r, n] for r in range(3)]
        rank.barrier()

    on_ranks(3, act, near=near)


def test_all_to_all_of_uneven_rows(near: bool) -> None:
    def act(rank: Rank) -> None:
        n = rank.number
        sizes = [[1, 0, 2], [0, 3, 1], [2, 1, 0]]  # from row to column
        gives, takes = sizes[n], [row[n] for row in sizes]
        given = torch.arange(2.0 * sum(gives), device="spyre").reshape(-1, 2) + 100 * n
        taken = torch.full((sum(takes), 2), -1.0, device="spyre")
        rank.group.all_to_all_single(taken, given, takes, gives).wait()
        expected = []
        for giver, row in enumerate(sizes):
            first = 2 * sum(row[:n])
            expected += [first + v + 100 * giver for v in range(2 * row[n])]
        assert taken.reshape(-1).tolist() == expected
        equal = torch.empty(3, device="spyre")
        rank.group.all_to_all_single(
            equal, torch.arange(3.0, device="spyre") + 10 * n, [], []
        ).wait()
        assert equal.tolist() == [n, n + 10, n + 20]

    on_ranks(3, act, near=near)


def test_coalesced_calls() -> None:
    def act(rank: Rank) -> None:
        group, x, y = rank.group, rank.full(3), rank.full(2, 2)
        group.allreduce_coalesced([x, y], dist.AllreduceCoalescedOptions()).wait()
        assert x.tolist() == [3] * 3
        assert y.tolist() == [[3, 3]] * 2
        outs = [torch.empty(4, device="spyre"), torch.empty(2, device="spyre")]
        group.allgather_into_tensor_coalesced(outs, [rank.full(2), rank.full(1)]).wait()
        assert outs[0].tolist() == [1, 1, 2, 2]
        assert outs[1].tolist() == [1, 2]
        parts = [torch.empty(2, device="spyre"), torch.empty(1, device="spyre")]
        group.reduce_scatter_tensor_coalesced(parts, outs).wait()
        assert parts[0].tolist() == [2 * (rank.number + 1)] * 2
        group._start_coalescing(torch.device("spyre"))
        group.allreduce([x]), group.broadcast(y[0], 0)
        group._end_coalescing(torch.device("spyre")).wait()
        assert x.tolist() == [6] * 3

    on_ranks(2, act)


def test_messages(near: bool) -> None:
    sizes = (0, 1, 5, 40_000, 100_001)

    def act(rank: Rank) -> None:
        group, n = rank.group, rank.number
        if n == 0:  # as many as there are, then they are taken, the last one first
            works = [group.send([torch.arange(size, device="spyre")], 1, size) for size in sizes]
            for work in works:
                work.wait()
            gaps = torch.arange(10.0, device="spyre")[::2]
            group.send([gaps], 1, 0).wait()
            group.recv([gaps], 1, 0).wait()
            assert gaps.tolist() == [5.0] * 5
            return
        found = {size: torch.empty(size, dtype=torch.int64, device="spyre") for size in sizes}
        for size in sizes[::-1]:
            group.recv([found[size]], 0, size).wait()
        assert all(torch.equal(x.cpu(), torch.arange(size)) for size, x in found.items())
        row = torch.empty(2, 5, device="spyre")
        work = group.recv_anysource([row[:, 0:5:1][1]], 0)
        work.wait()
        assert work._source_rank() == 0
        assert row[1].tolist() == [0, 2, 4, 6, 8]
        group.send([torch.full((5,), 5.0, device="spyre")], 0, 0).wait()

    on_ranks(2, act, near=near)


def test_both_send_first() -> None:
    def act(rank: Rank) -> None:
        mine, theirs = rank.full(50_000), torch.empty(50_000, device="spyre")
        for _ in range(6):
            rank.group.send([mine], 1 - rank.number, 0).wait()
            rank.group.recv([theirs], 1 - rank.number, 0).wait()
            assert theirs[[0, -1]].tolist() == [2 - rank.number] * 2

    on_ranks(2, act)


def test_a_receive_that_waits_holds_up_no_collective() -> None:
    def act(rank: Rank) -> None:
        x, y = rank.full(2), rank.full(2)
        if rank.number == 0:
            work = rank.group.recv([x], 1, 0)
            rank.group.allreduce([y]).wait()
            assert not work.is_completed() or x.tolist() == [2, 2]
            work.wait()
            assert x.tolist() == [2, 2]
        else:
            rank.group.allreduce([y]).wait()
            rank.group.send([x], 0, 0).wait()
        assert y.tolist() == [3, 3]

    on_ranks(2, act)


def test_calls_return_before_they_are_done() -> None:
    def act(rank: Rank) -> None:
        x = rank.full(4)
        group = rank.group
        rank.barrier()
        if rank.number == 0:
            work = group.allreduce([x])
            assert not work.is_completed()
            with pytest.raises(dist.DistBackendError, match="all_reduce is not complete after 50"):
                work.wait(timedelta(milliseconds=50))
            group.send([x.clone()], 1, 0)
        else:
            y = torch.empty(4, device="spyre")
            group.recv([y], 0, 0).wait()
            work = group.allreduce([x])
        future = work.get_future()
        assert future.wait()[0].tolist() == [3] * 4
        assert work.wait()
        assert work.is_completed()
        assert work.result()[0] is not None
        assert x.tolist() == [3] * 4

    on_ranks(2, act)


def test_what_the_stream_was_given_before_comes_first() -> None:
    def act(rank: Rank) -> None:
        x = torch.zeros(4, device="spyre")
        rank.barrier()
        with held():
            x += rank.number + 1
            work = rank.group.allreduce([x])
            assert not work.is_completed()
        work.wait()
        x *= 2
        assert x.tolist() == [6] * 4

    on_ranks(2, act)


def test_tensors_that_autograd_knows() -> None:
    def act(rank: Rank) -> None:
        parameter = torch.nn.Parameter(rank.full(3))
        version = parameter._version
        rank.group.allreduce([parameter]).wait()
        assert parameter.tolist() == [3] * 3
        assert parameter._version == version
        chained = rank.group.allreduce([rank.full(3)]).get_future().then(lambda f: f.value()[0] * 2)
        assert chained.wait().tolist() == [6] * 3
        assert not chained.value().is_inference()
        with torch.inference_mode():
            x = rank.full(3)
        rank.group.allreduce([x]).wait()
        assert x.tolist() == [3] * 3

    on_ranks(2, act)


def test_one_rank_alone() -> None:
    def act(rank: Rank) -> None:
        x = torch.tensor([2.0, 4.0], device="spyre")
        assert reduce(rank, ReduceOp.AVG, x).tolist() == [2, 4]
        assert reduce(rank, dist._make_nccl_premul_sum(3.0), x).tolist() == [6, 12]
        out = torch.empty(2, device="spyre")
        rank.group._allgather_base(out, x).wait()
        rank.group._reduce_scatter_base(out, out).wait()
        assert out.tolist() == [6, 12]
        rank.barrier()

    on_ranks(1, act)
