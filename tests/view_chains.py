"""Random chains of views, the same on any device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]
SHAPES = ((24,), (4, 6), (2, 3, 4), (5, 5), (1, 7), (3, 1, 5), (130,), (2, 70), (2, 3, 2, 4))
DTYPES = (torch.float32, torch.float16, torch.int64, torch.int8, torch.bool)


@dataclass(frozen=True)
class Step:
    """One view op: `view(x)` is a view of x."""

    name: str
    args: tuple[Any, ...]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.name == "slice":
            dim, start, stop, step = self.args
            index = [slice(None)] * x.dim()
            index[dim] = slice(start, stop, step)
            return x[tuple(index)]
        view: torch.Tensor = getattr(x, self.name)(*self.args)
        return view


Chain = tuple[Step, ...]


def seen(x: torch.Tensor, chain: Chain) -> torch.Tensor:
    """The view of x that a chain makes."""
    for step in chain:
        x = step(x)
    return x


def base(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A dense CPU tensor of small numbers."""
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) % 11).to(dtype)


def shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """The view of the same storage that begins `by` elements later."""
    return x.as_strided(x.shape, x.stride(), x.storage_offset() + by)


def places(x: torch.Tensor) -> torch.Tensor:
    """Where in its storage each element of a view lies."""
    found = torch.zeros((), dtype=torch.int64) + x.storage_offset()
    for size, stride in zip(x.shape, x.stride(), strict=True):
        found = found.unsqueeze(-1) + torch.arange(size) * stride
    return found.flatten()


def overlaps_itself(x: torch.Tensor) -> bool:
    """Whether two elements of a view have one place."""
    return places(x).unique().numel() < x.numel()


@st.composite
def chains(draw: Draw, start: torch.Tensor, *, plain: bool = False) -> Chain:
    """Up to three views of `start`; `plain` leaves out what repeats or reinterprets elements."""
    chain: list[Step] = []
    x = start
    for _ in range(draw(st.integers(0, 3))):
        steps = [s for s in _steps(draw, x, plain=plain) if _possible(x, s)]
        if steps:
            step = draw(st.sampled_from(steps))
            chain.append(step)
            x = step(x)
    return tuple(chain)


def _possible(x: torch.Tensor, step: Step) -> bool:
    try:
        step(x)
    except RuntimeError:
        return False
    return True


def _steps(draw: Draw, x: torch.Tensor, *, plain: bool) -> list[Step]:
    """One candidate of every kind."""
    steps = [Step("unsqueeze", (draw(st.integers(0, x.dim())),)), Step("squeeze", ())]
    if not x.dim():
        return steps
    dim = draw(st.integers(0, x.dim() - 1))
    size = x.shape[dim]
    start = draw(st.integers(0, size))
    stop, step = draw(st.integers(start, size)), draw(st.integers(1, 3))
    steps += [
        Step("slice", (dim, start, stop, step)),
        Step("narrow", (dim, start, size - start)),
        Step("transpose", (dim, draw(st.integers(0, x.dim() - 1)))),
        Step("movedim", (dim, 0)),
        Step("view", (-1,)),
    ]
    if size:
        steps.append(Step("select", (dim, draw(st.integers(0, size - 1)))))
    if x.dim() > 1:
        steps.append(Step("diagonal", (draw(st.integers(-1, 1)),)))
    if not plain:
        wider = tuple(3 if n == 1 else n for n in x.shape)
        steps += [
            Step("unfold", (dim, draw(st.integers(0, min(3, size))), step)),
            Step("expand", (wider,)),
            Step("as_strided", ((3, 2), (1, 1), x.storage_offset())),
            Step("view", (torch.int16 if x.dtype == torch.float16 else torch.uint8,)),
        ]
    return steps
