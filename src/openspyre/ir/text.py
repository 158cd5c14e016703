"""The text form of a Kernel: `parse_kernel(print_kernel(k)) == k`, plan tables included.

    kernel softmax
    symbols n
    limits n:1..4096
    arguments x y
    input x: f16[n, 384]
    output y: f16[n, 384] strides [400, 1]
    local m: f32[n, 1]
    op max0 reduce i0:n | r0:384
      at "model.py:12 softmax"
      m[i0, 0] <- max: x[i0, r0]
    op exp1 map i0:n i1:384
      %0 = exp(x[i0, i1] - m[i0, 0])
      y[i0, i1] <- f16(%0 * (%0 + 0.5))
    layout m: 1 0
    step s0: max0 exp1
      axes i0:n
      bind max0: i0=i0
      loops i0/64
      inner exp1: i1/128
    division s0: i0 parts 32 stride 1 granule 1
    residency m: lx offset 0 bytes 256 steps 0..1

A tensor without `strides` is contiguous (a local or a scalar has none). `lookup t = ids[i0] size
n wrap` stands under an op. `x?[i]` is a guarded load, `idx[e]` an index used as a value, `f16(v)`
a cast, `y[...] += v` an accumulating scatter, `%0` a value used more than once. The class of a
value follows from its operands (literals: f32, i64 or bool); `v:i32` states another. What the user
has decided stands before the arguments: `hint division i0: 8`, `hint tile s0.i0: 64`, `hint
residency m: device`. `weights w b` names arguments that may stay in LX between launches,
`prologue 2` says that the first two steps bring them there. `#` starts a comment at the beginning
of a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from openspyre.errors import InvalidKernel
from openspyre.ir.kernel import Dim, Kernel, Loop, Op, Step, Tensor
from openspyre.ir.text_body import index_text, print_body
from openspyre.ir.text_reader import contiguous_strides, default_strides, parse_kernel

__all__ = ["contiguous_strides", "parse_kernel", "print_kernel", "print_op"]

_NAME = re.compile(r"[A-Za-z_][\w.]*\Z")
_RESERVED = frozenset({"idx"})


def print_kernel(kernel: Kernel) -> str:
    """The text of a kernel.

    Raises:
        InvalidKernel: a name that text cannot carry, a body that no text means.
    """
    return "\n".join(_lines(kernel)) + "\n"


def print_op(op: Op, kernel: Kernel) -> str:
    """The text of one op of a kernel, for messages and reports."""
    return "\n".join(_op_lines(op, kernel))


def _lines(kernel: Kernel) -> Iterator[str]:
    yield f"kernel {kernel.name if _NAME.match(kernel.name) else json.dumps(kernel.name)}"
    yield from _names("symbols", kernel.symbols)
    yield from _names("limits", [f"{s}:{a}..{b}" for s, (a, b) in kernel.limits.items()])
    yield from (f"hint {hint}" for hint in kernel.hints)
    yield from _names("arguments", [_name(a) for a in kernel.arguments])
    yield from _names("weights", [_name(a) for a in kernel.weights])
    for name, tensor in kernel.tensors.items():
        if name != tensor.name:
            raise InvalidKernel(f"tensor {tensor.name} is listed as {name}")
        yield _tensor_line(tensor)
    for op in kernel.ops:
        yield from _op_lines(op, kernel)
    for name, layout in kernel.layouts.items():
        yield f"layout {_name(name)}: {' '.join(map(str, layout.order))}".rstrip()
    if kernel.prologue:
        yield f"prologue {kernel.prologue}"
    for step in kernel.steps:
        yield from _step_lines(step)
    for name, division in kernel.divisions.items():
        parts = (
            f"{p.axis} parts {p.parts} stride {p.stride} granule {p.granule}"
            for p in division.parts
        )
        yield f"division {_name(name)}: {', '.join(parts)}".rstrip()
    for name, at in kernel.residency.items():
        yield (
            f"residency {_name(name)}: {at.space.value} offset {at.offset} bytes {at.bytes}"
            f" steps {at.first}..{at.last}"
        )


def _name(name: str) -> str:
    if not _NAME.match(name) or name in _RESERVED:
        raise InvalidKernel(
            f"the name {name!r} cannot stand in kernel text",
            why="a name is a letter or _ and then letters, digits, _ and dots; idx is taken",
        )
    return name


def _names(word: str, names: Iterable[str]) -> Iterator[str]:
    """`word a b c`, on as many lines as 100 columns need."""
    line = word
    for name in names:
        if len(line) + 1 + len(name) > 100 and line != word:
            yield line
            line = word
        line += f" {name}"
    if line != word:
        yield line


def _tensor_line(tensor: Tensor) -> str:
    line = (
        f"{tensor.role.value} {_name(tensor.name)}: {tensor.dtype.value}{index_text(tensor.shape)}"
    )
    if tensor.strides != default_strides(tensor.role, tensor.shape):
        line += f" strides {index_text(tensor.strides)}"
    return line


def _dims(dims: Iterable[Dim]) -> list[str]:
    return [f"{d.name}:{str(d.extent).replace(' ', '')}" for d in dims]


def _op_lines(op: Op, kernel: Kernel) -> Iterator[str]:
    words = ["op", _name(op.name), op.kind.value, *_dims(op.dims)]
    yield " ".join(words + (["|", *_dims(op.rdims)] if op.rdims else []))
    if op.source:
        yield f"  at {json.dumps(op.source)}"
    for lookup in op.lookups:
        line = f"  lookup {lookup.name} = {_name(lookup.tensor)}{index_text(lookup.index)}"
        yield f"{line} size {lookup.size}{' wrap' if lookup.wrap else ''}"
    shared, body = print_body(op.body, kernel.tensors)
    for number, value in enumerate(shared):
        yield f"  %{number} = {value}"
    arrow = "+=" if op.accumulate else "<-"
    reduce = f"{op.reduce}: " if op.reduce else ""
    yield f"  {_name(op.out.tensor)}{index_text(op.out.index)} {arrow} {reduce}{body}"


def _loops(loops: Iterable[Loop]) -> str:
    return " ".join(f"{loop.axis}/{loop.tile}" for loop in loops)


def _step_lines(step: Step) -> Iterator[str]:
    yield f"step {_name(step.name)}: {' '.join(map(_name, step.ops))}".rstrip()
    if step.axes:
        yield "  axes " + " ".join(_dims(step.axes))
    for op, binding in step.binding.items():
        yield f"  bind {_name(op)}: {' '.join(f'{d}={a}' for d, a in binding.items())}".rstrip()
    if step.loops:
        yield "  loops " + _loops(step.loops)
    for op, loops in step.inner.items():
        yield f"  inner {_name(op)}: {_loops(loops)}".rstrip()
