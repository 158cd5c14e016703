"""Kernels: size classes, arguments, errors, what a launch has cost."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest
import torch

from openspyre.errors import InvalidKernel
from openspyre.runtime import launch
from openspyre.runtime.launch import load_kernel
from openspyre.runtime.profiler import profile
from openspyre.runtime.sizes import size_class

PLUS = """kernel plus
symbols n
arguments x y
input x: f32[n]
output y: f32[n]
op add map i0:n
  at "model.py:7 add"
  y[i0] <- x[i0] + 1.0
"""
GATHER = """kernel gather
arguments table ids y
input table: f16[10, 4]
input ids: i64[3]
output y: f16[3, 4]
op pick gather i0:3 i1:4
  at "model.py:3 embedding"
  lookup t = ids[i0] size 10 wrap
  y[i0, i1] <- table[t, i1]
"""
SCALED = """kernel scaled
arguments x s y
input x: f32[5]
scalar s: f32[]
output y: f32[5]
op scale map i0:5
  y[i0] <- x[i0] * s[]
"""


def plus(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    assert load_kernel(PLUS)(x, y, x.numel()) is None
    return y


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 63, 64, 65, 1000, 4097])
def test_any_size(size: int) -> None:
    x = torch.randn(size)
    assert torch.equal(plus(x.to("spyre")).cpu(), x + 1)


def test_sizes_of_a_class_share_a_program() -> None:
    kernel = load_kernel(PLUS.replace("plus", "classes"))
    for size, variants in ((5, 1), (8, 1), (6, 1), (9, 2), (16, 2), (1, 3), (0, 4), (7, 4)):
        x = torch.zeros(size, device="spyre")
        kernel(x, torch.empty_like(x), size)
        assert len(kernel.variants()) == variants
    assert [(low, high) for _, low, high in kernel.variants()] == [
        ((5,), (8,)), ((9,), (16,)), ((1,), (1,)), ((0,), (0,)),
    ]  # fmt: skip


def test_size_classes_cover_every_integer_once() -> None:
    for size in range(-70, 300):
        low, high = size_class(size)
        assert low <= size <= high
        assert {size_class(n) for n in range(low, high + 1)} == {(low, high)}


def test_equal_texts_are_one_kernel() -> None:
    assert load_kernel(PLUS) is load_kernel(PLUS)
    assert load_kernel(PLUS) in set(launch.kernels())
    with pytest.raises(InvalidKernel):
        load_kernel("kernel nothing\nop\n")


def test_offsets_and_inputs_that_are_outputs() -> None:
    base = torch.arange(10.0, device="spyre")
    out = torch.zeros(10, device="spyre")
    load_kernel(PLUS)(base[3:], out[2:], 6)
    assert out.tolist() == [0, 0, 4, 5, 6, 7, 8, 9, 0, 0]
    load_kernel(PLUS)(base, base, 10)
    assert base.tolist() == list(range(1, 11))


def test_a_write_from_the_host_is_seen_by_the_next_launch() -> None:
    x, y = torch.zeros(70, device="spyre"), torch.empty(70, device="spyre")
    for value in range(4):
        x.fill_(value)
        load_kernel(PLUS)(x, y, 70)
        assert (y.cpu() == value + 1).all()


@pytest.mark.parametrize("scalar", [2.5, 3, torch.tensor(2.5), torch.tensor(2.5).double(), True])
def test_scalars(scalar: float | torch.Tensor) -> None:
    x = torch.arange(5.0)
    y = torch.empty(5, device="spyre")
    load_kernel(SCALED)(x.to("spyre"), scalar, y)
    assert torch.equal(y.cpu(), x * float(scalar))


def test_wrong_arguments() -> None:
    kernel, x = load_kernel(PLUS), torch.zeros(4, device="spyre")
    with pytest.raises(TypeError, match="plus: takes 3 arguments, got 2"):
        kernel(x, x)
    with pytest.raises(TypeError, match="plus: argument 0 is on cpu, not on a card"):
        kernel(torch.zeros(4), x, 4)
    with pytest.raises(TypeError, match=r"argument 1 has dtype Half, .* compiled for Float"):
        kernel(x, x.half(), 4)
    with pytest.raises(TypeError, match="argument 1 is not a tensor"):
        kernel(x, 5, 4)
    with pytest.raises(TypeError, match="integer"):
        kernel(x, x, 4.5)
    with pytest.raises(TypeError, match="no keyword"):
        kernel(x, x, n=4)
    with pytest.raises(TypeError, match="argument 1 is not a CPU tensor with one element"):
        load_kernel(SCALED)(torch.zeros(5, device="spyre"), torch.zeros(2), x)


def test_an_index_out_of_range_is_an_index_error() -> None:
    table = torch.arange(40).reshape(10, 4).half()
    y = torch.empty(3, 4, dtype=torch.float16, device="spyre")
    ids = torch.tensor([9, -10, 2])
    load_kernel(GATHER)(table.to("spyre"), ids.to("spyre"), y)
    assert torch.equal(y.cpu(), table[ids])
    load_kernel(GATHER)(table.to("spyre"), torch.tensor([1, 10, 2], device="spyre"), y)
    with pytest.raises(IndexError) as caught:
        torch.spyre.synchronize()
    assert "gather" in str(caught.value)
    assert "model.py:3 embedding" in str(caught.value)
    load_kernel(GATHER)(table.to("spyre"), ids.to("spyre"), y)
    assert torch.equal(y.cpu(), table[ids])


def test_a_launch_that_leaves_the_cards_memory_stops_and_the_card_goes_on(
    run_python: Callable[..., CompletedProcess[str]],
) -> None:
    done = run_python(
        f"""
