"""How tensors lie in memory and where an access of an op falls in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from openspyre.compiler.bounds import highest
from openspyre.compiler.per_op import once_per_op
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Access, Dim, Kernel, Kind, Load, Lookup, Op, Role, Tensor, loads
from openspyre.spec import SPYRE_CARD_V1

STICK = SPYRE_CARD_V1.stick_bytes
STICK_POINTS = SPYRE_CARD_V1.elements_per_stick(2)
"""Tiles of a lane dim are whole multiples of it: whole sticks of 2 bytes an element, or of more."""


@dataclass(frozen=True, slots=True)
class Address:
    """An access to device memory, in elements from the tensor's element zero.

    Attributes:
        terms: (dim of the op, coefficient), zero coefficients left out.
        lookups: (lookup, coefficient).
    """

    terms: tuple[tuple[str, Expr], ...]
    lookups: tuple[tuple[str, Expr], ...]
    offset: Expr


def rounded_up(value: int, unit: int) -> int:
    """The smallest multiple of `unit` that is not below `value`."""
    return -(-value // unit) * unit


def pitches(capacities: Sequence[int], element: int, row: int = 0) -> tuple[tuple[int, ...], int]:
    """Bytes between neighbours along every dim (the last is the stick dim), and bytes in all.

    Rows are padded to whole sticks. A row is the last dim, or as many of the last dims as it takes
    to fill a stick, so that row statistics do not take a stick per row. `row` > 0 names a number of
    last dims that lie densely, and pads them even where they fill less than a stick.
    """
    found: list[int] = []
    size, padded = element, False
    for number, capacity in enumerate(reversed(capacities), start=1):
        found.append(size)
        size *= max(capacity, 1)
        if not padded and number >= row and (row or size >= STICK):
            size, padded = rounded_up(size, STICK), True
    return tuple(reversed(found)), rounded_up(size, STICK)


def layout_order(kernel: Kernel, tensor: Tensor) -> tuple[int, ...]:
    """The dims of a tensor from outermost to the stick dim."""
    if tensor.name in kernel.layouts:
        return kernel.layouts[tensor.name].order
    dims = range(len(tensor.shape))
    strides = [s.constant for s in tensor.strides]
    if tensor.role is Role.LOCAL or any(s is None for s in strides):
        return tuple(dims)
    return tuple(sorted(dims, key=lambda d: -abs(strides[d] or 0)))


def tensor_pitches(
    kernel: Kernel, tensor: Tensor, capacities: Sequence[int]
) -> tuple[tuple[int, ...], int]:
    """Bytes between neighbours along every dim of a tensor in stick layout, and bytes in all."""
    order = layout_order(kernel, tensor)
    ordered, total = pitches([capacities[d] for d in order], tensor.dtype.bytes)
    by_dim = dict(zip(order, ordered, strict=True))
    return tuple(by_dim[d] for d in range(len(order))), total


def pool_pitches(kernel: Kernel, tensor: Tensor) -> tuple[tuple[int, ...], int]:
    """The same for a local tensor that lies whole in device memory."""
    return tensor_pitches(kernel, tensor, [highest(e, kernel.limits) for e in tensor.shape])


def device_strides(kernel: Kernel, tensor: Tensor) -> tuple[Expr, ...]:
    """Strides in device memory, in elements."""
    if tensor.role is not Role.LOCAL:
        return tensor.strides
    steps, _ = pool_pitches(kernel, tensor)
    return tuple(Expr.of(step // tensor.dtype.bytes) for step in steps)


def address(
    kernel: Kernel,
    tensor: Tensor,
    index: Sequence[Expr],
    dims: Sequence[Dim],
    lookups: Sequence[Lookup] = (),
) -> Address:
    """The address of an access, affine in dims and lookups."""
    total = Expr.of(0)
    for stride, position in zip(device_strides(kernel, tensor), index, strict=True):
        total = total + stride * position
    names = [d.name for d in dims]
    looked = [x.name for x in lookups]
    terms, offset = total.affine(frozenset(names + looked))
    return Address(
        tuple((n, terms[n]) for n in names if n in terms),
        tuple((n, terms[n]) for n in looked if n in terms),
        offset,
    )


def unit_dims(kernel: Kernel, tensor: Tensor, index: Sequence[Expr], op: Op) -> frozenset[str]:
    """The dims of an op whose neighbours are neighbours in memory for this access."""
    dims = op.dims + op.rdims
    if tensor.role is Role.LOCAL:
        stick = [d for d in layout_order(kernel, tensor) if tensor.shape[d].constant != 1]
        terms = [(d.name, index[stick[-1]].coefficient(d.name)) for d in dims] if stick else []
    else:
        terms = list(address(kernel, tensor, index, dims, op.lookups).terms)
    extents = {d.name: d.extent.constant for d in dims}
    return frozenset(n for n, c in terms if c.constant == 1 and extents[n] != 1)


@once_per_op
def lane_dim(kernel: Kernel, op: Op) -> str | None:
    """The dim whose points fill the lanes of SFU: contiguous for most of the elements moved."""
    if op.kind is Kind.SCAN:
        return op.rdims[0].name
    extents = {d.name: highest(d.extent, kernel.limits) for d in op.dims + op.rdims}
    score = dict.fromkeys(extents, 0)
    accesses: tuple[Access | Load, ...] = (op.out, *loads(op))
    for access in accesses:
        tensor = kernel.tensors[access.tensor]
        if tensor.role is Role.SCALAR:
            continue
        walked = frozenset[str]().union(*(e.names for e in access.index))
        elements = prod(extents[d] for d in extents if d in walked)
        for dim in unit_dims(kernel, tensor, access.index, op):
            score[dim] += elements
    dims = list(extents)
    return max(dims, key=lambda d: (score[d], dims.index(d)), default=None)
