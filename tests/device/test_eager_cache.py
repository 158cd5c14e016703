"""What became of eager ops outlives the process: the next one needs no Inductor for them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch
from torch.nn import functional

from openspyre.errors import BrokenInvariant, Unsupported
from openspyre.frontend import eager, one_node, patterns
from openspyre.frontend.eager_call import Form, Inputs
from openspyre.frontend.patterns import Answer, Asked
from openspyre.ir.kernel import Kernel
from openspyre.runtime import programs
from openspyre.runtime.cache import Kind, ProgramCache

RunPython = Callable[..., CompletedProcess[str]]

USES = """
import sys
import torch, openspyre
openspyre.require()
torch.spyre.manual_seed(7)
def show(*tensors):
    for tensor in tensors:
        print(tensor.dtype, tuple(tensor.shape), tensor.cpu().float().sum().item())
x = torch.randn(5, device="spyre")
print(x + 1)                                     # isfinite, abs, ne, ceil, masked_select, ...
matrix = torch.arange(12, device="spyre").reshape(3, 4).to(torch.float16)
other = torch.ones(3, 4).to("spyre", torch.float16)
show(matrix + other.float(), matrix @ other.T, matrix.sum(1), torch.softmax(matrix, -1))
show(matrix.to(torch.int32), matrix.T.contiguous(), torch.cat([matrix, other]))
show(torch.where(matrix > 3, matrix, 0.5), torch.full((2, 3), 2, device="spyre"))
show(torch.nn.functional.embedding(torch.tensor([2, 0], device="spyre"), matrix))
show(torch.nn.functional.layer_norm(other, (4,)), other.var(1), matrix.argmax(1))
ids = torch.tensor([0, 2], device="spyre")
show(matrix.cumsum_(0), matrix.index_add_(0, ids, other[:2]), matrix.mul_(2), matrix.clamp_(1))
show(torch.abs(other, out=torch.empty(0, dtype=torch.float16, device="spyre")))
show(torch.ones(3, dtype=torch.int64, device="spyre") / 2)
show(torch.empty(3, device="spyre").fill_(1.5), torch.rand(2, 2, device="spyre"))
show(torch.nn.functional.max_pool2d(torch.ones(1, 1, 4, 4, device="spyre"), 2))
print("LOADED", *sorted({"torch._inductor", "torch._dynamo"} & sys.modules.keys()))
"""


@pytest.fixture
def run(run_python: RunPython, tmp_path: Path) -> Callable[[str], list[str]]:
    """The lines that code prints in a fresh process with one and the same cache."""

    def lines(code: str) -> list[str]:
        done = run_python(code, OPENSPYRE_CACHE=str(tmp_path), OPENSPYRE_CACHE_PROGRAMS="on")
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return lines


def test_the_next_process_loads_no_inductor(run: Callable[[str], list[str]]) -> None:
    *first, loaded = run(USES)
    assert loaded == "LOADED torch._dynamo torch._inductor"
    *second, loaded = run(USES)
    assert loaded == "LOADED"
    assert second == first


SMALL = """
import sys
import torch, openspyre
openspyre.require()
print((torch.ones(5, device="spyre") + 1).sum().item(), "torch._inductor" in sys.modules)
"""


def test_damaged_entries_are_made_again(run: Callable[[str], list[str]], tmp_path: Path) -> None:
    assert run(SMALL) == ["10.0 True"]
    for path in (tmp_path / "programs").glob("*.pattern"):
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert run(SMALL) == ["10.0 True"]
    assert run(SMALL) == ["10.0 False"]


# --- answers -----------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProgramCache:
    kept = ProgramCache(tmp_path, 1 << 30)
    monkeypatch.setattr(patterns, "program_cache", lambda: kept)
    return kept


def asked(*sizes: int) -> Asked:
    form = Form(torch.float32, True, False, sizes, (1,) * len(sizes))
    return Asked.of(Inputs((form,)), (form,))


KEY = patterns.pattern_key("aten::op", "", b"words")


def test_an_answer_for_exact_sizes_serves_no_others(store: ProgramCache) -> None:
    for size in (3, 4):
        answer = Answer("text", "", ((0, 0),), ((0, 0, 0),), (((0, 0, 0), size),))
        patterns.keep(KEY, asked(size), answer)
    for size in (3, 4):
        found = patterns.found(KEY, asked(size))
        assert found is not None
        assert found.exact == (((0, 0, 0), size),)
    assert patterns.found(KEY, asked(5)) is None


def test_the_oldest_of_many_answers_go(store: ProgramCache) -> None:
    for size in range(100):
        patterns.keep(KEY, asked(size), Answer("", "why", exact=(((0, 0, 0), size),)))
    assert patterns.found(KEY, asked(99)) is not None
    assert patterns.found(KEY, asked(67)) is None
    assert store.contents().patterns == 1


RIGHT: list[Any] = ["text", "", [[0, 1]], [[0, 0, 0]], [[[1, 1, 0], 1]]]


@pytest.mark.parametrize(
    ("at", "wrong"),
    [
        (2, [[0, 2]]),
        (2, [[1, 0]]),
        (2, [[0, -1]]),
        (3, [[0, 0, 1]]),
        (3, [[0, 2, 0]]),
        (3, [[2, 0, 0]]),
        (3, [[0, -1, 0]]),
        (4, [[[0, 0, 7], 1]]),
        (4, 5),
    ],
)
def test_an_answer_for_another_call_is_none(store: ProgramCache, at: int, wrong: object) -> None:
    store.keep(KEY, json.dumps([RIGHT]).encode(), Kind.PATTERN)
    assert patterns.found(KEY, asked(3)) is not None
    answer = [*RIGHT[:at], wrong, *RIGHT[at + 1 :]]
    store.keep(KEY, json.dumps([answer]).encode(), Kind.PATTERN)
    assert patterns.found(KEY, asked(3)) is None
    assert store.contents().patterns == 0


@pytest.mark.parametrize("data", [b"", b"{", b"[[1]]", b"[7]", bytes(7), b"\xff" * 64])
def test_an_entry_that_means_nothing_is_none(store: ProgramCache, data: bytes) -> None:
    store.keep(KEY, data, Kind.PATTERN)
    assert patterns.found(KEY, asked(3)) is None
    assert store.contents().patterns == 0


def _words(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}q", *words)


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        bytes(7),
        bytes(8),
        bytes(800),
        b"\xff" * 64,
        _words(1 << 60),
        _words(3, 1, 5, 1, 1, 6, 9),
    ],
)
def test_recalled_forms_that_mean_nothing_are_none(
    monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    dims = 1 + data.count(b"\xff") + len(data) % 13  # a structure of its own for each case
    monkeypatch.setattr(eager, "recalled", lambda *_: data)
    x = torch.full((2,) * (dims % 20 + 1), 0.5)
    assert torch.equal(torch.frac(x.to("spyre")).cpu(), torch.frac(x))


def test_every_part_of_a_call_is_in_the_key() -> None:
    keys = {
        patterns.pattern_key("aten::op", "", b"words"),
        patterns.pattern_key("aten::po", "", b"words"),
        patterns.pattern_key("aten::op", "out", b"words"),
        patterns.pattern_key("aten::op", "", b"wordz"),
    }
    assert len(keys) == 4


# --- what the card has no program for ------------------------------------------------------------


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """No kernel is compiled for a size above 1000; those that were asked for."""
    seen: list[Kernel] = []
    compiled = programs.compile_kernel

    def compile_small(kernel: Kernel, card: Any, **how: Any) -> Any:
        seen.append(kernel)
        if any(high > 1000 for _, high in kernel.limits.values() if high < 1 << 30):
            raise Unsupported("the op", why="it is too large")
        return compiled(kernel, card, **how)

    monkeypatch.setattr(programs, "compile_kernel", compile_small)
    return seen


def test_sizes_without_a_program_run_on_the_cpu(refusing: list[Kernel], counted: None) -> None:
    def run(size: int) -> None:
        x = torch.full((size,), 0.25)
        assert torch.equal(torch.erfc(x.to("spyre")).cpu(), torch.erfc(x))

    run(2000)
    run(2000)
    run(1500)  # the same class of sizes: not tried again
    assert len(refusing) == 1
    assert torch.spyre.fallbacks() == {"aten::erfc.out": 3}
    assert torch.spyre.fallback_reasons() == {"aten::erfc.out": "the op: it is too large"}
    x = torch.full((10,), 0.25)  # others are served
    torch.testing.assert_close(torch.erfc(x.to("spyre")).cpu(), torch.erfc(x))
    assert torch.spyre.fallbacks() == {"aten::erfc.out": 3}


def test_in_place_on_sizes_without_a_program(refusing: list[Kernel], counted: None) -> None:
    for function in (torch.Tensor.erfc_, lambda x: x.cumprod_(0)):
        for size in (3, 1100, 1100, 5):
            x = torch.full((size,), 0.25)
            moved = x.to("spyre")
            function(moved)
            torch.testing.assert_close(moved.cpu(), function(x))
    assert set(torch.spyre.fallbacks().values()) == {2}


def test_a_mistake_of_ours_is_no_fallback(monkeypatch: pytest.MonkeyPatch, counted: None) -> None:
    def broken(*_: object) -> None:
        raise BrokenInvariant("a stage is wrong")

    monkeypatch.setattr(one_node, "region_kernel", broken)
    with pytest.raises(BrokenInvariant, match="a stage is wrong"):
        torch.ones(3, device="spyre").hypot(torch.ones(3, device="spyre"))
    assert torch.spyre.fallbacks() == {}


def test_a_mistake_inside_a_lowering_is_no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor raises an error of its own for everything that a lowering raises."""
    from torch._inductor.lowering import lowerings

    def broken(*_: object) -> None:
        raise BrokenInvariant("a lowering is wrong")

    monkeypatch.setitem(lowerings, torch.ops.aten.tan.default, broken)
    with pytest.raises(BrokenInvariant, match="a lowering is wrong"):
        torch.ones(3, device="spyre").tan()

    def unsupported(*_: object) -> None:
        raise Unsupported("tan", why="this card has none")

    monkeypatch.setitem(lowerings, torch.ops.aten.tan.default, unsupported)
    torch.spyre.reset_fallbacks()
    torch.ones(3, 2, device="spyre").t().tan()
    assert list(torch.spyre.fallback_reasons().values()) == ["tan: this card has none"]


