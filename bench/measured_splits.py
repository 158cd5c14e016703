"""Reads files of measured splits: one row per matmul, work division and time."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from split_matmul import Split

from openspyre.spec import SPYRE_CARD_V1

COLUMNS = ("B", "M", "N", "K", "split_b", "split_m", "split_n", "split_k", "measured_us")
_LISTED = 10  # wrong lines that are named
_HUNG = ("", "-", "hung", "nan", "inf")  # what stands for a time that was not measured


@dataclass(frozen=True, slots=True)
class Measured:
    """One row of a file of measurements."""

    split: Split
    us: float


def read(path: Path, cores: int = SPYRE_CARD_V1.cores) -> list[Measured]:
    """The rows of a tab-separated file whose first line names its columns.

    The columns may come in any order, others are ignored, and so are empty lines and those that
    begin with #. Parts need not divide their dim. A row without a time (the card hung) is left out
    and named on stderr.

    Raises:
        SystemExit: the file cannot be read, lacks a column, or has rows that are no measurements;
            each with its line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SystemExit(f"cannot read {path}: {error}") from None
    lines = [
        (number, line)
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lines:
        raise SystemExit(f"{path} has no header; it names the columns {', '.join(COLUMNS)}")
    header = _header(path, *lines[0])
    found: list[Measured] = []
    wrong: list[str] = []
    for number, line in lines[1:]:
        row = dict(zip(header, (cell.strip() for cell in line.split("\t")), strict=False))
        if problem := _problem(row, cores):
            wrong.append(f"{path}:{number}: {problem}")
        elif row["measured_us"].lower() in _HUNG:
            print(f"{path}:{number}: left out, it has no time", file=sys.stderr)
        else:
            split = Split(*(_whole(row[column]) for column in COLUMNS[:-1]))
            found.append(Measured(split, float(row["measured_us"])))
    if wrong:
        more = [f"and {len(wrong) - _LISTED} more"] if len(wrong) > _LISTED else []
        raise SystemExit("\n".join([*wrong[:_LISTED], *more]))
    if not found:
        raise SystemExit(f"{path} has no measurements")
    return found


def _header(path: Path, number: int, line: str) -> Sequence[str]:
    header = [name.strip() for name in line.split("\t")]
    if missing := [column for column in COLUMNS if column not in header]:
        hint = "" if "\t" in line else "; columns are separated by tabs"
        raise SystemExit(f"{path}:{number}: there is no column {', '.join(missing)}{hint}")
    if twice := [column for column in COLUMNS if header.count(column) > 1]:
        raise SystemExit(f"{path}:{number}: column {', '.join(twice)} stands there twice")
    return header


def _problem(row: Mapping[str, str], cores: int) -> str:
    """What is wrong with a row, "" if nothing is."""
    if missing := [column for column in COLUMNS[:-1] if not row.get(column)]:
        return f"{', '.join(missing)} is missing"
    if "measured_us" not in row:
        return "measured_us is missing"
    for column in COLUMNS[:-1]:
        if _whole(row[column]) < 1:
            return f"{column} is {row[column]}, not a whole number from 1"
    used = math.prod(_whole(row[column]) for column in COLUMNS[4:8])
    if used > cores:
        return f"the split takes {used} cores, the card has {cores}"
    us = row["measured_us"]
    if us.lower() in _HUNG:
        return ""
    try:
        return "" if float(us) > 0 and math.isfinite(float(us)) else f"measured_us is {us}"
    except ValueError:
        return f"measured_us is {us}, not a number"


def _whole(text: str) -> int:
    """The integer, 0 if it is none."""
    try:
        value = float(text)
    except ValueError:
        return 0
    return int(value) if math.isfinite(value) and value == int(value) else 0
