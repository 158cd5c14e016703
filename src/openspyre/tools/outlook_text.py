"""What `spyre explain MODEL` says first: whether the model will run, and at what cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from openspyre.spec import CALIBRATED

if TYPE_CHECKING:  # needs torch
    from openspyre.tools.unlaunched import Outlook

_GIB = 1 << 30


def show_outlook(seen: Outlook, console: Console) -> None:
    """Prints the verdict, the phases, the memory and the ops."""
    for line in _lines(seen):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if seen.phases:
        console.print(_phases(seen))
    console.print(_ops(seen))
    console.print()


def _lines(seen: Outlook) -> Iterator[str]:
    count = f"{seen.model}, {seen.parameters / 1e9:,.3f} billion parameters"
    if seen.why:
        yield f"{count}: it does not run as one graph: {seen.why}"
    elif not seen.fits:
        yield f"{count}: it compiles, and does NOT fit in the card's memory"
    elif seen.fallbacks:
        calls = sum(one.calls for one in seen.fallbacks)
        yield f"{count}: it runs; {calls} calls on the CPU"
    else:
        yield f"{count}: it runs on the card"
    sizes = [seen.weights, max((p.cache for p in seen.phases), default=0)]
    sizes += [max((p.activations for p in seen.phases), default=0), seen.needed, seen.card]
    weights, cache, results, needed, card = (f"{size / _GIB:,.3f} GiB" for size in sizes)
    yield (
        f"memory: {weights} of weights, {cache} of cache, {results} of results and intermediates:"
        f" {needed} of {card}"
    )
    if seen.layers[0]:
        yield f"{seen.layers[0]} of {seen.layers[1]} layers were traced; the others are like them"


def _phases(seen: Outlook) -> Table:
    table = Table("phase", "tokens", "context", "card time, us", "held out", box=None)
    for phase in seen.phases:
        held_out = f"+-{100 * CALIBRATED.held_out:.1f} %"
        sizes = f"{phase.tokens}", f"{phase.context}"
        table.add_row(phase.name, *sizes, f"{phase.us:,.1f}", held_out)
    return table


def _ops(seen: Outlook) -> Table:
    by_op: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for (op, dtype), calls in seen.ops.items():
        by_op[op][dtype] = calls
    off_card = {one.op.removeprefix("aten.").removesuffix(".default") for one in seen.fallbacks}
    table = Table("op", "calls", "dtypes", "where", box=None)
    for op, dtypes in sorted(by_op.items(), key=lambda item: -sum(item[1].values())):
        where = "CPU" if op in off_card else "card"
        total = str(sum(dtypes.values()))
        table.add_row(escape(op), total, ", ".join(dtypes), where)
    return table
