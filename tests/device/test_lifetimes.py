"""Memory of work in flight: freed, reused, resized, copied; on the card and on the host."""

from __future__ import annotations

import gc
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest
import torch

from tests.device.streams import Held, held, let_go_soon, plus, plus_kernel

N = 3000  # floats; a block of its own
MIB = 1 << 20


@pytest.fixture(autouse=True)
def idle() -> None:
    gc.collect()
    torch.spyre.synchronize()


def counting(size: int = N) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float32)


def overwrite(size: int = N) -> list[torch.Tensor]:
    """What takes freed blocks at once, and writes to them."""
    return [torch.full((size,), -7.0).to("spyre") for _ in range(4)]


# --- memory of the card -----------------------------------------------------------------------


def test_a_tensor_freed_right_after_a_launch() -> None:
    x = counting().to("spyre")
    address = x.data_ptr()
    with held():
        y = plus(x)
        del x
        others = overwrite()
        assert address in {other.data_ptr() for other in others}  # stream order protects it
        z = plus(y)
        del y
        more = overwrite()
    assert torch.equal(z.cpu(), counting() + 2)
    assert all((other.cpu() == -7).all() for other in others + more)


def test_a_freed_block_is_not_given_to_another_stream() -> None:
    other = torch.spyre.Stream()
    with other:
        del (warm := overwrite())[:]
    x = counting().to("spyre")
    address = x.data_ptr()
    with held():
        y = plus(x)
        del x
        with other:
            others = overwrite()
            assert address not in {tensor.data_ptr() for tensor in others}
            assert all((tensor.cpu() == -7).all() for tensor in others)
    assert torch.equal(y.cpu(), counting() + 1)
    assert not warm


def test_record_stream_defers_reuse() -> None:
    user = torch.spyre.Stream()
    x = counting().to("spyre")
    y = torch.empty_like(x)
    torch.spyre.synchronize()
    address, before = x.data_ptr(), torch.spyre.memory_allocated()
    with held(user):
        with user:
            plus_kernel()(x, y, N)
        x.record_stream(user)
        x.record_stream(torch.spyre.current_stream())  # its own: means nothing
        del x
        assert torch.spyre.memory_allocated() < before  # gone for the user
        stats = torch.spyre.memory_stats()
        assert stats["active_bytes.all.current"] > stats["allocated_bytes.all.current"]
        others = overwrite()
        assert address not in {other.data_ptr() for other in others}
    user.synchronize()
    assert address in {other.data_ptr() for other in overwrite()}
    assert torch.equal(y.cpu(), counting() + 1)
    assert all((other.cpu() == -7).all() for other in others)
    stats = torch.spyre.memory_stats()
    assert stats["active_bytes.all.current"] == stats["allocated_bytes.all.current"]


def test_what_is_recorded_again_waits_for_the_last_use() -> None:
    one, two = torch.spyre.Stream(), torch.spyre.Stream()
    x = counting().to("spyre")
    address = x.data_ptr()
    torch.spyre.synchronize()
    with held(one) as first, held(two) as second:
        x.record_stream(one), x.record_stream(two), x.record_stream(one)
        del x
        first.let_go()
        one.synchronize()
        assert address not in {other.data_ptr() for other in overwrite()}
        second.let_go()
    two.synchronize()
    assert address in {other.data_ptr() for other in overwrite()}


def test_storages_resized_with_work_in_flight() -> None:
    x = counting().to("spyre")
    address = x.data_ptr()
    with held():
        plus_kernel()(x, x, N)
        x.resize_(2 * N)
        assert x.data_ptr() != address
        others = overwrite()
        plus_kernel()(x, x, N)
    assert torch.equal(x[:N].cpu(), counting() + 2)
    assert all((other.cpu() == -7).all() for other in others)
    with held():
        plus_kernel()(x, x, N)
        x.untyped_storage().resize_(4 * 10)
    assert x.as_strided((10,), (1,)).tolist() == [float(i + 3) for i in range(10)]


def test_a_storage_resized_on_another_stream() -> None:
    other = torch.spyre.Stream()
    x = counting().to("spyre")
    torch.spyre.synchronize()
    with held(other), other:
        x.resize_(2 * N)  # copies on `other` what the default stream owns
        with torch.spyre.stream(torch.spyre.default_stream()):
            others = overwrite()
            torch.spyre.default_stream().synchronize()
    other.synchronize()
    assert torch.equal(x[:N].cpu(), counting())
    assert all((tensor.cpu() == -7).all() for tensor in others)


def test_empty_cache_waits_for_what_is_freed() -> None:
    user = torch.spyre.Stream()
    x = torch.empty(24 * MIB, dtype=torch.uint8, device="spyre")
    torch.spyre.synchronize()
    reserved = torch.spyre.memory_reserved()
    hold = Held(user)
    x.record_stream(user)
    del x
    thread = let_go_soon(hold)
    torch.spyre.empty_cache()
    assert user.query()
    assert torch.spyre.memory_reserved() <= reserved - 24 * MIB
    thread.join()


