"""How near the card's clock is to measured card times: splits of matmuls, and published rows.

`--data FILE.tsv` scores other measurements (columns as in bench/data/matmul_splits.tsv, on which
the constants were fitted). Every time is that of a program made for exactly the row's split.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from measured_splits import Measured, read
from measurement import Measurement, options, report
from published import published
from split_scores import (
    Clock,
    by_shape,
    clock,
    constant_regret,
    held_out,
    predictions,
    scores,
)

from openspyre.spec import SPYRE_CARD_V1

FITTED = Path(__file__).with_name("data") / "matmul_splits.tsv"
HELD_OUT_TARGET, FITTED_TARGET = 20.0, 15.0  # % of MAPE, card.md 5


def splits(rows: Sequence[Measured], timer: Clock, *, fitted: bool) -> Iterator[Measurement]:
    """Scores of measured splits."""
    found = scores(rows, predictions(rows, timer))
    shapes = len(by_shape(rows))
    about = f"{len(rows)} splits of {shapes} shapes, {'fitted' if fitted else 'not fitted'}"
    target = FITTED_TARGET if fitted else HELD_OUT_TARGET
    yield row("mape", 100 * found.mape, "%", target, f"{about}; ratio {found.ratio:.2f}")
    yield row("median", 100 * found.median, "%", None, about)
    yield replace(row("rank_correlation", found.rank_correlation, "", 0.8, "mean of the shapes"),
                  least=True)  # fmt: skip
    constant = constant_regret(rows)
    limit = 1.05 if constant is None else min(1.05, constant + 1e-9)
    yield row("regret", found.regret, "", limit, f"worst {found.worst_regret:.2f}")
    if constant is not None:
        yield row("regret_of_constant_4x8", constant, "", None, "")
    if fitted and shapes > 1:
        errors = held_out(rows, timer)
        detail = f"median {100 * statistics.median(errors):.1f} %; tiling chosen by other shapes"
        value = 100 * statistics.mean(errors)
        yield row("mape_leaving_a_shape_out", value, "%", HELD_OUT_TARGET, detail)


def sensitivity(rows: Sequence[Measured], timer: Clock) -> Iterator[Measurement]:
    """What half and twice of every guessed constant does to the predicted times."""
    base = predictions(rows, timer)

    def changed(**numbers: Any) -> tuple[float, str]:
        """Mean change in %, and in words."""
        with clock(replace(SPYRE_CARD_V1, **numbers)) as other:
            found = predictions(rows, other)
        change = 100 * (statistics.mean(found[r.split] / base[r.split] for r in rows) - 1)
        return change, f"{change:+.2f} %, MAPE {100 * scores(rows, found).mape:.1f} %"

    for fact in fields(SPYRE_CARD_V1):
        if fact.metadata["grade"] == "G":
            value = getattr(SPYRE_CARD_V1, fact.name)
            half, twice = (changed(**{fact.name: value * factor}) for factor in (0.5, 2))
            most = max(abs(half[0]), abs(twice[0]))
            detail = f"x0.5: {half[1]}; x2: {twice[1]}"
            yield row(f"sensitivity to {fact.name}", most, "%", None, detail)
    # card.md 3: the other reading of the measured PT rate
    change, said = changed(clock_ghz=1.1, pt_sustain=1.0)
    yield row("sensitivity to 1.1 GHz with full PT", abs(change), "%", None, said)


def row(case: str, value: float, unit: str, target: float | None, detail: str) -> Measurement:
    return Measurement("calibration", case, value, unit, target, detail)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument(
        "--data", type=Path, default=FITTED, help="a file of measured splits, tab-separated"
    )
    chosen = parser.parse_args()
    rows = read(chosen.data)
    with clock() as timer:
        found = list(splits(rows, timer, fitted=chosen.data.resolve() == FITTED.resolve()))
        found += sensitivity(rows, timer)
        found += [p.measurement() for p in published(timer)]
    report(found, chosen)


if __name__ == "__main__":
    main()
