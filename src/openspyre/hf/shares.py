"""How much of what people download runs: outcomes weighted by `downloads.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from openspyre.hf.outcomes import Outcome, State

FILE = Path(__file__).with_name("downloads.toml")


@dataclass(frozen=True, slots=True)
class Use:
    """Downloads for one use, embeddings or generation.

    Attributes:
        need: percent of downloads that must run on the card alone.
        shares: percent, by model type, most first.
    """

    name: str
    need: float
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Share:
    """Percent of the downloads of a use.

    Attributes:
        tried: of types that were tried.
        right: of these, of types that are right both ways.
        alone: of these, of types that need no op on the CPU.
    """

    use: str
    need: float
    tried: float
    right: float
    alone: float


@cache
def uses() -> tuple[Use, ...]:
    """The uses and their shares."""
    found = tomllib.loads(FILE.read_text())
    return tuple(Use(name, table["need"], table["shares"]) for name, table in found.items())


def weighted_types() -> tuple[str, ...]:
    """Types that have a share, by use, most downloads first."""
    return tuple(dict.fromkeys(name for use in uses() for name in use.shares))


def shares(outcomes: Iterable[Outcome]) -> tuple[Share, ...]:
    """The shares of every use."""
    states = {outcome.type: outcome.state for outcome in outcomes}
    tried = [state for state in State if state is not State.BUILT]

    def of(use: Use, *wanted: State) -> float:
        return round(sum(s for name, s in use.shares.items() if states.get(name) in wanted), 1)

    return tuple(
        Share(
            use.name, use.need, of(use, *tried), of(use, State.RIGHT, State.FALLBACKS),
            of(use, State.RIGHT),
        )
        for use in uses()
    )  # fmt: skip
