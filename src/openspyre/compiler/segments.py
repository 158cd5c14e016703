"""Equal segments: the layers of a model are planned once.

Every op gets a class number. Two ops of one class do the same to tensors of the same form, and
what they read was written, and what they write is read, equally far away. So two runs of ops with
equal class numbers can take the same plan, up to names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from openspyre.compiler.per_op import once_per_op
from openspyre.compiler.rewrite import reads, rewritten
from openspyre.compiler.stores import distinct_lookups
from openspyre.ir.kernel import Kernel, Load, Op, Scalar, Step, Tensor

REACH = 64
"""Ops: further apart than this they never share a step, and how far does not matter."""


def classes(kernel: Kernel) -> tuple[int, ...]:
    """The class number of every op."""
    writers: dict[str, list[int]] = defaultdict(list)
    readers: dict[str, list[int]] = defaultdict(list)
    copied = sum(len(step.ops) for step in kernel.steps[: kernel.prologue])
    for position, op in enumerate(kernel.ops):
        if position >= copied:  # where the copy of a weight is made does not matter
            writers[op.out.tensor].append(position)
        for tensor in dict.fromkeys(t for t, _ in reads(op)):
            readers[tensor].append(position)
    numbers: dict[object, int] = {}
    found = []
    for position, op in enumerate(kernel.ops):
        key = (op_form(kernel, op), _distances(op, position, writers, readers))
        found.append(numbers.setdefault(key, len(numbers)))
    return tuple(found)


def _distances(
    op: Op, position: int, writers: Mapping[str, list[int]], readers: Mapping[str, list[int]]
) -> object:
    def away(others: list[int]) -> frozenset[int | str]:
        near = (p - position for p in others)
        return frozenset(_distance(d) for d in near)

    names = dict.fromkeys([*(t for t, _ in reads(op)), op.out.tensor])
    return tuple((away(writers[n]), away(readers[n]) if writers[n] else None) for n in names)


def _distance(away: int) -> int | str:
    if -REACH <= away <= REACH:
        return away
    return "before" if away < 0 else "after"


@once_per_op
def op_form(kernel: Kernel, op: Op) -> object:
    """The op with its tensors numbered, and what those tensors are."""
    used = dict.fromkeys([*(t for t, _ in reads(op)), op.out.tensor])
    names = {t: f"t{n}" for n, t in enumerate(used)}

    def node(value: Scalar) -> Scalar:
        return replace(value, tensor=names[value.tensor]) if isinstance(value, Load) else value

    lookups = tuple(replace(k, tensor=names[k.tensor]) for k in op.lookups)
    tensors = tuple(_tensor_form(kernel.tensors[t], kernel) for t in names)
    return (
        op.kind, op.dims, op.rdims, rewritten(op.body, node), op.out.index, op.reduce, lookups,
        op.accumulate, tensors, tuple(distinct_lookups(op, kernel).items()),
    )  # fmt: skip


def _tensor_form(tensor: Tensor, kernel: Kernel) -> object:
    layout = kernel.layouts.get(tensor.name)
    return tensor.dtype, tensor.shape, tensor.role, tensor.strides, layout


def step_keys(kernel: Kernel) -> Iterator[tuple[Step, object]]:
    """Every step with a key; steps of equal keys are equal up to names and tile loops."""
    number = dict(zip(kernel.by_name, classes(kernel), strict=True))
    for step in kernel.steps:
        tensors = {name: n for n, name in enumerate(step_tensors(kernel, step))}
        uses = tuple(tensors[name] for name in _used(kernel, step))
        division = kernel.divisions.get(step.name)
        binding = tuple(tuple(sorted(step.binding[n].items())) for n in step.ops)
        yield step, (tuple(number[n] for n in step.ops), uses, step.axes, binding, division)


def step_tensors(kernel: Kernel, step: Step) -> tuple[str, ...]:
    """The tensors of a step in the order of their first use, alike for steps of equal keys."""
    return tuple(dict.fromkeys(_used(kernel, step)))


def _used(kernel: Kernel, step: Step) -> Iterator[str]:
    for name in step.ops:
        op = kernel.by_name[name]
        yield from (tensor for tensor, _ in reads(op))
        yield op.out.tensor
