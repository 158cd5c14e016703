"""Which operand of a matmul plays which part on PT, and which dims are batch, m, n and k."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openspyre.compiler.addressing import unit_dims
from openspyre.compiler.per_op import once_per_op
from openspyre.compiler.rewrite import names_walked
from openspyre.errors import BrokenInvariant
from openspyre.ir.kernel import (
    Call,
    DType,
    Kernel,
    Load,
    Op,
    Scalar,
    operand,
    operand_dtype,
    pt_dtypes,
    walk,
)


@dataclass(frozen=True, slots=True)
class Contraction:
    """c[batch, m, n] <- sum over k of a[batch, m, k] * b[batch, k, n]; dims by name.

    The last dim of `n` is the stick dim of b and, where one operand alone has it, of the result;
    the last of `k` is that of a. `n` may be empty.
    """

    a: Load
    b: Load
    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    values: Mapping[Load, Scalar]

    def value(self, load: Load) -> Scalar:
        """What PT takes, computed of a or b."""
        return self.values[load]

    def beside(self, load: Load) -> tuple[Load, ...]:
        """What else an operand is computed of."""
        found = (n for n in walk(self.value(load)) if isinstance(n, Load) and n != load)
        return tuple(dict.fromkeys(found))

    def computed(self, kernel: Kernel, load: Load) -> bool:
        """Whether PT takes a or b otherwise than as it is loaded."""
        taken = self.dtypes(kernel)[load == self.b]
        own = kernel.tensors[load.tensor].dtype
        return own is not taken or not isinstance(self.value(load), Load)

    def dtypes(self, kernel: Kernel) -> tuple[DType, DType]:
        """What PT takes a and b as; an operand that is narrower is widened in LX."""
        a, b = (operand_dtype(self.values[load], kernel.tensors) for load in (self.a, self.b))
        found = pt_dtypes(a, b)
        if found is None:
            raise BrokenInvariant(f"PT takes no {a.value} with {b.value}")
        return found


@once_per_op
def contraction(kernel: Kernel, op: Op) -> Contraction:
    """The parts of a CONTRACT op."""
    match op.body:
        case Call("mul", (one, other), _):
            left, right = operand(one), operand(other)
        case _:
            left = right = None
    if left is None or right is None:
        raise BrokenInvariant(f"{op.name} is no product of two loads")
    values = {left: one, right: other}
    out = unit_dims(kernel, kernel.tensors[op.out.tensor], op.out.index, op)
    dims = [d.name for d in op.dims]
    in_left, in_right = names_walked(op, left), names_walked(op, right)
    only_left = [d for d in dims if d in in_left - in_right]
    only_right = [d for d in dims if d in in_right - in_left]
    a, b, m, n = left, right, only_left, only_right
    if (out & set(only_left)) or (not only_right and only_left and not (out & set(only_right))):
        a, b, m, n = right, left, only_right, only_left
    shared = [d for d in dims if d in in_left & in_right]
    unused = [d for d in dims if d not in {*m, *n, *shared}]
    k = [d.name for d in op.rdims]
    stick = unit_dims(kernel, kernel.tensors[a.tensor], a.index, op)
    return Contraction(
        a,
        b,
        tuple(shared),
        tuple(unused + m),
        tuple(sorted(n, key=lambda d: d in out)),
        tuple(sorted(k, key=lambda d: d in stick)),
        values,
    )


def lx_bytes(kernel: Kernel, op: Op, load: Load) -> int:
    """Bytes that an element of an operand takes in LX: as it is loaded, and computed beside it."""
    parts = contraction(kernel, op)
    own = kernel.tensors[load.tensor].dtype
    if load not in parts.values or not parts.computed(kernel, load):
        return own.bytes
    return own.bytes + parts.dtypes(kernel)[load == parts.b].bytes
