"""Which operand of a matmul plays which part on PT, and which dims are batch, m, n and k."""

from __future__ import annotations

from dataclasses import dataclass

from openspyre.compiler.addressing import unit_dims
from openspyre.errors import BrokenInvariant
from openspyre.ir.kernel import Call, Kernel, Load, Op


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


def contraction(kernel: Kernel, op: Op) -> Contraction:
    """The parts of a CONTRACT op."""
    match op.body:
        case Call("mul", (Load() as left, Load() as right), _):
            pass
        case _:
            raise BrokenInvariant(f"{op.name} is no product of two loads")
    out = unit_dims(kernel, kernel.tensors[op.out.tensor], op.out.index, op)
    dims = [d.name for d in op.dims]
    only_left = [d for d in dims if _uses(left, d) and not _uses(right, d)]
    only_right = [d for d in dims if _uses(right, d) and not _uses(left, d)]
    a, b, m, n = left, right, only_left, only_right
    if (out & set(only_left)) or (not only_right and only_left and not (out & set(only_right))):
        a, b, m, n = right, left, only_right, only_left
    shared = [d for d in dims if _uses(left, d) and _uses(right, d)]
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
    )


def _uses(load: Load, dim: str) -> bool:
    return any(dim in position.names for position in load.index)
