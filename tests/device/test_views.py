"""Any view as input, output, mutated input and `out=`: what the CPU does with the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.view_chains import DTYPES, SHAPES, Chain, base, chains, overlaps_itself, seen, shifted

OVERLAP = "refers? to a single memory location"
READS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add": torch.add,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "where": lambda a, b: torch.where(a > b, a, b),
    "abs": lambda a, _: a.abs() if a.dtype != torch.bool else ~a,
    "sum": lambda a, _: a.sum(-1),
    "amax": lambda a, _: a.amax(0) if a.numel() else a.sum(),
    "softmax": lambda a, _: torch.softmax(a.float(), -1),
    "cumsum": lambda a, _: a.float().cumsum(0),
    "cat": lambda a, _: torch.cat([a, a], -1) if a.dim() else a.clone(),
    "flip": lambda a, _: a.flip(tuple(range(a.dim()))),
    "reshape": lambda a, _: a.reshape(-1).clone(),
    "matmul": lambda a, _: a.float() @ a.float().transpose(-1, -2) if a.dim() > 1 else a * 2,
    "index": lambda a, _: a[torch.tensor([0, -1]).to(a.device)] if len(a.shape and a) else a * 2,
    "pad": lambda a, _: torch.nn.functional.pad(a, (1, 2)) if a.dim() else a.clone(),
    "float": lambda a, _: a.to(torch.float32, copy=True),
}
WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "copy_": lambda a, b: a.copy_(b),
    "add_": lambda a, b: a.add_(b),
    "mul_": lambda a, b: a.mul_(b),
    "fill_": lambda a, _: a.fill_(3),
    "zero_": lambda a, _: a.zero_(),
    "clamp_": lambda a, _: a.clamp_(max=4) if a.dtype != torch.bool else a.logical_not_(),
    "addcmul_": lambda a, b: a.addcmul_(b, b) if a.is_floating_point() else a.add_(b, alpha=1),
    "masked_fill_": lambda a, b: a.masked_fill_(b > 4, 2),
}
OUTS: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "mul": torch.mul,
    "minimum": torch.minimum,
    "lt": torch.lt,
    "where": lambda a, b, **out: torch.where(a > b, a, b, **out),
}
Shifted = Callable[[torch.Tensor], torch.Tensor]


def attempted(function: Callable[[], Any]) -> tuple[Any, str]:
    """A result, or the message of the RuntimeError that came instead."""
    try:
        return function(), ""
    except (RuntimeError, IndexError) as error:
        return None, str(error) or "error"


def same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4, equal_nan=True)


@st.composite
def examples(draw: Any, views: int) -> tuple[torch.Tensor, list[Chain]]:
    start = base(draw(st.sampled_from(SHAPES)), draw(st.sampled_from(DTYPES)))
    return start, [draw(chains(start)) for _ in range(views)]


@settings(max_examples=250)
@given(examples(2), st.sampled_from(sorted(READS)))
def test_any_view_can_be_read(example: tuple[torch.Tensor, list[Chain]], name: str) -> None:
    start, views = example
    card = start.to("spyre")
    theirs, problem = attempted(lambda: READS[name](*(seen(start, v) for v in views)))
    ours, ours_problem = attempted(lambda: READS[name](*(seen(card, v) for v in views)))
    assert bool(problem) == bool(ours_problem), (problem, ours_problem)
    if not problem:
        same(ours, theirs)
    same(card, start)


SHIFTS = st.sampled_from((0, 0, 1, 2, 5, 140))


@st.composite
def shifts(draw: Any, count: int) -> tuple[torch.Tensor, list[Shifted]]:
    """A storage, and views of it that have one shape and may share elements in any way."""
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(SHAPES))
    start = base((140 * 2,), dtype)
    chain = draw(chains(start[: torch.Size(shape).numel()].view(shape)))

    def made(by: int) -> Shifted:
        return lambda flat: shifted(seen(flat[: torch.Size(shape).numel()].view(shape), chain), by)

    return start, [made(draw(SHIFTS)) for _ in range(count)]


@settings(max_examples=250)
@given(shifts(2), st.sampled_from(sorted(WRITES)))
def test_any_view_can_be_written(example: tuple[torch.Tensor, list[Shifted]], name: str) -> None:
    start, views = example
    card = start.to("spyre")
    assume(not overlaps_itself(views[0](start)) or name in ("fill_", "zero_"))
    _, problem = attempted(lambda: WRITES[name](*(view(start) for view in views)))
    _, ours_problem = attempted(lambda: WRITES[name](*(view(card) for view in views)))
    assert bool(problem) == bool(ours_problem), (problem, ours_problem)
    same(card, start)


@settings(max_examples=250)
@given(shifts(3), st.sampled_from(sorted(OUTS)))
def test_any_view_can_be_an_out(example: tuple[torch.Tensor, list[Shifted]], name: str) -> None:
    start, views = example
    card, right = start.to("spyre"), start.clone()
    a, b, out = (view(right) for view in views)
    assume(not overlaps_itself(out))
    wanted = OUTS[name](a, b)
    a, b, theirs = (view(start) for view in views)
    _, problem = attempted(lambda: OUTS[name](a, b, out=theirs))
    a, b, ours = (view(card) for view in views)
    _, ours_problem = attempted(lambda: OUTS[name](a, b, out=ours))
    assert bool(problem) == bool(ours_problem), (problem, ours_problem)
    if not problem:
        out.copy_(wanted)
        same(card, right)


def test_elements_that_share_a_place_are_written_in_order() -> None:
    x = torch.arange(10.0, device="spyre")
    x.unfold(0, 3, 2).mul_(2)
    assert x.tolist() == [2.0 * i for i in range(9)] + [9.0]
    x.as_strided((3, 2), (1, 1)).clamp_(max=3)
    assert x[:4].tolist() == [0, 2, 3, 3]


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.expand(3, 4).add_(1),
        lambda x: torch.add(x, x.expand(3, 4), out=x.expand(3, 4)),
        lambda x: x[:, 1:].add_(x[:, :-1]),
        lambda x: torch.mul(x[:, 1:], 2, out=x[:, :-1]),
        lambda x: x.view(2, 2).add_(x.view(2, 2).t()),
        lambda x: x[:, 1:].copy_(x[:, :-1]),
    ],
)
def test_what_the_cpu_refuses_is_refused(write: Callable[[torch.Tensor], Any]) -> None:
    for device in ("cpu", "spyre"):
        x = torch.arange(4.0, device=device).view(1, 4)
        with pytest.raises(RuntimeError, match=OVERLAP):
            write(x)
        assert x.tolist() == [[0, 1, 2, 3]]


def test_halves_of_one_storage() -> None:
    for device in ("cpu", "spyre"):
        x = torch.arange(8.0, device=device)
        x[::2].add_(x[1::2])
        torch.mul(x[:4], 10, out=x[4:])
        assert x.tolist() == [1, 1, 5, 3, 10, 10, 50, 30]


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_channels_last(memory_format: torch.memory_format) -> None:
    x = torch.arange(2.0 * 3 * 4 * 5).view(2, 3, 4, 5)
    ours = x.to("spyre").contiguous(memory_format=memory_format)
    theirs = x.contiguous(memory_format=memory_format)
    for a, b in ((ours, theirs), (ours + 1, theirs + 1), (ours.relu(), theirs.relu())):
        assert a.stride() == b.stride()
        same(a, b)
    ours[:, 1:].mul_(2), theirs[:, 1:].mul_(2)
    same(ours, theirs)
    assert ours.to("cpu").stride() == theirs.stride()
    assert ours.to(memory_format=torch.preserve_format).stride() == theirs.stride()