def test_an_index_out_of_range_names_the_op_once() -> None:
    table = torch.ones(4, 2, device="spyre")
    with pytest.raises(IndexError) as caught:
        functional.embedding(torch.tensor([4], device="spyre"), table).cpu()
    assert str(caught.value).count("embedding") + str(caught.value).count("index_select") == 1


# --- what results look like -------------------------------------------------------------------


def test_the_default_dtype_is_part_of_a_call() -> None:
    x = torch.tensor([1, 2], device="spyre")
    assert (x / 2).dtype == torch.float32
    torch.set_default_dtype(torch.float16)
    try:
        assert (x / 2).dtype == torch.float16
    finally:
        torch.set_default_dtype(torch.float32)
    assert (x / 2).dtype == torch.float32


def test_an_out_tensor_of_arange_takes_its_size_each_time() -> None:
    out = torch.empty(0, dtype=torch.int64, device="spyre")
    for end in (3, 5, 3):
        fresh = torch.empty(0, dtype=torch.int64, device="spyre")
        assert torch.arange(end, out=fresh).tolist() == list(range(end))
    torch.arange(4, out=out)
    with pytest.warns(UserWarning, match="was resized"):
        torch.arange(6, out=out)
    assert out.tolist() == list(range(6))


def test_an_out_tensor_is_resized_silently_or_not_at_all() -> None:
    x = torch.ones(2, 3, device="spyre").t()
    strides = set()
    for _ in range(3):
        out = torch.empty(0, device="spyre")
        torch.neg(x, out=out)
        assert torch.equal(out.cpu(), torch.neg(x.cpu()))
        strides.add(out.stride())
        with pytest.warns(UserWarning, match="was resized"):
            torch.neg(x, out=torch.empty(1, device="spyre"))
    assert len(strides) == 1


def test_a_temporary_that_is_written_twice_stays_inside() -> None:
    x, ids, new = torch.ones(3, 4), torch.tensor([5, 0, 5]), torch.tensor([2.0, 3.0, 4.0])
    scalar, first = torch.tensor(1.5), torch.tensor([0])

    def check(function: Callable[..., torch.Tensor], *given: torch.Tensor) -> None:
        found = function(*(tensor.to("spyre") for tensor in given))
        assert torch.equal(found.cpu(), function(*given))

    torch.spyre.reset_fallbacks()
    check(lambda x, i, v: x.put(i, v, accumulate=True), x, ids, new)
    check(lambda x, i, v: x.clone().put_(i[:2], v[:2]), x, ids, new)
    check(lambda s, i: s.index_add(0, i, s + 1), scalar, first)
    check(lambda s, i: s.index_fill(0, i, 2.0), scalar, first)
    check(lambda s, i: s.index_select(0, i), scalar, first)
    pooled, places = functional.max_pool2d(torch.rand(2, 3, 6, 6), 2, return_indices=True)
    check(lambda v, i: functional.max_unpool2d(v, i, 2), pooled, places)
    assert torch.spyre.fallbacks() == {}
