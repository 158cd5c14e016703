"""How far a model's values on the card are from float32: per module and output, both numerics.

`compare(model, inputs)` works for any module. The model runs three times, eagerly: in float32 on
the CPU, and in a 16-bit dtype on the card under `ieee` and under `card`. Errors of a module are
those of its result, so they include what came in.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table

from openspyre.device.register import require
from openspyre.errors import SpyreError
from openspyre.numerics import CARD, IEEE, Numerics

Inputs = tuple[Any, ...] | Mapping[str, Any]
Place = tuple[str, int, str]  # module, number of the call, part of the result


@dataclass(frozen=True, slots=True)
class Distance:
    """How far apart two tensors are.

    Attributes:
        relative_l2: norm of the difference over the norm of the exact values (0 if both are 0).
        max_abs: largest absolute difference.
        cosine: of the angle between them as vectors (1 if both are 0).
        not_finite: elements that are infinite or NaN in the one and not in the other; the numbers
            above leave out elements that are not finite in either.
    """

    relative_l2: float
    max_abs: float
    cosine: float
    not_finite: int


@dataclass(frozen=True, slots=True)
class Row:
    """One result of one call of a module.

    Attributes:
        module: its path in the model; the model itself is "".
        call: 0 for its first call.
        part: of a result that is not one tensor: its key or position.
        kind: class of the module.
    """

    module: str
    call: int
    part: str
    kind: str
    shape: tuple[int, ...]
    ieee: Distance
    card: Distance


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Rows in the order of the float32 run; the model's own outputs last.

    Attributes:
        dtype: of the model on the card.
        numerics: the switches of `card`.
        fallbacks: calls of ops that the CPU ran in place of the card, in both runs: they have the
            CPU's numerics.
    """

    dtype: torch.dtype
    numerics: Numerics
    rows: tuple[Row, ...]
    fallbacks: Mapping[str, int]

    @property
    def outputs(self) -> tuple[Row, ...]:
        """The rows of the model itself."""
        return tuple(row for row in self.rows if not row.module)

    def to_depth(self, depth: int) -> tuple[Row, ...]:
        """The rows of modules at most `depth` names deep (0: every row)."""
        return tuple(row for row in self.rows if not depth or len(row.module.split(".")) <= depth)


def compare(
    model: torch.nn.Module,
    inputs: Inputs,
    *,
    dtype: torch.dtype = torch.float16,
    numerics: Numerics = CARD,
    progress: Callable[[str], None] = lambda module: None,
) -> Accuracy:
    """Runs a module in float32 on the CPU and under both numerics on the card.

    Args:
        model: on the CPU, in float32; it is not changed.
        inputs: positional or keyword arguments of its call, on the CPU.
        dtype: of parameters and floating inputs on the card.
        numerics: what "card" means: `Numerics(Mode.CARD, ...)`.
        progress: called with the path of every module that finished, in all three runs.

    Raises:
        SpyreError: the dtype is not a 16-bit float, or the model gives no floating tensor.
    """
    if dtype not in (torch.float16, torch.bfloat16):
        raise SpyreError(
            f"accuracy of {dtype} is not a question of numerics",
            why="the card's own format stands for float16 and bfloat16",
            hint="use float16 or bfloat16",
        )
    require()
    exact: dict[Place, torch.Tensor] = {}
    kinds: dict[Place, str] = {}

    def keep(place: Place, kind: str, value: torch.Tensor) -> None:
        exact[place], kinds[place] = value.clone(), kind

    _run(model, inputs, keep, progress)
    if not exact:
        raise SpyreError(
            f"{type(model).__name__} gives nothing to compare",
            why="no module of it has a floating result",
        )
    on_card = copy.deepcopy(model).to(dtype).to("spyre")
    placed = _moved(inputs, dtype)
    device = torch.get_device_module("spyre")
    before: Counter[str] = Counter(device.fallbacks())
    found: list[dict[Place, Distance]] = []
    for chosen in (IEEE, numerics):
        distances: dict[Place, Distance] = {}

        def measure(
            place: Place,
            kind: str,
            value: torch.Tensor,
            distances: dict[Place, Distance] = distances,
        ) -> None:
            if place in exact and exact[place].shape == value.shape:
                distances[place] = distance(value, exact[place])

        with device.numerics(chosen):
            _run(on_card, placed, measure, progress)
        found.append(distances)
    rows = tuple(
        Row(*place, kinds[place], tuple(value.shape), found[0][place], found[1][place])
        for place, value in exact.items()
        if place in found[0] and place in found[1]
    )
    fallbacks = dict(Counter(device.fallbacks()) - before)
    return Accuracy(dtype, numerics, rows, fallbacks)


