"""How well the card's clock predicts measured splits of matmuls, and which split it would pick."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from measured_splits import Measured
from split_matmul import VENDOR, Split, Tiling, split_matmul

from openspyre.card.native import Report, SoftwareCard
from openspyre.ir.program import Program
from openspyre.spec import SPYRE_CARD_V1, CardSpec

Shape = tuple[int, int, int, int]
Predicted = Mapping[Split, float]  # us
_Row = TypeVar("_Row")
# Alternatives that a shape left out of the fit is scored with: the best for the other shapes.
TILINGS = tuple(
    Tiling(points, columns, widest)
    for points in (1 << 14, 1 << 15, 1 << 16)
    for columns in (64, 128, 256, 512, 1024)
    for widest in (256, 512, 1024)
    if columns <= widest
)


@dataclass(frozen=True, slots=True)
class Scores:
    """Errors as shares; regret = measured time of the split that looks best / best measured."""

    mape: float
    median: float
    rank_correlation: float  # Spearman's, mean over shapes
    regret: float  # mean over shapes
    worst_regret: float
    ratio: float  # predicted / measured, mean


class Clock:
    """The timing engine of one card, for programs whose arguments lie at stick borders."""

    def __init__(self, card: SoftwareCard, spec: CardSpec) -> None:
        self.card, self.spec = card, spec

    def us(self, program: Program) -> float:
        return self.spec.microseconds(self.report(program).cycles)

    def report(self, program: Program) -> Report:
        loaded = self.card.load_program(program)
        try:
            block = self.card.fill(loaded, [0] * program.arguments[0])
            return self.card.time(loaded, block)
        finally:
            self.card.unload(loaded)


@contextmanager
def clock(spec: CardSpec = SPYRE_CARD_V1) -> Iterator[Clock]:
    with SoftwareCard(memory=1 << 30, threads=1, spec=spec) as card:
        yield Clock(card, spec)


def predictions(
    rows: Sequence[Measured], timer: Clock, tiling: Tiling = VENDOR
) -> dict[Split, float]:
    return {row.split: timer.us(split_matmul(row.split, tiling)) for row in rows}


def scores(rows: Sequence[Measured], predicted: Predicted) -> Scores:
    errors = [abs(predicted[r.split] / r.us - 1) for r in rows]
    ratio = statistics.mean(predicted[r.split] / r.us for r in rows)
    shapes = by_shape(rows)
    ranks = [rank_correlation(group, predicted) for group in shapes.values() if len(group) > 2]
    regrets = [
        regret(group, lambda g: min(g, key=lambda r: predicted[r.split]))
        for group in shapes.values()
    ]
    return Scores(
        statistics.mean(errors), statistics.median(errors), statistics.mean(ranks or [0.0]),
        statistics.mean(regrets), max(regrets), ratio,
    )  # fmt: skip


def by_shape(rows: Sequence[Measured]) -> dict[Shape, list[Measured]]:
    return grouped(rows, lambda row: row.split.shape)


def grouped(rows: Sequence[_Row], key: Callable[[_Row], Shape]) -> dict[Shape, list[_Row]]:
    found: dict[Shape, list[_Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def regret(group: Sequence[Measured], pick: Callable[[Sequence[Measured]], Measured]) -> float:
    return pick(group).us / min(r.us for r in group)


def constant_regret(rows: Sequence[Measured]) -> float | None:
    """Mean regret of always taking (m, n) = (4, 8), over the shapes where that was measured."""
    found = []
    for group in by_shape(rows).values():
        fixed = [r for r in group if r.split.division == (1, 4, 8, 1)]
        if fixed:
            found.append(regret(group, lambda _, chosen=fixed[0]: chosen))
    return statistics.mean(found) if found else None


def rank_correlation(group: Sequence[Measured], predicted: Predicted) -> float:
    """Spearman's, of measured and predicted times of one shape."""
    a = _ranks([r.us for r in group])
    b = _ranks([predicted[r.split] for r in group])
    if len(set(a)) == 1 or len(set(b)) == 1:
        return 0.0
    return statistics.correlation(a, b)


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0, the mean of them for equal values."""
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values]


def held_out(rows: Sequence[Measured], timer: Clock) -> list[float]:
    """Errors of every row when the tiling is chosen by the other shapes alone."""
    tried = [(t, predictions(rows, timer, t)) for t in TILINGS]
    found = []
    for shape, group in by_shape(rows).items():
        others = [r for r in rows if r.split.shape != shape]

        def error(predicted: Predicted, others: Sequence[Measured] = others) -> float:
            return statistics.mean(abs(predicted[r.split] / r.us - 1) for r in others)

        best = min(tried, key=lambda t: error(t[1]))[1]
        found += [abs(best[r.split] / r.us - 1) for r in group]
    return found
