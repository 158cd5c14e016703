"""What a tiny model of each transformers type is made of: `tiny.toml`, read once."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("tiny.toml")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What one type needs besides the rules; the fields are those that `tiny.toml` explains."""

    config: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    model: str = ""
    forward: bool = True
    generate: bool = True
    needs: str = ""
    cannot: str = ""


@dataclass(frozen=True, slots=True)
class Ids:
    """Places of special tokens in the tiny vocabulary.

    Attributes:
        named: by the name before `_token_id`, `_token_index` or `_id`.
        first_free: others follow from here on.
        prompt: half-open range of what prompts draw.
    """

    named: Mapping[str, int]
    first_free: int
    prompt: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Recipes:
    """The rules for all types, and what single types need.

    Attributes:
        sizes: of fields that are a number by default.
        unset: of fields that are None by default.
        layer_counts: names of fields that count layers.
    """

    sizes: Mapping[str, int]
    unset: Mapping[str, int]
    ids: Ids
    layer_counts: tuple[str, ...]
    types: Mapping[str, Recipe]

    def of(self, model_type: str) -> Recipe:
        return self.types.get(model_type, Recipe())


@cache
def recipes() -> Recipes:
    """The shipped recipes."""
    found = tomllib.loads(FILE.read_text())
    ids = dict(found["ids"])
    low, high = ids.pop("prompt")
    free = ids.pop("first_free")
    types = {name: _recipe(table) for name, table in found.get("types", {}).items()}
    return Recipes(
        found["sizes"],
        found["unset"],
        Ids(ids, free, (low, high)),
        tuple(found["layers"]["counts"]),
        types,
    )


def _recipe(table: Mapping[str, Any]) -> Recipe:
    values = dict(table)
    return Recipe(without=tuple(values.pop("without", ())), **values)