def distance(value: torch.Tensor, exact: torch.Tensor) -> Distance:
    """How far a tensor is from the exact one of its shape; any device and dtype."""
    a, b = value.detach().cpu().double().flatten(), exact.detach().cpu().double().flatten()
    both = a.isfinite() & b.isfinite()
    not_finite = int((a.isfinite() != b.isfinite()).sum())
    a, b = a[both], b[both]
    gap, size, length = float((a - b).norm()), float(b.norm()), float(a.norm())
    relative = gap / size if size else (float("inf") if gap else 0.0)
    product = size * length
    cosine = float(a @ b) / product if product else float(size == length)
    largest = float((a - b).abs().max()) if a.numel() else 0.0
    return Distance(relative, largest, min(1.0, cosine), not_finite)


def _run(
    model: torch.nn.Module,
    inputs: Inputs,
    see: Callable[[Place, str, torch.Tensor], None],
    progress: Callable[[str], None],
) -> None:
    """Calls the model; `see` gets every floating result of every call of every module."""
    calls: Counter[str] = Counter()

    def hook(name: str) -> Callable[[torch.nn.Module, Any, Any], None]:
        def look(module: torch.nn.Module, _: Any, result: Any) -> None:
            for part, value in _tensors(result, ""):
                see((name, calls[name], part), type(module).__name__, value.detach().cpu())
            calls[name] += 1
            progress(name)

        return look

    hooks = [module.register_forward_hook(hook(name)) for name, module in model.named_modules()]
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            if isinstance(inputs, Mapping):
                model(**inputs)
            else:
                model(*inputs)
    finally:
        for handle in hooks:
            handle.remove()
        for module, was in training.items():
            module.training = was


def _tensors(value: Any, at: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The floating tensors of a result, each with its place in it."""
    match value:
        case torch.Tensor():
            if value.is_floating_point():
                yield at, value
        case Mapping():
            for key, item in value.items():
                yield from _tensors(item, f"{at}.{key}" if at else str(key))
        case tuple() | list():
            for position, item in enumerate(value):
                yield from _tensors(item, f"{at}.{position}" if at else str(position))


def _moved(value: Any, dtype: torch.dtype) -> Any:
    """The inputs on the card, floating ones in its dtype."""
    match value:
        case torch.Tensor():
            return (value.to(dtype) if value.is_floating_point() else value).to("spyre")
        case Mapping():
            return {key: _moved(item, dtype) for key, item in value.items()}
        case tuple() | list():
            return type(value)(_moved(item, dtype) for item in value)
    return value


def accuracy_table(found: Accuracy, depth: int) -> Table:
    """One line for every row to a depth; the largest errors are what to look at."""
    table = Table(
        title=f"Against float32 on the CPU: {str(found.dtype).removeprefix('torch.')} on the card",
        title_justify="left",
    )
    table.add_column("module")
    table.add_column("result")
    for numerics in ("ieee", str(found.numerics)):
        table.add_column(f"{numerics}\nrelative L2", justify="right")
        table.add_column("\nmax abs", justify="right")
        table.add_column("\ncosine", justify="right")
    for row in found.to_depth(depth):
        name = row.module or "(output)"
        shape = "x".join(map(str, row.shape)) or "scalar"
        cells = [f"{name} #{row.call}" if row.call else name, f"{row.part} {shape}".strip()]
        for far in (row.ieee, row.card):
            bad = f" ({far.not_finite} not finite)" if far.not_finite else ""
            cells += [f"{far.relative_l2:.2e}{bad}", f"{far.max_abs:.2e}", f"{far.cosine:.6f}"]
        table.add_row(*cells)
    return table
