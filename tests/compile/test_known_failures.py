"""What users of other Spyre software reported: each row a kind, run in every form.

The numbers are those of the project's list of reported failures. Every case runs eagerly, compiled,
compiled with dynamic sizes, and with every input as a view at an offset into a larger storage; the
views once more in a process whose card's memory is poisoned and whose transfers are late.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters

from openspyre import _C
from tests.compile.comparing import TOLERANCE

Function = Callable[..., Any]
DTYPES = (
    torch.float16, torch.bfloat16, torch.float32,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


def called(function: Function, *inputs: torch.Tensor) -> Any:
    return function(*inputs)


def gradient(function: Function, *inputs: torch.Tensor) -> torch.Tensor | None:
    """The gradient of a scalar function by its first input."""
    leaf = inputs[0].detach().requires_grad_()
    function(leaf, *inputs[1:]).backward()
    return leaf.grad


@dataclass(frozen=True)
class Case:
    """A function, its inputs on the CPU, and how its result comes about.

    Attributes:
        close: how close the result must be (None: by dtype).
        used: calls the function, compiled or not, with its inputs.
        right: computes the result on the CPU, where it is not the function itself.
    """

    name: str
    function: Function
    inputs: tuple[torch.Tensor, ...]
    close: dict[str, float] | None = None
    used: Callable[..., Any] = called
    right: Function | None = None


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def arange_rows(rows: int, columns: int) -> torch.Tensor:
    """Row i holds 2i."""
    return (2.0 * torch.arange(rows)).unsqueeze(1).expand(rows, columns).contiguous()


def doubled_odd_rows(t: torch.Tensor) -> torch.Tensor:
    view = t[1::2, :]
    return view + view


def write_rows(buf: torch.Tensor) -> torch.Tensor:
    buf[3:7].add_(1)
    return buf * 1


def write_out(a: torch.Tensor, buf: torch.Tensor) -> torch.Tensor:
    torch.add(a, 1, out=buf[2:4])
    return buf * 1


def norm_of(width: int) -> Function:
    def normed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        variance = x.float().pow(2).mean(-1, keepdim=True)
        return F.layer_norm(x, (width,)), (x.float() * torch.rsqrt(variance + 1e-6)).to(x.dtype)

    return normed


def masked_attention(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def boolean_mask() -> torch.Tensor:
    mask = torch.ones(1, 1, 7, 7, dtype=torch.bool).tril()
    mask[..., 3, :] = False
    return mask


def paged_write(cache: torch.Tensor, where: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    cache.index_copy_(0, where, rows)
    return cache * 1


def paged_put(cache: torch.Tensor, where: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    cache.index_put_((where,), rows)
    return cache * 1


def near_constant(width: int) -> torch.Tensor:
    return (3.0 + 1e-3 * randn(5, width)).half()


def conversions(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(x.to(dtype) for x in inputs for dtype in DTYPES)


def largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The values of topk, and those that its indices select."""
    values, indices = x.topk(8)
    return values, x.gather(1, indices)


def additive_mask() -> torch.Tensor:
    return torch.where(boolean_mask(), 0.0, float("-inf"))


