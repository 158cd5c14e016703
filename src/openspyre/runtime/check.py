"""Every program is proved right when it is compiled (see csrc/card/check.h for what that means).

A variant serves a range of sizes. It is checked at the sizes it was compiled for, and at the
smallest, the largest and one that fills neither the last tile nor the last stick, where those can
occur: what the user's guards exclude (`x.narrow(0, 64, 64)` of 65 rows, a view by 3 of 128) is not
a mistake of the program.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import combinations
from math import prod
from types import MappingProxyType

from openspyre.card.native import LoadedProgram, SoftwareCard, Span
from openspyre.compiler.bounds import value_range
from openspyre.compiler.rewrite import indices
from openspyre.errors import BrokenInvariant, CardError
from openspyre.ir.binary import encode
from openspyre.ir.index import Binary, Expr
from openspyre.ir.kernel import Access, Kernel, Kind, Load, Lookup, Op, Role, Tensor, loads
from openspyre.ir.program import Program
from openspyre.ir.text import print_kernel
from openspyre.settings import settings
from openspyre.spec import CardSpec

Sizes = Mapping[str, int]
NO_SIZES: Sizes = MappingProxyType({})
_SPACING = 1 << 44  # between addresses: no argument reaches the next one
_LARGEST = 1 << 26  # bytes of a program
_lock = threading.Lock()


def proved(program: Program, kernel: Kernel, card: CardSpec, given: Sizes = NO_SIZES) -> Program:
    """The program of a kernel with limits as it is, unless it is wrong and checks are on.

    Args:
        given: the sizes of the launch at hand, where there is one.

    Raises:
        BrokenInvariant: it is wrong.
    """
    if settings().check:
        certain = [given] if len(given) == len(kernel.symbols) else []
        spread = [with_room(kernel, sizes) for sizes in checked_sizes(kernel.limits)]
        others = [s for s in spread if s not in certain]
        every = [*certain, *(sizes for sizes in others if can_occur(kernel, sizes))]
        check_program(program, kernel, every, card)
    return program


def checked_sizes(limits: Mapping[str, tuple[int, int]]) -> tuple[Sizes, ...]:
    """The sizes to check a variant at: all smallest, all largest, all one below the largest.

    >>> [dict(sizes) for sizes in checked_sizes({"s": (65, 128)})]
    [{'s': 65}, {'s': 128}, {'s': 127}]
    >>> [dict(sizes) for sizes in checked_sizes({})]
    [{}]
    """
    smallest = {name: low for name, (low, _) in limits.items()}
    largest = {name: high for name, (_, high) in limits.items()}
    tail = {name: max(low, high - 1) for name, (low, high) in limits.items()}
    distinct = {tuple(sizes.items()): sizes for sizes in (smallest, largest, tail)}
    return tuple(MappingProxyType(sizes) for sizes in distinct.values())


def with_room(kernel: Kernel, sizes: Sizes) -> Sizes:
    """The sizes, with strides that are symbols of their own large enough to keep elements apart."""
    sized = [e for tensor in kernel.tensors.values() for e in tensor.shape]
    for op in kernel.ops:
        sized += [*indices(op), *(dim.extent for dim in (*op.dims, *op.rdims))]
    taken = {name for expr in sized for name in expr.names}
    chosen = dict(sizes)
    for tensor in kernel.tensors.values():
        own: list[tuple[str, int]] = []
        reach = 1  # elements that the dims with a stride so far cover
        for extent, stride in zip(tensor.shape, tensor.strides, strict=False):
            points = extent.evaluate(sizes) - 1
            name = str(stride)
            if name in sizes and name not in taken:
                own.insert(0, (name, points))
            else:
                reach += max(points, 0) * abs(stride.evaluate(sizes))
        for name, points in own:
            chosen[name] = max(reach, kernel.limits[name][0])
            reach += max(points, 0) * chosen[name]
    return MappingProxyType(chosen)


def can_occur(kernel: Kernel, sizes: Sizes) -> bool:
    """Whether the kernel itself shows that it means something at these sizes.

    Its divisions of sizes come out even and its accesses stay inside its tensors.
    """
    return _divides(kernel, sizes) and all(_stays_inside(kernel, op, sizes) for op in kernel.ops)


def _divides(kernel: Kernel, sizes: Sizes) -> bool:
    return all(
        atom.right.evaluate(sizes) != 0
        and atom.left.evaluate(sizes) % atom.right.evaluate(sizes) == 0
        for expr in _expressions(kernel)
        for atom in _divisions(expr)
        if (atom.left.names | atom.right.names) <= sizes.keys()
    )


def _expressions(kernel: Kernel) -> Iterator[Expr]:
    for tensor in kernel.tensors.values():
        yield from (*tensor.shape, *tensor.strides)
    for op in kernel.ops:
        yield from (dim.extent for dim in (*op.dims, *op.rdims))
        yield from indices(op)


def _divisions(expr: Expr) -> Iterator[Binary]:
    for monomial, _ in expr.terms:
        for atom in monomial:
            if isinstance(atom, Binary):
                yield from (*_divisions(atom.left), *_divisions(atom.right))
                if atom.op in ("//", "%"):
                    yield atom


def _stays_inside(kernel: Kernel, op: Op, sizes: Sizes) -> bool:
    extents = {dim.name: dim.extent.evaluate(sizes) for dim in (*op.dims, *op.rdims)}
    if min(extents.values(), default=1) <= 0:
        return min(extents.values()) == 0
    ranges = {name: (0, extent - 1) for name, extent in extents.items()}
    ranges |= {x.name: (0, max(x.size.evaluate(sizes) - 1, 0)) for x in op.lookups}
    places: list[Access | Load | Lookup] = [load for load in loads(op) if not load.guarded]
    return all(
        low >= 0 and high < extent.evaluate(sizes)
        for place in (*places, *op.lookups, op.out)
        for index, extent in zip(place.index, kernel.tensors[place.tensor].shape, strict=True)
        for low, high in (value_range(index.substitute(sizes), ranges),)
    )


def check_program(program: Program, kernel: Kernel, every: Sequence[Sizes], card: CardSpec) -> None:
    """Prove a program of a kernel right for some sizes. Sizes with too much work are left out.

    Raises:
        BrokenInvariant: it is not; names the instructions and carries the kernel's text.
    """
    with loaded_alone(encode(program), card) as (machine, loaded):
        for sizes in every:
            spans = checked_spans(kernel, sizes)
            addresses = [_SPACING * (number + 2) for number in range(len(spans))]
            symbols = [sizes[name] for name in kernel.symbols]
            scalars = [0.0] * program.arguments[2]
            block = machine.fill(loaded, addresses, symbols, scalars, _SPACING)
            try:
                machine.check(loaded, block, spans)
            except CardError:  # too large: says nothing about the program
                continue
            except BrokenInvariant as wrong:
                given = ", ".join(f"{name} = {size}" for name, size in sizes.items())
                raise BrokenInvariant(
                    f"the program of {kernel.name} is wrong"
                    + (f" for {given}" if given else "")
                    + f":\n{wrong.what}",
                    text=print_kernel(kernel),
                ) from None


def checked_spans(kernel: Kernel, sizes: Sizes) -> list[Span]:
    """For every device argument what a launch may do with it."""
    tensors = [kernel.tensors[name] for name in kernel.arguments]
    device = [tensor for tensor in tensors if tensor.role is not Role.SCALAR]
    return [
        Span(low, high, _stored(kernel, tensor, sizes), tensor.role is Role.OUTPUT)
        for tensor, (low, high) in zip(device, argument_spans(kernel, sizes), strict=True)
    ]


def _stored(kernel: Kernel, tensor: Tensor, sizes: Sizes) -> int:
    """Bytes that the ops store to a tensor: all together if to different parts, else of one.

    An op writes every element once. An indirect one may write some again, and one whose index
    does not depend on a dim may store the last, or the sum, of what it writes along that.
    """
    if tensor.role is Role.INPUT:
        return -1
    boxes: list[list[tuple[int, int]]] = []
    counts: list[int] = []
    for op in kernel.ops:
        if op.out.tensor != tensor.name:
            continue
        dims = op.dims + op.rdims if op.kind is Kind.SCAN else op.dims
        extents = {dim.name: dim.extent.evaluate(sizes) for dim in dims}
        apart = _told_apart(op)
        counts.append(prod(max(e, 0) if name in apart else e > 0 for name, e in extents.items()))
        ranges = {name: (0, max(extent - 1, 0)) for name, extent in extents.items()}
        ranges |= {x.name: (0, max(x.size.evaluate(sizes) - 1, 0)) for x in op.lookups}
        boxes.append([value_range(i.substitute(sizes), ranges) for i in op.out.index])
    separate = all(_apart(a, b) for a, b in combinations(boxes, 2))
    return (sum(counts) if separate else max(counts, default=0)) * tensor.dtype.bytes


def _told_apart(op: Op) -> frozenset[str]:
    """The names of dims on which the place of a store depends, itself or by a lookup."""
    names = frozenset().union(*(index.names for index in op.out.index))
    through = [i.names for x in op.lookups if x.name in names for i in x.index]
    return names.union(*through)


def _apart(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> bool:
    return any(x[1] < y[0] or y[1] < x[0] for x, y in zip(a, b, strict=True))


def argument_spans(kernel: Kernel, sizes: Sizes) -> list[tuple[int, int]]:
    """For every device argument the bytes it may be accessed in, relative to its address."""
    tensors = [kernel.tensors[name] for name in kernel.arguments]
    return [_span(t, sizes) for t in tensors if t.role is not Role.SCALAR]


def _span(tensor: Tensor, sizes: Sizes) -> tuple[int, int]:
    shape = [extent.evaluate(sizes) for extent in tensor.shape]
    if any(extent <= 0 for extent in shape):
        return 0, 0
    strides = [stride.evaluate(sizes) for stride in tensor.strides]
    reach = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    return low * tensor.dtype.bytes, (high + 1) * tensor.dtype.bytes


@cache
def _machine(card: CardSpec) -> SoftwareCard:
    """It holds the program being looked at."""
    return SoftwareCard(memory=_LARGEST, threads=1, spec=card)


@contextmanager
def loaded_alone(data: bytes, card: CardSpec) -> Iterator[tuple[SoftwareCard, LoadedProgram]]:
    """A program's binary form on a card that runs nothing."""
    with _lock:
        machine = _machine(card)
        machine.write(machine.memory_base, data)
        loaded = machine.load(machine.memory_base, len(data))
        try:
            yield machine, loaded
        finally:
            machine.unload(loaded)
