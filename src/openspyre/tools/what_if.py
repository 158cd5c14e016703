"""Cards that are not: `--set cores=64 --set lx_bytes=4MiB --set dram_peak=400GB/s`."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, replace

from openspyre.errors import SpyreError
from openspyre.spec import CALIBRATED, SPYRE_CARD_V1, CardSpec

_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_UNITS: Mapping[str, Mapping[str, float]] = {
    "B/ns": {"B/ns": 1, "MB/s": 1e-3, "GB/s": 1, "TB/s": 1e3},
    "B/cycle": {"B/cycle": 1},
    "B": _BYTES,
    "GHz": {"GHz": 1, "MHz": 1e-3},
    "ns": {"ns": 1, "us": 1e3, "ms": 1e6},
    "us": {"us": 1, "ns": 1e-3, "ms": 1e3},
    "cycles": {"cycles": 1},
}
_FIELDS = {f.name: f for f in fields(CardSpec)}
_RESERVED = 64 << 10  # bytes of LX that are never usable, and the share of the rest: #3266
_USABLE = 0.8


def changed_card(changes: Sequence[str], card: CardSpec = SPYRE_CARD_V1) -> CardSpec:
    """The card with `name=value` changes.

    What is usable of LX follows lx_bytes as its source says, unless it is given itself.

    Raises:
        SpyreError: an unknown name, or a value that means nothing for it.
    """
    values: dict[str, float] = {}
    for change in changes:
        name, equals, text = (word.strip() for word in change.partition("="))
        if not equals:
            raise SpyreError(f"--set {change}: this is no change", hint="--set cores=64")
        values[name] = _value(name, text)
    if "lx_bytes" in values and "lx_usable" not in values:
        usable = _USABLE * (values["lx_bytes"] - _RESERVED)
        values["lx_usable"] = max(0, math.ceil(usable / card.lx_granule) * card.lx_granule)
    if values.get("lx_usable", card.lx_usable) > values.get("lx_bytes", card.lx_bytes):
        raise SpyreError("more of LX would be usable than there is", hint="set lx_bytes too")
    if values.get("lx_usable", 1) < 1:
        raise SpyreError(
            "nothing of LX would be usable", why=f"{_RESERVED >> 10} KiB of it never are"
        )
    changed = replace(card, **values)  # type: ignore[arg-type]  # whole where they must be
    _check(changed)
    return changed


def _check(card: CardSpec) -> None:
    """No rate is above the peak that bound P is made of."""
    for name in ("dram_oneway", "dram_few_cores"):
        if getattr(card, name) > card.dram_peak:
            raise SpyreError(
                f"{name} = {getattr(card, name):g} GB/s is above the peak of device memory",
                why=f"dram_peak is {card.dram_peak:g} GB/s",
                hint="set dram_peak too",
            )
    for name in ("pt_sustain", "pt_f32_rate"):
        if getattr(card, name) > 1:
            raise SpyreError(f"{name} is a share of PT's peak", why="it takes at most 1")


def notes(changes: Sequence[str]) -> tuple[str, ...]:
    """What a reader of the result must know about the changes."""
    names = {change.partition("=")[0].strip() for change in changes}
    found = []
    if names:
        found.append(f"a changed card: the held-out error is that of {CALIBRATED.version}")
    if "lx_bytes" in names and "lx_usable" not in names:
        found.append("lx_usable follows lx_bytes: 80 % of all but 64 KiB")
    if "dram_peak" in names and "dram_oneway" not in names:
        found.append("dram_peak moves bound P only; times follow dram_oneway")
    return tuple(found)


def _value(name: str, text: str) -> float:
    if name not in _FIELDS:
        near = difflib.get_close_matches(name, _FIELDS, 3)
        raise SpyreError(
            f"--set {name}: the card has no number of this name",
            hint=f"{' or '.join(near)}, or `spyre info`, which lists them"
            if near
            else "`spyre info` lists them",
        )
    field = _FIELDS[name]
    units = _units(field)
    found = re.fullmatch(r"(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)\s*([A-Za-z/]*)", text)
    if found is None or (found[2] and found[2] not in units):
        takes = f"a number, alone or with {', '.join(units)}" if units else "a number without unit"
        raise SpyreError(f"--set {name}={text} means nothing", why=f"it takes {takes}")
    value = float(found[1]) * units.get(found[2], 1)
    whole = field.type == "int"
    if not math.isfinite(value) or value <= 0 or (whole and value != int(value)):
        kind = "whole number" if whole else "number"
        raise SpyreError(f"--set {name}={text} means nothing", why=f"it takes a {kind} above 0")
    return int(value) if whole else value


def _units(field: Field[float]) -> Mapping[str, float]:
    """The units that a number takes: those of the first word of its own."""
    words = re.split(r"[ ,]", field.metadata["unit"])
    known = "/".join(words[0].split("/")[:2])
    return _UNITS.get(known, {})