SLOTS = torch.tensor([5, 0, 3, 6])
AGAIN = torch.tensor([5, 0, 5, 0])
ROWS = randn(4, 8, 128, dtype=torch.bfloat16)
CASES = (
    Case("1 sliced rows", doubled_odd_rows, (arange_rows(9, 128),)),
    Case("1 a view as input", lambda x: x + x, (arange_rows(9, 128)[1::2, :],)),
    Case(
        "2 narrow",
        lambda x: (x.narrow(0, 0, 1).clone(), x.narrow(0, 2, 1).clone()),
        (randn(4, 64),),
    ),
    Case("3 narrow in the stick", lambda x: x.narrow(1, 64, 64).clone(), (randn(2, 128),)),
    Case("4 write through a view", write_rows, (randn(9, 5),)),
    Case("4 out= of a view", write_out, (randn(2, 70), randn(6, 70))),
    Case("5 relu in place", lambda x: F.relu(x + 0, inplace=True), (randn(3, 65),)),
    Case("6 squares", lambda a: (a**2).sum(), (torch.ones(50).half(),), used=gradient),
    Case(
        "7 int32 to float",
        lambda x: x.float(),
        (torch.tensor([2**24 + 1, -(2**31), 2**31 - 1], dtype=torch.int32),),
    ),
    Case("7 int64 and back", lambda x: x.float().long(), (torch.tensor([2**20, -5, 7]),)),
    Case(
        "7 int64 beyond 32 bits",
        lambda x: x * 3 + 1,
        (torch.tensor([2**40 + 1, -(2**40), 2**53 + 1]),),
    ),
    Case(
        "8 ceiling division",
        lambda n: (n + 64 - 1) // 64,
        (torch.tensor([0, 1, 63, 64, 65, -1, -64, -65]),),
    ),
    Case("9 one element", lambda x: (x.neg(), x.abs().rsqrt()), (randn(1, 1, 1),)),
    Case("9 no dims", lambda x: (x.neg(), x.abs().rsqrt()), (torch.tensor(4.0),)),
    Case(
        "10 broadcasts",
        lambda x, y: x.mean(-1, keepdim=True) + torch.zeros_like(x) + y,
        (randn(1, 4, 256), randn(256)),
    ),
    Case("11 conversions", conversions, tuple((8 * randn(3, 65)).to(d) for d in DTYPES)),
    Case("12 topk", largest, ((2 * randn(64, 128)).round().to(torch.bfloat16),)),
    Case("13 cubes", lambda x: torch.pow(x, 3), (randn(70),)),
    Case("13 roots", lambda x: torch.pow(x, 0.5), (randn(70),)),
    Case("14 cat of the last dim", lambda a, b: torch.cat([a, b], 1), (randn(2, 61), randn(2, 69))),
    Case(
        "14 cat of the first dim", lambda a, b: torch.cat([a, b], 0), (randn(61, 3), randn(69, 3))
    ),
    Case("14 cat with nothing", lambda a, b: torch.cat([a, b], 1), (randn(2, 0), randn(2, 69))),
    Case("17 index_copy", paged_write, (randn(9, 8, 128, dtype=torch.bfloat16), SLOTS, ROWS)),
    Case("17 index_put", paged_put, (randn(9, 8, 128, dtype=torch.bfloat16), SLOTS, ROWS)),
    Case("17 the last copy", paged_write, (randn(9, 8, 128, dtype=torch.bfloat16), AGAIN, ROWS)),
    Case(  # of several puts into one slot PyTorch leaves open which stays
        "17 the last put",
        paged_put,
        (randn(9, 8, 128, dtype=torch.bfloat16), AGAIN, ROWS),
        right=paged_write,
    ),
    Case(
        "17 sums of repeated slots",
        lambda c, w, r: c.index_put_((w,), r, accumulate=True) * 1,
        (randn(9, 8), torch.tensor([5, 0, 5, 5]), randn(4, 8)),
    ),
    Case(
        "19 near-constant rows, 384",
        norm_of(384),
        (near_constant(384),),
        {"rtol": 1e-2, "atol": 1e-2},
    ),
    Case(
        "19 near-constant rows, 4096",
        norm_of(4096),
        (near_constant(4096),),
        {"rtol": 1e-2, "atol": 1e-2},
    ),
    Case("20 masked rows, boolean", masked_attention, (randn(2, 3, 7, 16), boolean_mask())),
    Case("20 masked rows, additive", masked_attention, (randn(2, 3, 7, 16), additive_mask())),
)


def as_view(t: torch.Tensor) -> torch.Tensor:
    """The same values on the card, three elements into a storage of other values."""
    extent = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    storage = torch.full((max(extent, 0) + 9,), 7).to(t.dtype).to("spyre")
    view = storage[3:].as_strided(t.shape, t.stride())
    return view.copy_(t)


def on_card(t: torch.Tensor, view: bool) -> torch.Tensor:
    return as_view(t) if view else t.clone().to("spyre")


