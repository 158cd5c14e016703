"""The kernel under construction: tensors, ops in order, names, and what is already computed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch

from openspyre.frontend.addresses import Placement
from openspyre.frontend.sizes import Symbols
from openspyre.frontend.values import STORED
from openspyre.ir.index import Expr
from openspyre.ir.kernel import (
    Access,
    Call,
    Dim,
    Kernel,
    Kind,
    Load,
    Lookup,
    Op,
    Role,
    Scalar,
    Tensor,
    walk,
)


@dataclass(frozen=True, slots=True)
class Site:
    """Where a buffer's addresses lead: a tensor of the kernel, and how to read an address.

    Attributes:
        shift: what to add to an address of the buffer to get one of the tensor.
    """

    tensor: str
    dtype: torch.dtype
    placement: Placement
    shift: Expr


@dataclass
class Region:
    """Collects what becomes one Kernel."""

    symbols: Symbols = field(default_factory=Symbols)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    source: str = ""
    _done: dict[str, Tensor] = field(default_factory=dict)
    _versions: dict[str, int] = field(default_factory=dict)
    _renamed: dict[str, str] = field(default_factory=dict)

    def current(self, tensor: str) -> str:
        """The tensor that holds the value of `tensor` (a duplicate was never computed)."""
        return self._renamed.get(tensor, tensor)

    def local(self, hint: str, dtype: torch.dtype, shape: tuple[Expr, ...]) -> Tensor:
        """A new local tensor."""
        name, count = hint, 0
        while name in self.tensors:
            count += 1
            name = f"{hint}.{count}"
        made = Tensor(name, STORED[dtype], shape, Role.LOCAL)
        self.tensors[name] = made
        return made

    def emit(
        self,
        kind: Kind,
        dims: tuple[Dim, ...],
        body: Scalar,
        out: Access,
        *,
        rdims: tuple[Dim, ...] = (),
        reduce: str | None = None,
        lookups: Iterable[Lookup] = (),
        accumulate: bool = False,
    ) -> str:
        """Append an op, or find the local that holds the same values; returns the tensor's name."""
        target = self.tensors[out.tensor]
        body = _unrounded(body, target)
        used = _used_lookups(body, out, lookups)
        if kind is Kind.MAP and used:
            kind = Kind.GATHER
        for dim in (*dims, *rdims):
            self.symbols.note(dim.extent)
        op = Op(
            f"{kind.value}{len(self.ops)}", kind, dims, body, out, rdims, reduce, used,
            accumulate, self.source,
        )  # fmt: skip
        whole = target.role is Role.LOCAL and out.tensor not in self._versions
        key = self._key(op, target) if whole else None
        if key is not None and (twin := self._done.get(key)) is not None:
            self._renamed[out.tensor] = twin.name
            del self.tensors[out.tensor]
            return twin.name
        self.ops.append(op)
        self._versions[out.tensor] = self._versions.get(out.tensor, 0) + 1
        if key is not None:
            self._done[key] = target
        return out.tensor

    def _key(self, op: Op, target: Tensor) -> str:
        """Equal for ops that leave equal values in tensors of equal form."""
        read = {n.tensor for n in walk(op.body) if isinstance(n, Load)}
        read |= {lookup.tensor for lookup in op.lookups}
        versions = sorted((t, self._versions.get(t, 0)) for t in read)
        same = replace(op, name="", source="", out=Access("", op.out.index))
        return repr((same, target.dtype, target.shape, versions))

    def finished(self, name: str, order: Iterable[str]) -> Kernel:
        """The kernel; `order` names the tensors in the order a launch passes them."""
        used = {t for op in self.ops for t in _touched(op)}
        tensors = {n: t for n, t in self.tensors.items() if n in used}
        for tensor in tensors.values():
            for expr in (*tensor.shape, *tensor.strides):
                self.symbols.note(expr)
        arguments = [n for n in order if n in tensors and tensors[n].role is not Role.LOCAL]
        return Kernel(
            name, tuple(sorted(self.symbols.limits)), tuple(arguments), tensors, tuple(self.ops),
            limits=dict(sorted(self.symbols.limits.items())),
        )  # fmt: skip


def _unrounded(body: Scalar, target: Tensor) -> Scalar:
    """A body without the final cast that the store makes anyway."""
    match body:
        case Call("cast", (inner,), dtype) if dtype == target.dtype and target.dtype.is_float:
            return inner if inner.dtype == target.dtype.compute else body
    return body


def _used_lookups(body: Scalar, out: Access, lookups: Iterable[Lookup]) -> tuple[Lookup, ...]:
    names: set[str] = set()
    for expr in out.index:
        names |= expr.names
    for node in walk(body):
        if isinstance(node, Load):
            for expr in node.index:
                names |= expr.names
    return tuple(lookup for lookup in lookups if lookup.name in names)


def _touched(op: Op) -> Iterable[str]:
    yield op.out.tensor
    for node in walk(op.body):
        if isinstance(node, Load):
            yield node.tensor
    for lookup in op.lookups:
        yield lookup.tensor
