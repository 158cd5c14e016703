"""Which ops of a step PT and SFU can work on at a time.

Both take their ops in order, and an op waits for those that wrote what it reads. Of whatever is
done by then in any case, an op's result may take the bytes in LX. For bytes that the other unit
still reads, it would wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from openspyre.compiler.rewrite import reads
from openspyre.ir.kernel import Kind, Op


def units_begin(ops: Sequence[Op]) -> tuple[int, ...]:
    """For every op of a step the first one that may still run when it begins, or itself."""
    writers: dict[str, list[int]] = {}
    last: dict[bool, int] = {}
    done: list[set[int]] = []
    found = []
    for position, op in enumerate(ops):
        unit = op.kind is Kind.CONTRACT
        before = {last[unit]} if unit in last else set()
        for tensor, _ in reads(op):
            before.update(writers.get(tensor, ()))
        done.append(before.union(*(done[p] for p in before)))
        found.append(next((p for p in range(position) if p not in done[position]), position))
        writers.setdefault(op.out.tensor, []).append(position)
        last[unit] = position
    return tuple(found)