MODES = ("eager", "compiled", "dynamic")
FORMS = tuple(
    pytest.param(mode, view, id=f"{mode}-{'view' if view else 'whole'}")
    for mode, view in itertools.product(MODES, (False, True))
)


def in_mode(function: Function, mode: str) -> Function:
    if mode == "eager":
        return function
    compiled: Function = torch.compile(function, dynamic=mode == "dynamic")
    return compiled


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing compiled, nothing counted."""
    torch._dynamo.reset()
    torch.spyre.reset_fallbacks()
    yield
    _C.set_fallback_mode("count")


@pytest.mark.parametrize(("mode", "view"), FORMS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_result_is_the_cpus(case: Case, mode: str, view: bool) -> None:
    expected = case.used(case.right or case.function, *(t.clone() for t in case.inputs))
    got = case.used(in_mode(case.function, mode), *(on_card(t, view) for t in case.inputs))
    pairs = zip(*(torch.utils._pytree.tree_leaves(x) for x in (got, expected)), strict=True)
    for ours, theirs in pairs:
        close = case.close or TOLERANCE.get(theirs.dtype, {"rtol": 0, "atol": 0})
        torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True, **close)


@pytest.mark.parametrize(
    ("mode", "view"), [("eager", False), ("compiled", False), ("dynamic", True)]
)
def test_15_the_cpu_is_unaffected(mode: str, view: bool) -> None:
    x = randn(9, 7)[2:7, ::2] if view else randn(5, 7)
    assert torch.equal(in_mode(lambda t: (t + 1).relu_(), mode)(x), (x + 1).relu())
    assert torch.spyre.fallbacks() == {}


def attended(x: torch.Tensor) -> torch.Tensor:
    return (x @ x.T).softmax(-1) @ x


def averaged(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(((x + 1) @ x.T).mean(0)) + x.T.mean(0)


@pytest.mark.parametrize(("mode", "view"), FORMS)
def test_18_two_graphs_in_turn(mode: str, view: bool) -> None:
    x = randn(65, 65)
    moved = on_card(x, view)
    functions = (attended, averaged)
    graphs = [in_mode(function, mode) for function in functions]
    results = [[graph(moved) for graph in graphs] for _ in range(100)]
    for place, function in enumerate(functions):
        expected = function(x)
        for result in results:
            torch.testing.assert_close(result[place].cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("view", [False, True], ids=["whole", "view"])
@pytest.mark.parametrize(("mode", "graphs"), [("eager", 0), ("compiled", 5), ("dynamic", 1)])
def test_21_one_graph_for_every_length(mode: str, graphs: int, view: bool) -> None:
    function = in_mode(lambda x: torch.softmax(x @ x.transpose(-1, -2), -1), mode)
    counters.clear()
    for length in (37, 38, 64, 65, 128):
        x = randn(2, length, 16)
        expected = torch.softmax(x @ x.transpose(-1, -2), -1)
        torch.testing.assert_close(function(on_card(x, view)).cpu(), expected, rtol=1e-4, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == graphs


@pytest.mark.parametrize(("mode", "view"), FORMS)
def test_22_a_fallback_is_counted_named_and_can_be_an_error(mode: str, view: bool) -> None:
    x = randn(5, 5) + 5 * torch.eye(5)
    function = in_mode(lambda t: torch.linalg.det(t + 1) * 2, mode)
    moved = on_card(x, view)
    torch.testing.assert_close(function(moved).cpu(), torch.linalg.det(x + 1) * 2)
    (name,) = torch.spyre.fallbacks()
    assert "det" in name
    assert torch.spyre.fallback_reasons()[name]
    _C.set_fallback_mode("error")
    with pytest.raises(NotImplementedError, match=f"{name}.* cannot run on the spyre device"):
        function(moved)


def test_poisoned_memory_changes_nothing() -> None:
    here = Path(__file__)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "view", str(here)],
        env={**os.environ, "OPENSPYRE_DEBUG": "late,poison"},
        cwd=here.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