import torch, openspyre
from openspyre.errors import CardError
openspyre.require()
from openspyre.runtime.launch import load_kernel
kernel = load_kernel({PLUS!r})
x, y = torch.zeros(4, device="spyre"), torch.zeros(4, device="spyre")
try:
    kernel(x, y, 1 << 22)    # a size that no tensor has: overwrites even its own symbol block
    torch.spyre.synchronize()
except CardError as error:
    print(error)
kernel(x, y, 4)
print(y.tolist())
""",
        OPENSPYRE_MEMORY="8MiB",
    )
    message, values = done.stdout.splitlines()
    assert message.startswith("plus: ")
    assert values == "[1.0, 1.0, 1.0, 1.0]"


def test_temporary_memory_returns() -> None:
    plus(torch.zeros(4, device="spyre"))
    gc.collect()
    before = torch.spyre.memory_allocated()
    for _ in range(20):
        plus(torch.zeros(4, device="spyre"))
    assert torch.spyre.memory_allocated() == before


def test_threads_launch_at_once() -> None:
    failures: list[int] = []

    def work(seed: int) -> None:
        for step in range(20):
            x = torch.full((100 * seed + step + 1,), float(seed), device="spyre")
            if not (plus(x).cpu() == seed + 1).all():
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failures


def test_profile() -> None:
    x = torch.zeros(300, device="spyre")
    plus(x)
    with profile() as p:
        plus(x), plus(x), plus(x[:260])
        x.histc()
    (use,) = p.kernels
    assert (use.name, use.launches, p.launches) == ("plus", 3, 3)
    assert use.device_read_bytes >= 128 * (10 + 10 + 9)  # whole sticks
    assert use.device_read_bytes % 128 == 0
    assert use.device_write_bytes == use.device_read_bytes
    assert use.cycles >= use.bound_p_cycles > 0
    assert use.times_bound >= 1
    assert use.microseconds == pytest.approx(use.cycles / 1500)
    assert 0 < use.sfu_use < 1
    assert use.pt_use == 0
    assert use.lx_peak > 0
    assert 0 < use.host_seconds == p.emulation_seconds < p.host_seconds
    assert p.fallbacks == {"aten::histc": 1}
    assert use.as_dict()["times_bound"] == use.times_bound
    with profile() as nothing:
        pass
    assert nothing.kernels == ()
    assert nothing.fallbacks == {}


def test_card_time_is_deterministic() -> None:
    x = torch.zeros(5000, device="spyre")
    runs = []
    for _ in range(2):
        with profile() as p:
            plus(x)
        runs.append(p.kernels[0].cycles)
    assert runs[0] == runs[1]


def test_empty_strided() -> None:
    x = launch.empty_strided_spyre((2, 3), (1, 4), torch.float16, 0)
    assert (x.shape, x.stride(), x.dtype) == ((2, 3), (1, 4), torch.float16)
    assert x.untyped_storage().nbytes() == 2 * (1 + 2 * 4 + 1)
    assert launch.empty_strided_spyre((), (), torch.bool, None).device.index == 0
    assert launch.empty_strided_spyre((0, 5), (5, 1), torch.int64, 0).data_ptr() == 0
    with pytest.raises(TypeError, match="wrong arguments"):
        launch.empty_strided_spyre((2,), (1,), torch.float16)
    with pytest.raises(TypeError, match="is not a tuple"):
        launch.empty_strided_spyre([2], (1,), torch.float16, 0)
    with pytest.raises(RuntimeError, match="there is no device 9"):
        launch.empty_strided_spyre((2,), (1,), torch.float16, 9)
    with pytest.raises(RuntimeError, match="negative dimension"):
        launch.empty_strided_spyre((-2,), (1,), torch.float16, 0)


def test_a_kernel_runs_on_every_card(run_python: Callable[..., CompletedProcess[str]]) -> None:
    done = run_python(
        f"""
import torch, openspyre
openspyre.require()
from openspyre.runtime.launch import empty_strided_spyre, load_kernel
kernel = load_kernel({PLUS!r})
for device in (1, 0, 1):
    x = torch.full((5,), 3.0, device=f"spyre:{{device}}")
    y = empty_strided_spyre((5,), (1,), torch.float32, device)
    kernel(x, y, 5)
    assert y.device.index == device and y.tolist() == [4.0] * 5
assert len(kernel.variants()) == 1 and torch.spyre.current_device() == 0
try:
    kernel(x, torch.empty(5, device="spyre:0"), 5)
except TypeError as error:
    print(error)
""",
        OPENSPYRE_DEVICES="2",
        OPENSPYRE_MEMORY="64MiB",
    )
    assert done.stdout == "plus: argument 1 is on spyre:0, others on spyre:1\n", done.stderr
