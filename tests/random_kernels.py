"""What holds for any kernel: no stage changes its meaning, its program is proved, the card agrees.

A kernel for which it does not hold is made smaller, op by op, while it still does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from openspyre.compiler.emit import emit
from openspyre.compiler.pipeline import plan_kernel
from openspyre.errors import BrokenInvariant, SpyreError
from openspyre.ir.kernel import DType, Kernel, Kind, Load, Op, Role, Tensor, walk
from openspyre.ir.reference import STORAGE, evaluate
from openspyre.ir.text import contiguous_strides
from openspyre.runtime.check import proved
from openspyre.spec import SPYRE_CARD_V1, CardSpec
from tests.card_runner import Array, as_stored, random_inputs, run_program

Sizes = Mapping[str, int]
NO_SIZES: Sizes = MappingProxyType({})
Stages = list[tuple[str, Kernel]]
_ROUNDING = {DType.F16: 4e-3, DType.BF16: 3e-2, DType.F32: 1e-4}
_CRASHES = (BrokenInvariant, SpyreError, AssertionError, ArithmeticError, LookupError, ValueError)


def inputs_of(kernel: Kernel, sizes: Sizes = NO_SIZES, seed: int = 0) -> dict[str, Any]:
    """Random inputs; what is looked up stays inside of what it indexes, and is distinct."""
    given: dict[str, Any] = random_inputs(kernel, sizes, seed)
    for name in kernel.arguments:
        tensor = kernel.tensors[name]
        if tensor.role is Role.OUTPUT:  # it may be written in part
            given[name] = np.zeros([e.evaluate(sizes) for e in tensor.shape], STORAGE[tensor.dtype])
    rng = np.random.default_rng(seed)
    for op in kernel.ops:
        for lookup in op.lookups:
            for name in _feeding(kernel, lookup.tensor) & given.keys():
                if kernel.tensors[name].dtype in (DType.I64, DType.I32):
                    shape = given[name].shape
                    count, below = int(np.prod(shape)), max(lookup.size.evaluate(sizes), 1)
                    order = np.resize(rng.permutation(below), count)
                    given[name] = order.reshape(shape).astype(given[name].dtype)
    return as_stored(kernel, given, sizes)


def _feeding(kernel: Kernel, tensor: str) -> set[str]:
    """The tensor, and all from which it is computed."""
    found = {tensor}
    for op in reversed(kernel.ops):
        if op.out.tensor in found:
            found |= {n.tensor for n in walk(op.body) if isinstance(n, Load)}
    return found


def changed_stage(kernel: Kernel, stages: Stages, sizes: Sizes = NO_SIZES) -> str:
    """What the first stage that changes the meaning of a kernel does; empty if none does."""
    inputs = inputs_of(kernel, sizes)
    wanted = evaluate(kernel, inputs, sizes)
    before = kernel
    for name, after in stages:
        if (after.ops, after.tensors) != (before.ops, before.tensors):
            found = differing(evaluate(after, inputs, sizes), wanted, kernel)
            if found:
                return f"stage {name} changes {found}"
        before = after
    return ""


def differing(got: Mapping[str, Array], wanted: Mapping[str, Array], kernel: Kernel) -> str:
    """The first tensor that differs by more than rounding, and by how much; empty if none."""
    narrow = {t.dtype for t in kernel.tensors.values()} & _ROUNDING.keys()
    for name, right in wanted.items():
        if not kernel.tensors[name].dtype.is_float:
            if not np.array_equal(got[name], right):
                return f"{name} in {int((got[name] != right).sum())} elements"
            continue
        rounding = max((_ROUNDING[d] for d in narrow), default=1e-4)
        size = np.abs(right.astype(np.float64))
        finite = size[np.isfinite(size)]
        close = rounding * max(1.0, float(finite.max(initial=0.0)))
        same = np.isclose(got[name], right, rtol=rounding, atol=close, equal_nan=True)
        if not same.all():
            return f"{name} in {int((~same).sum())} elements"
    return ""


def planned(kernel: Kernel, card: CardSpec = SPYRE_CARD_V1) -> tuple[Kernel, Stages]:
    """The planned kernel, and the kernel after every stage."""
    stages: Stages = []
    return plan_kernel(kernel, card, lambda name, k: stages.append((name, k))), stages


def problem(kernel: Kernel, sizes: Sizes = NO_SIZES, card: CardSpec = SPYRE_CARD_V1) -> str:
    """What is wrong with how a kernel compiles, in one line; empty if nothing is."""
    try:
        plan, stages = planned(kernel, card)
        if found := changed_stage(kernel, stages, sizes):
            return found
        program = proved(emit(plan, card), kernel, card, sizes)
        inputs = inputs_of(kernel, sizes)
        got, _ = run_program(program, plan, inputs, sizes, card)
        found = differing(got, evaluate(kernel, inputs, sizes), kernel)
        return f"the card changes {found}" if found else ""
    except _CRASHES as error:
        return f"{type(error).__name__}: {error}".split("\n")[0]


def alike(one: str, other: str) -> bool:
    """Whether two problems are of one kind."""
    return one.split(" ")[0] == other.split(" ")[0]


def smallest(kernel: Kernel, sizes: Sizes = NO_SIZES) -> Kernel:
    """A kernel with a problem, less all ops without which the problem stays."""
    first = problem(kernel, sizes)

    def fails(smaller: Kernel) -> bool:
        return alike(problem(smaller, sizes), first)

    while True:
        smaller = next((k for k in _with_one_op_less(kernel) if fails(k)), None)
        if smaller is None:
            return kernel
        kernel = smaller


def _with_one_op_less(kernel: Kernel) -> Iterator[Kernel]:
    if len(kernel.ops) < 2:
        return
    for number in reversed(range(len(kernel.ops))):
        yield of_ops(kernel, kernel.ops[:number] + kernel.ops[number + 1 :])


def of_ops(kernel: Kernel, ops: tuple[Op, ...]) -> Kernel:
    """The kernel that does only these ops.

    What another op wrote is an input; what another op read is an output.
    """
    written = {op.out.tensor for op in ops}
    read = {n.tensor for op in ops for n in walk(op.body) if isinstance(n, Load)}
    read |= {lookup.tensor for op in ops for lookup in op.lookups}
    read |= {op.out.tensor for op in ops if op.accumulate}
    missing = _read_before_written(ops)  # also what an op wrote in part that is gone
    missing |= {op.out.tensor for op in kernel.ops if op not in ops} & written
    tensors: dict[str, Tensor] = {}
    for name, tensor in kernel.tensors.items():
        if name not in written | read:
            continue
        role = tensor.role
        if name not in written and role is not Role.SCALAR:
            role = Role.INPUT
        elif role in (Role.LOCAL, Role.OUTPUT) and name in missing:
            role = Role.MUTATED
        elif role is Role.LOCAL and name not in read:
            role = Role.OUTPUT
        local = tensor.role is Role.LOCAL and role is not Role.LOCAL
        strides = contiguous_strides(tensor.shape) if local else tensor.strides
        tensors[name] = replace(tensor, role=role, strides=strides)
    arguments = [n for n in kernel.arguments if n in tensors]
    arguments += [n for n, t in tensors.items() if t.role is not Role.LOCAL and n not in arguments]
    return replace(kernel, ops=ops, tensors=tensors, arguments=tuple(arguments))


def _read_before_written(ops: tuple[Op, ...]) -> set[str]:
    written: set[str] = set()
    found: set[str] = set()
    for op in ops:
        read = {n.tensor for n in walk(op.body) if isinstance(n, Load)}
        read |= {lookup.tensor for lookup in op.lookups}
        if op.accumulate or op.kind is Kind.SCATTER:
            read.add(op.out.tensor)
        found |= read - written
        written.add(op.out.tensor)
    return found
