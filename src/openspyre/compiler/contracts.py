"""CONTRACT in the one form that the PT takes, everything else as the op that it really is.

Canonical: mul(Load a, Load b) of dtypes that PT takes together (`pt_dtypes`), or what is computed
of them in LX (`narrow.in_lx`), unguarded, without lookups; a dim of the result occurs in a (m), in
b (n) or in both (batch); every reduced dim (k) occurs in both; there is at least one n and one k.
"""

from __future__ import annotations

from dataclasses import replace

from openspyre.compiler.narrow import in_lx
from openspyre.compiler.rewrite import Fresh, settled, vars_of
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
    operand,
    pt_dtypes,
    walk,
)


def normalize_contracts(kernel: Kernel) -> Kernel:
    """Brings every CONTRACT into canonical form; operands that are not loads get tensors."""
    fresh, tensors, ops = Fresh(kernel), dict(kernel.tensors), list[Op]()
    for op in kernel.ops:
        if op.kind is Kind.CONTRACT:
            ops += _normalized(op, tensors, fresh)
        else:
            ops.append(op)
    return replace(kernel, tensors=tensors, ops=tuple(ops))


def operands(op: Op) -> tuple[Load, Load]:
    """The loads a and b of a canonical CONTRACT."""
    match op.body:
        case Call(op="mul", args=(one, other)):
            a, b = operand(one), operand(other)
            if a is not None and b is not None:
                return a, b
    raise ValueError(f"{op.name} is not a canonical contraction")


def names_in(load: Load) -> frozenset[str]:
    return frozenset[str]().union(*(e.names for e in load.index))


def roles(op: Op) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The batch, m, n and k dims of a canonical CONTRACT, in the op's order.

    A dim of the result that neither operand has counts as batch.
    """
    a, b = (names_in(load) for load in operands(op))
    dims = [d.name for d in op.dims]
    return (
        tuple(d for d in dims if (d in a) == (d in b)),
        tuple(d for d in dims if d in a and d not in b),
        tuple(d for d in dims if d in b and d not in a),
        tuple(d.name for d in op.rdims),
    )


def _normalized(op: Op, tensors: dict[str, Tensor], fresh: Fresh) -> list[Op]:
    if not op.rdims:
        return [settled(replace(op, kind=Kind.MAP, reduce=None))]
    match op.body:
        case Call(op="mul", args=(left, right)) if op.body.dtype is DType.F32:
            pass
        case _:
            return [_as_reduction(op)]
    if not _is_matmul(op, left, right):
        return [_as_reduction(op)]
    made: list[Op] = []
    dtypes = _dtypes(left, right, tensors)
    a = _operand(op, left, dtypes[0], tensors, fresh, made)
    b = _operand(op, right, dtypes[1], tensors, fresh, made)
    found = replace(op, body=Call("mul", (a, b), DType.F32), lookups=(), reduce="sum")
    if _wants_swap(op, *operands(found)):
        found = replace(found, body=Call("mul", (b, a), DType.F32))
    return [*made, found]


def _as_reduction(op: Op) -> Op:
    return settled(replace(op, kind=Kind.REDUCE, reduce="sum"))


def _names_of(op: Op, value: Scalar) -> frozenset[str]:
    lookups = {k.name: k for k in op.lookups}
    names: set[str] = set()
    for node in walk(value):
        if isinstance(node, Load):
            names |= names_in(node)
    for name in names & lookups.keys():
        names |= frozenset[str]().union(*(e.names for e in lookups[name].index))
    return frozenset(names)


def _is_matmul(op: Op, left: Scalar, right: Scalar) -> bool:
    a, b = _names_of(op, left), _names_of(op, right)
    if any(d.name not in a or d.name not in b for d in op.rdims):
        return False
    return any((d.name in a) != (d.name in b) for d in op.dims)


def _stored_dtype(value: Scalar, tensors: dict[str, Tensor]) -> DType:
    """The narrowest dtype that holds the value exactly."""
    match value:
        case Load(tensor=tensor) if tensors[tensor].dtype.is_float:
            return tensors[tensor].dtype
        case Call(op="cast", dtype=narrow) if narrow.is_float:
            return narrow
        case Call(op="where", args=(_, yes, no)):
            kinds = {_stored_dtype(v, tensors) for v in (yes, no) if not _is_zero(v)}
            return kinds.pop() if len(kinds) == 1 else DType.F32
        case Call(op="neg" | "abs", args=(inner,)):
            return _stored_dtype(inner, tensors)
    return DType.F32


def _is_zero(value: Scalar) -> bool:
    return isinstance(value, Const) and value.value == 0


def _dtypes(left: Scalar, right: Scalar, tensors: dict[str, Tensor]) -> tuple[DType, DType]:
    """Those in which the operands are read: of one dtype, or so that PT takes them together."""
    a, b = _stored_dtype(left, tensors), _stored_dtype(right, tensors)
    own_a, own_b = _input_dtype(left, tensors), _input_dtype(right, tensors)
    if own_b is not None and pt_dtypes(a, own_b) == (a, a):
        return a, own_b
    if own_a is not None and pt_dtypes(own_a, b) == (b, b):
        return own_a, b
    if a is b or (a.is_fp8 and b.is_fp8):
        return a, b
    wider = b if a.is_fp8 else a if b.is_fp8 else DType.F32  # which holds fp8 exactly
    return wider, wider


def _input_dtype(value: Scalar, tensors: dict[str, Tensor]) -> DType | None:
    """That of an input of floats which is read as it is."""
    match value:
        case Load(tensor=tensor, guarded=False) if tensors[tensor].role is Role.INPUT:
            return tensors[tensor].dtype
    return None


def _operand(
    op: Op, value: Scalar, dtype: DType, tensors: dict[str, Tensor], fresh: Fresh, made: list[Op]
) -> Scalar:
    """The operand as a plain load of `dtype`, from a tensor made for it where needed, or computed
    in LX.
    """
    lookups = {k.name for k in op.lookups}
    if not lookups and value.dtype is dtype and in_lx(value, tensors):
        return value
    match value:
        case Load(guarded=False) if (
            tensors[value.tensor].dtype is dtype
            and tensors[value.tensor].role is not Role.SCALAR
            and not names_in(value) & lookups
        ):
            return value
    names = _names_of(op, value)
    dims = tuple(d for d in (*op.dims, *op.rdims) if d.name in names)
    name = fresh.name(f"{op.name}_operand")
    tensors[name] = Tensor(name, dtype, tuple(d.extent for d in dims), Role.LOCAL)
    made_of = Op(
        name=name, kind=Kind.MAP, dims=dims, body=value, lookups=op.lookups,
        out=Access(name, vars_of(dims)), source=op.source,
    )  # fmt: skip
    made.append(settled(made_of))
    return Load(name, vars_of(dims), DType.F32)


def _wants_swap(op: Op, a: Load, b: Load) -> bool:
    """Whether b should be the left operand: n must exist and should be the result's last dim."""
    in_a, in_b = names_in(a), names_in(b)
    only_a = [d for d in op.dims if d.name in in_a - in_b]
    only_b = [d for d in op.dims if d.name in in_b - in_a]
    if not only_b or not only_a:
        return not only_b
    return _place(op, only_a[-1]) > _place(op, only_b[-1])


def _place(op: Op, dim: Dim) -> int:
    """The last position of the result that a dim indexes."""
    hits = [i for i, e in enumerate(op.out.index) if dim.name in e.names]
    return max(hits, default=-1)
