"""What depends on an op and its tensors alone: found once for all plans of a kernel."""

from __future__ import annotations

from dataclasses import replace

from openspyre.compiler.per_op import once_per_op
from openspyre.ir.kernel import DType, Kernel, Op
from openspyre.ir.text import parse_kernel

TEXT = """
kernel add
arguments x y
input x: f16[5, 70]
output y: f16[5, 70]
op one map i0:5 i1:70
  y[i0, i1] <- f16(x[i0, i1] + 1.0)
"""


def test_another_plan_asks_for_nothing_and_other_tensors_for_all() -> None:
    asked: list[DType] = []

    @once_per_op
    def read(kernel: Kernel, op: Op) -> DType:
        asked.append(kernel.tensors["x"].dtype)
        return asked[-1]

    kernel = parse_kernel(TEXT)
    (op,) = kernel.ops
    assert [read(kernel, op), read(replace(kernel, weights=("x",)), op)] == [DType.F16] * 2
    assert asked == [DType.F16]
    wide = {**kernel.tensors, "x": replace(kernel.tensors["x"], dtype=DType.F32)}
    assert read(replace(kernel, tensors=wide), op) is DType.F32
    assert read(kernel, op) is DType.F16
    assert len(asked) == 2


def test_functions_and_ops_are_told_apart() -> None:
    kernel = parse_kernel(TEXT)
    (op,) = kernel.ops
    name = once_per_op(lambda _, op: op.name)
    kind = once_per_op(lambda _, op: op.kind.value)
    other = replace(op, name="two")  # stands in no kernel
    assert [name(kernel, op), kind(kernel, op), name(kernel, other)] == ["one", "map", "two"]
    assert name(kernel, replace(op, source="elsewhere")) == "one"
