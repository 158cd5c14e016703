"""Long scans cut into blocks.

A scan runs along a dim that lies in LX as a whole. One that is too long for that is cut into blocks
of B: p[a, b] <- scan over b of x[a*B + b], s[a+1] <- scan over a of p[a, B-1], and block a has s[a]
added, what all blocks before it come to: nothing for s[0]. Many cores share the blocks. The points
behind the last whole block are one block more. No op needs a whole block to be there: some of the
sizes that share the plan may have none. Exact for everything but float sums and products: f32 in
another order.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from openspyre.compiler.bounds import highest
from openspyre.compiler.rewrite import Fresh, neutral, substituted, vars_of
from openspyre.ir.index import Expr
from openspyre.ir.kernel import (
    Access,
    Call,
    Const,
    Dim,
    Kernel,
    Kind,
    Load,
    Op,
    Role,
    Scalar,
    Tensor,
    walk,
)
from openspyre.spec import CardSpec

_BYTES_OF_A_VALUE = 16  # the widest dtype, twice: the next tile arrives while this one is used
_BLOCKS = 4  # fewer are not worth the second pass
_COMBINED = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def cut_scans(kernel: Kernel, card: CardSpec) -> Kernel:
    """Cuts the scans along dims that need not fit LX."""
    fresh, tensors, ops = Fresh(kernel), dict(kernel.tensors), list[Op]()
    waiting = list(reversed(kernel.ops))
    while waiting:
        op = waiting.pop()
        if op.kind is not Kind.SCAN or op.reduce not in _COMBINED:
            ops.append(op)
            continue
        block = _block(op, card)
        if highest(op.rdims[0].extent, kernel.limits) > block * _BLOCKS:
            waiting += reversed(_Cut.of(op, block, fresh, tensors).ops())
        else:
            ops.append(op)
    return replace(kernel, tensors=tensors, ops=tuple(ops))


def _block(op: Op, card: CardSpec) -> int:
    """How many points a block has: several of them fit LX with all that is computed for them."""
    values = len(set(walk(op.body))) + len(op.lookups) + 2
    return 1 << max(1, (card.lx_usable // (values * _BYTES_OF_A_VALUE * _BLOCKS)).bit_length() - 1)


@dataclass(frozen=True, slots=True)
class _Cut:
    """A scan that is being cut: the dims of its blocks, and where its new tensors go."""

    op: Op
    across: Dim
    within: Dim
    rest: Dim
    fresh: Fresh
    tensors: dict[str, Tensor]

    @staticmethod
    def of(op: Op, block: int, fresh: Fresh, tensors: dict[str, Tensor]) -> _Cut:
        taken = {d.name for d in (*op.dims, *op.rdims)} | {k.name for k in op.lookups}
        free = (n for k in itertools.count() if (n := f"block{k}") not in taken)
        extent = op.rdims[0].extent
        a, b = next(free), next(free)
        across, within = Dim(a, extent // block), Dim(b, Expr.of(block))
        return _Cut(op, across, within, Dim(b, extent % block), fresh, tensors)

    def ops(self) -> list[Op]:
        lead, size = vars_of(self.op.dims), self.within.extent
        a, b = Expr.var(self.across.name), Expr.var(self.within.name)
        place, behind = a * size + b, self.across.extent * size + b
        blocks, p = self._scan((*self.op.dims, self.across), self.within, place)
        s = self._local((*self._shape(self.op.dims), self.across.extent + 1))
        start = self._map(self.op.dims, Access(s, (*lead, Expr.of(0))), self._nothing())
        ends = self._load(p, (*lead, a, size - 1))
        totals = self._along(self.op.dims, self.across, Access(s, (*lead, a + 1)), ends)
        value = self._plus(self._load(s, (*lead, a)), self._load(p, (*lead, a, b)))
        made = [blocks, start, totals, self._store((self.across, self.within), place, value)]
        if self.rest.extent.constant != 0:
            last, q = self._scan(self.op.dims, self.rest, behind)
            value = self._plus(
                self._load(s, (*lead, self.across.extent)), self._load(q, (*lead, b))
            )
            made += [last, self._store((self.rest,), behind, value)]
        return made

    def _scan(self, dims: tuple[Dim, ...], along: Dim, place: Expr) -> tuple[Op, str]:
        """A scan of the op's body at `place` of its dim, into a new tensor."""
        name = self._local(self._shape((*dims, along)))
        moved = substituted(replace(self.op, out=Access(name, ())), {self.op.rdims[0].name: place})
        out = Access(name, vars_of((*dims, along)))
        return replace(self._along(dims, along, out, moved.body), lookups=moved.lookups), name

    def _along(self, dims: tuple[Dim, ...], along: Dim, out: Access, body: Scalar) -> Op:
        """A scan of another body."""
        return replace(
            self.op, name=out.tensor, dims=dims, rdims=(along,), body=body, lookups=(), out=out
        )

    def _local(self, shape: tuple[Expr, ...]) -> str:
        """A new tensor of values as they are computed."""
        name = self.fresh.name(f"{self.op.name}_part")
        self.tensors[name] = Tensor(name, self.op.body.dtype.compute, shape, Role.LOCAL)
        return name

    @staticmethod
    def _shape(dims: tuple[Dim, ...]) -> tuple[Expr, ...]:
        return tuple(d.extent for d in dims)

    def _store(self, dims: tuple[Dim, ...], place: Expr, value: Scalar) -> Op:
        """Stores a part of the result: what lies at `place` of the scanned dim."""
        scanned = self.op.rdims[0].name
        index = tuple(e.substitute({scanned: place}) for e in self.op.out.index)
        return self._map((*self.op.dims, *dims), Access(self.op.out.tensor, index), value)

    def _map(self, dims: tuple[Dim, ...], out: Access, value: Scalar) -> Op:
        return replace(
            self.op, name=self.fresh.name(f"{self.op.name}_sum"), kind=Kind.MAP, reduce=None,
            dims=dims, rdims=(), body=value, lookups=(), out=out,
        )  # fmt: skip

    def _nothing(self) -> Const:
        dtype = self.op.body.dtype.compute
        return Const(neutral(self.op.reduce or "", dtype), dtype)

    def _load(self, tensor: str, index: tuple[Expr, ...]) -> Load:
        return Load(tensor, index, self.op.body.dtype.compute)

    def _plus(self, before: Scalar, value: Scalar) -> Call:
        return Call(_COMBINED[self.op.reduce or ""], (before, value), value.dtype)