def test_running_out_waits_for_what_is_freed(
    run_python: Callable[..., CompletedProcess[str]],
) -> None:
    done = run_python(
        """
import threading, torch, openspyre
openspyre.require()
from openspyre import _C
user = torch.spyre.Stream()
x = torch.ones(40 << 20, dtype=torch.uint8, device="spyre")
with user:
    hold = _C.hold(0)
    y = x[:5].clone()
x.record_stream(user)
del x
threading.Timer(0.05, _C.let_go, (hold,)).start()
z = torch.zeros(40 << 20, dtype=torch.uint8, device="spyre")    # only fits where x was
assert user.query() and y.tolist() == [1] * 5 and not z.any()
del z
with user:                                                      # another stream's cache counts too
    z = torch.ones(40 << 20, dtype=torch.uint8, device="spyre")
    assert z.all()
print("fine")
""",
        OPENSPYRE_MEMORY="64MiB",
    )
    assert done.stdout == "fine\n", done.stderr


# --- memory of the host -----------------------------------------------------------------------


def pageable_sources() -> dict[str, torch.Tensor]:
    big = counting(600_000)
    return {
        "small": counting(9),
        "large": big,
        "strided": big.reshape(600, 1000).t(),
        "expanded": counting(9).expand(5, 9),
        "converted": big.double(),
        "scalar": torch.tensor(2.5),
    }


@pytest.mark.parametrize("name", pageable_sources())
@pytest.mark.parametrize("non_blocking", [True, False])
def test_pageable_memory_can_be_used_again_at_once(name: str, non_blocking: bool) -> None:
    x = pageable_sources()[name]
    right = x.to(torch.float32, copy=True)
    target = torch.zeros(right.shape, device="spyre")
    hold = Held()
    thread = let_go_soon(hold)  # a large blocking copy waits for the stream
    target.copy_(x, non_blocking=non_blocking)
    x.untyped_storage().fill_(0)
    hold.let_go(), thread.join()
    assert torch.equal(target.cpu(), right)


def test_pageable_memory_is_staged_while_the_stream_is_busy() -> None:
    x = counting(600_000)
    with held():
        y = x.to("spyre", non_blocking=True)
        x.zero_()
        small = torch.ones(5).to("spyre")
        assert not torch.spyre.current_stream().query()
    assert torch.equal(y.cpu(), counting(600_000))
    assert small.tolist() == [1] * 5


def test_pinned_memory_is_read_when_the_stream_gets_there() -> None:
    x = counting().pin_memory()
    with held():
        y = x.to("spyre", non_blocking=True)
        x += 5
    assert torch.equal(y.cpu(), counting() + 5)


def test_pinned_memory_freed_in_flight() -> None:
    x = counting().pin_memory()
    address = x.data_ptr()
    with held():
        y = x.t().to("spyre", non_blocking=True)
        del x
        gc.collect()
        others = [torch.zeros(N).pin_memory() for _ in range(4)]
        assert address not in {other.data_ptr() for other in others}
    assert torch.equal(y.cpu(), counting())


def test_pinned_memory_is_written_when_the_stream_gets_there() -> None:
    x = counting().to("spyre")
    out = torch.full((N,), -1.0).pin_memory()
    with held():
        out.copy_(plus(x), non_blocking=True)
        assert (out == -1).all()
        assert not torch.spyre.current_stream().query()
    torch.spyre.synchronize()
    assert torch.equal(out, counting() + 1)


def test_pageable_results_are_there_when_the_call_returns() -> None:
    x, out = counting().to("spyre"), torch.empty(N)
    hold = Held()
    y = plus(x)
    thread = let_go_soon(hold)
    out.copy_(y, non_blocking=True)
    assert torch.equal(out, counting() + 1)
    thread.join()


def test_blocking_copies_of_pinned_memory() -> None:
    x = counting().pin_memory()
    hold = Held()
    thread = let_go_soon(hold)
    y = x.to("spyre")
    x.zero_()
    thread.join()
    back = torch.empty(N).pin_memory()
    back.copy_(y)
    assert torch.equal(back, counting())


@pytest.mark.parametrize("shape", [(7,), (3, 5), (1,), (0, 4), (2, 3, 4), (130, 70)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8, torch.complex128])
def test_arrangements_between_all_places(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    plain = (torch.arange(torch.Size(shape).numel()) % 200).reshape(shape).to(dtype)
    wide = torch.zeros(*shape, 2, dtype=dtype)
    wide[..., 1] = plain
    sources = [plain, plain.t() if plain.dim() < 3 else plain.permute(2, 0, 1), wide[..., 1]]
    for source in sources:
        for layout in (torch.contiguous_format, "gaps", "reversed"):
            with held():
                there = source.to("spyre", non_blocking=True)
                target = empty(source, layout)
                target.copy_(there)
            assert torch.equal(target.cpu(), source)


def empty(like: torch.Tensor, layout: object) -> torch.Tensor:
    """A tensor on the card of a form."""
    if layout == "gaps":
        return torch.zeros(*like.shape, 3, dtype=like.dtype, device="spyre")[..., 1]
    if layout == "reversed":
        flipped = torch.zeros(like.shape[::-1], dtype=like.dtype, device="spyre")
        return flipped.permute(*reversed(range(like.dim())))
    return torch.zeros(like.shape, dtype=like.dtype, device="spyre")
