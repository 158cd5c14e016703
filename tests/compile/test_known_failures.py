"""What users of other Spyre software reported: each row a kind, run in every form.

The numbers are those of the project's list of reported failures. Every case runs eagerly, compiled,
compiled with dynamic sizes, and with every input as a view at an offset into a larger storage.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.compile.comparing import TOLERANCE

Function = Callable[..., Any]
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.int32, torch.bool)


@dataclass(frozen=True)
class Case:
    """A function, its inputs on the CPU, and how close the result must be (None: by dtype)."""

    name: str
    function: Function
    inputs: tuple[torch.Tensor, ...]
    close: dict[str, float] | None = None


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


def additive_mask() -> torch.Tensor:
    return torch.where(boolean_mask(), 0.0, float("-inf"))


SLOTS = torch.tensor([5, 0, 3, 6])
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
    Case("13 cubes", lambda x: torch.pow(x, 3), (randn(70),)),
    Case("13 roots", lambda x: torch.pow(x, 0.5), (randn(70),)),
    Case("14 cat of the last dim", lambda a, b: torch.cat([a, b], 1), (randn(2, 61), randn(2, 69))),
    Case(
        "14 cat of the first dim", lambda a, b: torch.cat([a, b], 0), (randn(61, 3), randn(69, 3))
    ),
    Case("14 cat with nothing", lambda a, b: torch.cat([a, b], 1), (randn(2, 0), randn(2, 69))),
    Case("17 index_copy", paged_write, (randn(9, 8, 128, dtype=torch.bfloat16), SLOTS, ROWS)),
    Case("17 index_put", paged_put, (randn(9, 8, 128, dtype=torch.bfloat16), SLOTS, ROWS)),
    Case(
        "17 repeated slots",
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


FORMS = tuple(itertools.product(("eager", "compiled", "dynamic"), (False, True)))


@pytest.mark.parametrize(("form", "view"), FORMS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_result_is_the_cpus(case: Case, form: str, view: bool) -> None:
    torch._dynamo.reset()
    expected = case.function(*(t.clone() for t in case.inputs))
    function = case.function
    if form != "eager":
        function = torch.compile(function, dynamic=form == "dynamic")
    got = function(*(on_card(t, view) for t in case.inputs))
    pairs = zip(*(torch.utils._pytree.tree_leaves(x) for x in (got, expected)), strict=True)
    for ours, theirs in pairs:
        close = case.close or TOLERANCE.get(theirs.dtype, {"rtol": 0, "atol": 0})
        torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True, **close)


@pytest.mark.parametrize("compiled", [False, True])
def test_6_gradient_of_a_sum_of_squares(compiled: bool) -> None:
    def loss(a: torch.Tensor) -> torch.Tensor:
        return (a**2).sum()

    torch._dynamo.reset()
    a = torch.ones(50, dtype=torch.float16, device="spyre", requires_grad=True)
    (torch.compile(loss) if compiled else loss)(a).backward()
    assert a.grad is not None
    assert torch.equal(a.grad.cpu(), torch.full((50,), 2.0, dtype=torch.float16))


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_11_every_conversion(source: torch.dtype, target: torch.dtype) -> None:
    torch._dynamo.reset()
    x = (8 * randn(3, 65)).to(source)
    moved = x.to("spyre")
    assert torch.equal(moved.to(target).cpu(), x.to(target))
    assert torch.equal(torch.compile(lambda t: t.to(target))(moved).cpu(), x.to(target))


def test_12_topk_with_ties() -> None:
    x = randn(64, 128, dtype=torch.bfloat16)
    values, indices = x.to("spyre").topk(8)
    expected, _ = x.topk(8)
    assert torch.equal(values.cpu(), expected)
    assert torch.equal(x.gather(1, indices.cpu()), expected)


def test_15_the_cpu_is_unaffected() -> None:
    torch._dynamo.reset()
    x = randn(5, 7)
    assert torch.equal(torch.compile(lambda t: t + 1)(x), x + 1)


def test_18_two_graphs_in_turn() -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.T).softmax(-1) @ x

    def second(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(((x + 1) @ x.T).mean(0)) + x.T.mean(0)

    torch._dynamo.reset()
    x = randn(65, 65)
    moved = x.to("spyre")
    graphs = [torch.compile(first), torch.compile(second)]
    results = [[graph(moved) for graph in graphs] for _ in range(100)]
    for one, two in results:
        torch.testing.assert_close(one.cpu(), first(x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(two.cpu(), second(x), rtol=1e-4, atol=1e-4)


def test_21_one_graph_for_every_length() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(lambda x: torch.softmax(x @ x.transpose(-1, -2), -1), dynamic=True)
    for length in (37, 38, 64, 65, 128):
        x = randn(2, length, 16)
        expected = torch.softmax(x @ x.transpose(-1, -2), -1)
        torch.testing.assert_close(compiled(x.to("spyre")).cpu(), expected, rtol=1e-4, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_22_a_fallback_is_counted_and_named() -> None:
    torch.spyre.reset_fallbacks()
    x = torch.tensor([3.0, 1.0, 2.0])
    assert torch.equal(torch.lgamma(x.to("spyre")).cpu(), torch.lgamma(x))
    assert any("lgamma" in name for name in torch.spyre.fallbacks())
