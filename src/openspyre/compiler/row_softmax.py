"""A softmax over rows, cut into parts of the rows.

e[r, i] <- exp(x[r, i] - m[i]), m the maximum over r, must wait for all rows. With parts, each takes
its exponentials below its own maximum: e[a, b, i] <- exp(x[a*B + b, i] - p[a, i]). The factor
f[a, i] <- exp(p[a, i] - m[i]) then makes up for it in the sum of e, and in what reads e.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from openspyre.compiler.partials import in_two
from openspyre.compiler.rewrite import (
    Fresh,
    reads,
    rewritten,
    sole_name,
    substituted,
    vars_of,
    writes_whole,
)
from openspyre.compiler.splits import divided_dim
from openspyre.ir.index import Expr
from openspyre.ir.kernel import (
    Access,
    Call,
    Const,
    Dim,
    DType,
    Kernel,
    Kind,
    Load,
    Op,
    Role,
    Scalar,
    Tensor,
    loads,
)


@dataclass(frozen=True, slots=True)
class RowSoftmax:
    """The ops of a softmax.

    Attributes:
        top, powers, total: the maximum, the exponentials, their sum.
        dim: of the rows, in `top`.
        row: the dim of the rows, in `powers`.
        place: where the tensor of exponentials has it.
        names: what dims of `top` are called in `powers`.
        readers: other ops that read the exponentials, and which of their dims walks the rows.
    """

    top: Op
    powers: Op
    total: Op
    dim: Dim
    row: Dim
    place: int
    names: Mapping[str, str]
    readers: tuple[tuple[Op, Dim], ...]


def softmax_of(top: Op, dim: Dim, kernel: Kernel) -> RowSoftmax | None:
    """The softmax over `dim` that begins with a maximum, or None."""
    if top.reduce != "max" or len(top.rdims) != 1 or not top.body.dtype.is_float:
        return None
    at = kernel.ops.index(top)
    users = [op for op in kernel.ops if any(t == top.out.tensor for t, _ in reads(op))]
    powers = users[0] if users else None
    if powers is None or powers.kind is not Kind.MAP:
        return None
    names = _names(top, dim, powers)
    exps = kernel.tensors[powers.out.tensor]
    if names is None or exps.role is not Role.LOCAL or not writes_whole(powers, exps):
        return None
    row = next(d for d in powers.dims if d.name == names[dim.name])
    place = next(n for n, e in enumerate(powers.out.index) if row.name in e.names)
    users = [op for op in kernel.ops if any(t == exps.name for t, _ in reads(op))]
    writers = [op for op in kernel.ops if op.out.tensor in (exps.name, top.out.tensor)]
    total = next((op for op in users if _sums(op, exps, place)), None)
    if total is None or len(writers) != 2:
        return None
    between = kernel.ops[at + 1 : kernel.ops.index(total)]
    if any(t == top.out.tensor for op in between if op is not powers for t, _ in reads(op)):
        return None  # needs the maximum before there is a sum
    walked = [(op, _walks(op, exps.name, place, row)) for op in users if op is not total]
    readers = tuple((op, d) for op, d in walked if d is not None)
    if len(readers) < len(walked):
        return None
    return RowSoftmax(top, powers, total, dim, row, place, names, readers)


def _names(top: Op, dim: Dim, powers: Op) -> Mapping[str, str] | None:
    """What dims of `top` are called in an op that is exp(x - maximum of x), or None."""
    match powers.body:
        case Call("exp", (Call("sub", (value, Load(tensor, index))),)) if tensor == top.out.tensor:
            pass
        case _:
            return None
    names: dict[str, str] = {}
    for made, used in zip(top.out.index, index, strict=True):
        if made == used and not made.names:
            continue
        ours, theirs = sole_name(made), sole_name(used)
        if ours is None or theirs is None or ours in names:
            return None
        names[ours] = theirs
    extents = {d.name: d.extent for d in powers.dims}
    rest = [d for d in powers.dims if d.name not in names.values()]
    if len(rest) != 1 or len(set(names.values())) < len(names):
        return None
    names[dim.name] = rest[0].name
    if names.keys() != {d.name for d in (*top.dims, dim)}:
        return None
    if any(extents.get(names[d.name]) != d.extent for d in (*top.dims, dim)):
        return None
    same = substituted(
        replace(top, out=Access(top.out.tensor, ())), {a: Expr.var(b) for a, b in names.items()}
    )
    return names if same.body == value else None


def _sums(op: Op, exps: Tensor, place: int) -> bool:
    """Whether an op is the sum of the exponentials over the rows."""
    if op.kind is not Kind.REDUCE or op.reduce != "sum" or len(op.rdims) != 1:
        return False
    match op.body:
        case Load(tensor, index):
            plain = [sole_name(e) for e in index]
            taken = {d.name: d.extent for d in (*op.dims, *op.rdims)}
            return (
                tensor == exps.name
                and index[place] == Expr.var(op.rdims[0].name)
                and op.rdims[0].extent == exps.shape[place]
                and all(n in taken or e.constant == 0 for n, e in zip(plain, index, strict=True))
            )
    return False


def _walks(op: Op, exps: str, place: int, row: Dim) -> Dim | None:
    """The dim with which an op reads all rows, always the same."""
    found = {n.index for n in loads(op) if n.tensor == exps}
    names = {sole_name(index[place]) for index in found}
    elsewhere = {n for index in found for k, e in enumerate(index) if k != place for n in e.names}
    if op.kind is not Kind.MAP or len(names) != 1 or names & elsewhere:
        return None
    return next((d for d in op.dims if d.name in names and d.extent == row.extent), None)


def cut_softmax(found: RowSoftmax, parts: int, kernel: Kernel, fresh: Fresh) -> Kernel:
    """The kernel with a softmax that takes the rows in parts."""
    tensors = dict(kernel.tensors)
    count = Expr.of(parts)
    tops, top = in_two(found.top, found.dim, count, tensors, fresh, first=True)
    sums, total = in_two(found.total, found.total.rdims[0], count, tensors, fresh, first=True)
    cut = _Cut(found, count, tops.out.tensor, fresh.name(f"{top.name}_factor"))
    tensors[cut.factor] = Tensor(cut.factor, DType.F32, tensors[tops.out.tensor].shape, Role.LOCAL)
    exps = tensors[found.powers.out.tensor]
    tensors[exps.name] = replace(exps, shape=cut.index(exps.shape, count, cut.each))
    changed = {
        found.top.name: (tops,),
        found.powers.name: (cut.powers(),),
        found.total.name: (cut.sums(sums), top, cut.total(total)),
        **{op.name: (cut.reader(op, dim),) for op, dim in found.readers},
    }
    if found.readers:
        first = min((op for op, _ in found.readers), key=kernel.ops.index).name
        changed[first] = (cut.factors(top), *changed[first])
    ops = tuple(new for old in kernel.ops for new in changed.get(old.name, (old,)))
    return replace(kernel, tensors=tensors, ops=ops)


@dataclass(frozen=True, slots=True)
class _Cut:
    """The ops of a softmax, rewritten: `tops` and `factor` are tensors of a row per part."""

    of: RowSoftmax
    parts: Expr
    tops: str
    factor: str

    @property
    def each(self) -> Expr:
        """Rows of a part."""
        return self.of.dim.extent // self.parts

    def index(self, index: Sequence[Expr], part: Expr, row: Expr) -> tuple[Expr, ...]:
        """What stands for an index, or a shape, of the exponentials."""
        return (*index[: self.of.place], part, row, *index[self.of.place + 1 :])

    def powers(self) -> Op:
        """Exponentials below the maximum of the part; of a part that is -inf all over, 0."""
        op, part, row = _in_parts(self.of.powers, self.of.row, self.parts, self.each)
        at = (part, *(Expr.var(self.of.names[d.name]) for d in self.of.top.dims))
        top = Load(self.tops, at, DType.F32)
        bounded = Call("gt", (top, Const(-inf, DType.F32)), DType.BOOL)
        below = Call("where", (bounded, top, Const(0.0, DType.F32)), DType.F32)

        def change(node: Scalar) -> Scalar:
            own = isinstance(node, Load) and node.tensor == self.of.top.out.tensor
            return below if own else node

        out = Access(op.out.tensor, self.index(op.out.index, part, row))
        return replace(op, body=rewritten(op.body, change), out=out)

    def sums(self, op: Op) -> Op:
        """The sums of parts, of exponentials that lie in parts."""
        part, row = Expr.var(op.dims[0].name), Expr.var(op.rdims[0].name)
        (whole,) = loads(op)
        return replace(op, body=self._exponential(whole, part, row))

    def factors(self, top: Op) -> Op:
        """What each part's exponentials are too large by."""
        dims = (*top.rdims, *top.dims)
        own = Load(self.tops, vars_of(dims), DType.F32)
        body = self._below(own, Load(top.out.tensor, top.out.index, DType.F32))
        out = Access(self.factor, vars_of(dims))
        return Op(self.factor, Kind.MAP, dims, body, out, source=top.source)

    def total(self, op: Op) -> Op:
        """The sum of the parts' sums, each times its factor, which so few points make anew."""
        (whole,) = loads(self.of.total)
        own = self._of_part(self.tops, whole.index, Expr.var(op.rdims[0].name))
        names = {d.name: e for d, e in zip(self.of.top.dims, own.index[1:], strict=True)}
        at = tuple(e.substitute(names) for e in self.of.top.out.index)
        factor = self._below(own, Load(self.of.top.out.tensor, at, DType.F32))
        return replace(op, body=Call("mul", (op.body, factor), DType.F32))

    @staticmethod
    def _below(own: Load, top: Load) -> Call:
        return Call("exp", (Call("sub", (own, top), DType.F32),), DType.F32)

    def reader(self, op: Op, dim: Dim) -> Op:
        """An op that reads exponentials, each times its factor."""
        op, part, row = _in_parts(op, dim, self.parts, self.each)

        def change(node: Scalar) -> Scalar:
            if not isinstance(node, Load) or node.tensor != self.of.powers.out.tensor:
                return node
            own = self._exponential(node, part, row)
            return Call("mul", (own, self._of_part(self.factor, node.index, part)), DType.F32)

        return replace(op, body=rewritten(op.body, change))

    def _exponential(self, node: Load, part: Expr, row: Expr) -> Load:
        return replace(node, index=self.index(node.index, part, row))

    def _of_part(self, tensor: str, index: Sequence[Expr], part: Expr) -> Load:
        """What a tensor of a row per part has for an exponential that was at an index."""
        place = {sole_name(e): n for n, e in enumerate(self.of.powers.out.index)}
        at = (index[place[self.of.names[d.name]]] for d in self.of.top.dims)
        return Load(tensor, (part, *at), DType.F32)


def _in_parts(op: Op, dim: Dim, parts: Expr, each: Expr) -> tuple[Op, Expr, Expr]:
    """The op with a dim walked by two; the index of the part, and within it."""
    cut = divided_dim(op, dim, parts, each)
    at = op.dims.index(dim)
    return cut, Expr.var(cut.dims[at].name), Expr.var(cut.dims[at + 1].name)
