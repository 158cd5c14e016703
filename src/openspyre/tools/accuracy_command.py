"""`spyre accuracy`: runs the comparison with a progress bar and prints it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from openspyre.errors import SpyreError
from openspyre.numerics import parse_numerics
from openspyre.tools.accuracy import Accuracy, accuracy_table, compare
from openspyre.tools.accuracy_models import Subject, load_subject

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def report(
    name: str,
    dtype: str,
    batch: int,
    length: int,
    seed: int,
    numerics: str,
    depth: int,
    as_json: bool,
) -> int:
    """Prints the accuracy of what `name` means; the exit code."""
    console = Console(stderr=as_json, width=None if sys.stdout.isatty() else 150)
    try:
        subject = load_subject(name, batch=batch, length=length, seed=seed)
        found = _measured(subject, dtype, numerics, console)
    except (SpyreError, torch.OutOfMemoryError) as error:
        print(f"spyre accuracy: {error}", file=sys.stderr)
        return 2
    if as_json:
        print(json.dumps(as_dict(subject, found), indent=1))
    else:
        _print(subject, found, depth, console)
    return 0


def _measured(subject: Subject, dtype: str, numerics: str, console: Console) -> Accuracy:
    if dtype not in DTYPES:
        raise SpyreError(f"there is no dtype {dtype} to compare", hint=f"use {', '.join(DTYPES)}")
    chosen = parse_numerics(numerics)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        modules = sum(1 for _ in subject.model.modules())
        task = bar.add_task("float32, ieee, card", total=3 * modules)
        return compare(
            subject.model,
            subject.inputs,
            dtype=DTYPES[dtype],
            numerics=chosen,
            progress=lambda module: bar.advance(task),
        )


def as_dict(subject: Subject, found: Accuracy) -> dict[str, Any]:
    """What `--json` prints: every row, whatever the depth."""
    return {
        "model": subject.name,
        "trained": subject.trained,
        "dtype": str(found.dtype).removeprefix("torch."),
        "numerics": str(found.numerics),
        "rows": [asdict(row) for row in found.rows],
        "fallbacks": dict(found.fallbacks),
    }


def _print(subject: Subject, found: Accuracy, depth: int, console: Console) -> None:
    if not subject.trained:
        console.print(f"{subject.name} has no weights: they are random, and so are its errors.")
    console.print(accuracy_table(found, depth))
    if hidden := len(found.rows) - len(found.to_depth(depth)):
        console.print(f"{hidden} deeper modules are not shown (--depth 0 shows all).")
    for name, count in found.fallbacks.items():
        console.print(f"{name} ran on the CPU {count} times, with its numerics.")
