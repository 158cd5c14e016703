"""The least that a kernel's ops must do, whatever the plan: arithmetic, and bytes moved once.

It is what bounds are made of (`openspyre.card.report.bounds`): every byte of an argument that the
kernel touches moves once, what is local to the kernel stays in LX, nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from openspyre.compiler.bounds import highest, value_range
from openspyre.compiler.contraction import contraction
from openspyre.compiler.rewrite import reads
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Call, Kernel, Kind, Op, Role, Tensor, walk
from openspyre.ir.ops import TABLE, Cost
from openspyre.spec import CardSpec

_FAR = 1 << 62  # what is looked up may be any index


@dataclass(frozen=True, slots=True)
class Work:
    """Work of some ops.

    Attributes:
        flop: of matrix products, two per multiply-add, in those of fp16: at twice the rate, fp8
            counts half; masked parts count.
        filled_flop: `flop`, each over the share of PT's rate that its rows allow (`pt_fill`).
        transcendentals: evaluations.
    """

    flop: float = 0
    filled_flop: float = 0
    transcendentals: float = 0
    read_bytes: float = 0
    written_bytes: float = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flop + other.flop,
            self.filled_flop + other.filled_flop,
            self.transcendentals + other.transcendentals,
            self.read_bytes + other.read_bytes,
            self.written_bytes + other.written_bytes,
        )

    def __mul__(self, times: float) -> Work:
        return Work(
            self.flop * times,
            self.filled_flop * times,
            self.transcendentals * times,
            self.read_bytes * times,
            self.written_bytes * times,
        )


def least_work(kernel: Kernel, card: CardSpec) -> dict[str, Work]:
    """The work of every op of a canonical kernel, by name, at the largest sizes.

    Parts of an argument that have no element in common all count. What several ops touch of one
    part belongs to the op that touches most, the first of them.
    """
    found = {op.name: _arithmetic(kernel, op, card) for op in kernel.ops}
    for store in (False, True):
        touched: dict[str, list[_Touched]] = {}
        for op in kernel.ops:
            for part in _touched(kernel, op, store=store):
                touched.setdefault(part.tensor, []).append(part)
        for tensor, parts in touched.items():
            left = _elements(kernel, kernel.tensors[tensor]) * kernel.tensors[tensor].dtype.bytes
            for part in _apart(parts):
                size = min(part.bytes, left)
                left -= size
                moved = Work(written_bytes=size) if store else Work(read_bytes=size)
                found[part.op] = found[part.op] + moved
    return found


@dataclass(frozen=True, slots=True)
class _Touched:
    """What an op touches of an argument: bytes, of elements within a box of indices."""

    tensor: str
    op: str
    bytes: int
    box: tuple[tuple[int, int], ...]

    def apart(self, other: _Touched) -> bool:
        return any(a[1] < b[0] or b[1] < a[0] for a, b in zip(self.box, other.box, strict=True))


def _apart(parts: list[_Touched]) -> list[_Touched]:
    """Parts without a common element, the largest first."""
    chosen: list[_Touched] = []
    for part in sorted(parts, key=lambda p: -p.bytes):
        if all(part.apart(other) for other in chosen):
            chosen.append(part)
    return chosen


def _arithmetic(kernel: Kernel, op: Op, card: CardSpec) -> Work:
    sizes = {d.name: highest(d.extent, kernel.limits) for d in (*op.dims, *op.rdims)}
    points = prod(sizes.values())
    if op.kind is Kind.CONTRACT:
        rows = prod(sizes[name] for name in contraction(kernel, op).m)
        fill = min(1.0, (rows / card.pt_fill_rows) ** card.pt_fill_exponent) if rows else 1.0
        fp8 = contraction(kernel, op).dtypes(kernel)[0].is_fp8
        flop = 2 * points / (max(1.0, card.pt_fp8_rate) if fp8 else 1)
        return Work(flop=flop, filled_flop=flop / fill)
    costly = sum(
        isinstance(node, Call) and TABLE[node.op].cost is Cost.TRANSCENDENTAL
        for node in set(walk(op.body))
    )
    return Work(transcendentals=points * costly)


def _touched(kernel: Kernel, op: Op, *, store: bool) -> Iterator[_Touched]:
    """Arguments in device memory that an op reads or stores to, and how much of each."""
    places = [(op.out.tensor, op.out.index)] if store else list(reads(op))
    extents = {d.name: d.extent for d in (*op.dims, *op.rdims)}
    looked_up = {x.name: x.index for x in op.lookups}
    limits = dict(kernel.limits) | dict.fromkeys(looked_up, (-_FAR, _FAR))
    limits |= {d: (0, max(0, highest(e, kernel.limits) - 1)) for d, e in extents.items()}
    for name, index in places:
        tensor = kernel.tensors[name]
        if tensor.role in (Role.LOCAL, Role.SCALAR):
            continue
        dims = _dims(index, looked_up) & extents.keys()
        points = prod(highest(extents[d], kernel.limits) for d in dims)
        size = min(points, _elements(kernel, tensor)) * tensor.dtype.bytes
        pairs = zip(index, tensor.strides, strict=True)
        box = tuple((0, 0) if s.constant == 0 else value_range(e, limits) for e, s in pairs)
        yield _Touched(name, op.name, size, box)


def _dims(index: tuple[Expr, ...], looked_up: Mapping[str, tuple[Expr, ...]]) -> set[str]:
    names = {name for expr in index for name in expr.names}
    through = {n for name in names & looked_up.keys() for e in looked_up[name] for n in e.names}
    return names | through


def _elements(kernel: Kernel, tensor: Tensor) -> int:
    """Distinct elements of a tensor: a dim of stride zero has one."""
    pairs = zip(tensor.shape, tensor.strides, strict=True)
    return prod(highest(n, kernel.limits) for n, stride in pairs if stride.constant != 0)
