"""The loop nests of region dumps as ops: bodies, indices, lookups, views (see `regions.py`)."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from openspyre.ir.index import Expr, combine
from openspyre.ir.kernel import (
    Access,
    Call,
    Const,
    DType,
    Index,
    Kind,
    Load,
    Lookup,
    Op,
    Role,
    Scalar,
    Tensor,
    walk,
)
from openspyre.ir.text import contiguous_strides
from openspyre.ir.text_body import result_class

if TYPE_CHECKING:
    from tests.regions import Nest

_DTYPES = {d.value: d for d in DType}
_BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.BitAnd: "and",
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
}  # fmt: skip
_CALLS = {"minimum": "min", "maximum": "max", "logical_not": "not"}
_KINDS = {"dot": Kind.CONTRACT, "reduce": Kind.REDUCE, "gather": Kind.GATHER}


def index_expr(text: str) -> Expr:
    """A size or an index of a dump."""
    return _index(ast.parse(_python(text).strip(), mode="eval").body)


def _python(text: str) -> str:
    """Dump syntax as Python syntax: `a:b1` becomes `a@b1`, `a . b` `a >> b`, `i^` `i |carry`."""
    text = re.sub(r"(<\^|\^|<)(?=\s*[,\]])", " |carry", text)
    text = re.sub(r":(\w+)", r"@\1", text.replace(" . ", " >> ").replace("[]", "[()]"))
    text = text.replace(", nowrap)", ", nowrap=1)")
    return re.sub(r"\)\.(\d)$", r")._\1", text)


def _index(node: ast.expr) -> Expr:
    match node:
        case ast.Constant(value=int(value)):
            return Expr.of(value)
        case ast.Name(id=name):
            return Expr.var(name)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_index(inner)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=2)):
            return _index(left) * _index(left)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _index(left) + _index(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _index(left) - _index(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _index(left) * _index(right)
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
            return _index(left) // _index(right)
        case ast.Call(func=ast.Name(id="ModularIndexing"), args=[value, by, size]):
            return (_index(value) // _index(by)) % _index(size)
        case ast.Call(func=ast.Name(id="min" | "max" as op), args=[left, right]):
            return combine(op, _index(left), _index(right))
        case ast.Call(func=ast.Name(id="abs"), args=[value]):
            return combine("max", _index(value), -_index(value))
    raise ValueError(f"cannot read the index {ast.unparse(node)}")


@dataclass(frozen=True, slots=True)
class _Number:
    """A literal whose class its surroundings decide."""

    value: float | int


class NestReader:
    """Turns nests into ops; `tensors` gains the locals that this takes."""

    def __init__(
        self,
        tensors: dict[str, Tensor],
        views: dict[str, tuple[str, int]],
        symbols: tuple[str, ...],
    ) -> None:
        self.tensors, self.views, self.symbols = tensors, views, symbols

    def ops(self, nest: Nest) -> list[Op]:
        return _Reader(self, nest).ops()


class _Reader:
    def __init__(self, owner: NestReader, nest: Nest) -> None:
        self.owner, self.nest = owner, nest
        self.tensors = owner.tensors
        self.lookups: dict[str, Lookup] = {}
        self.values: dict[str, Scalar | _Number] = {}
        self.before: list[Op] = []
        self.guarded = False

    def ops(self) -> list[Op]:
        *named, store = self.nest.lines
        for line in named:
            name, _, text = line.strip().partition(" = ")
            self.define(name, _tree(text))
        target, _, text = store.partition("<-")
        match _tree(target):
            case ast.Subscript(value=ast.Name(id=name), slice=places):
                out = self.access(name, places)
        body, reduce, rank = self.reduced(_tree(text))
        return [*self.before, *self.finish(self.scalar(body), reduce, rank, out)]

    def finish(self, body: Scalar, reduce: str | None, rank: int | None, out: Access) -> list[Op]:
        nest = self.nest
        used = {n for node in walk(body) if isinstance(node, Load) for e in node.index
                for n in e.names}  # fmt: skip
        lookups = tuple(lookup for name, lookup in self.lookups.items() if name in used)
        kind = _KINDS.get(nest.kind, Kind.MAP)
        if kind is Kind.GATHER and not lookups:
            kind = Kind.MAP
        op = Op(
            nest.name, kind, nest.dims, body, out, nest.rdims, reduce, lookups, False,
            f"op{nest.op}",
        )  # fmt: skip
        return [op] if rank is None else self.welford(op, rank)

    def welford(self, op: Op, rank: int) -> list[Op]:
        """Mean (rank 0) or sum of squared differences (rank 1) as sums."""
        shape = tuple(d.extent for d in op.dims)
        place = tuple(Expr.var(d.name) for d in op.dims)
        count = 1
        for dim in op.rdims:
            count *= dim.extent.constant or 1
        total, mean = f"{op.out.tensor}_sum", f"{op.out.tensor}_mean"
        for name in (total, mean)[: rank + 1]:
            self.tensors[name] = Tensor(name, DType.F32, shape, Role.LOCAL)
        sums = replace(op, name=f"{op.name}_sum", out=Access(total, place), reduce="sum")
        scaled = Call(
            "mul", (Load(total, place, DType.F32), Const(1 / count, DType.F32)), DType.F32
        )
        means = replace(op, kind=Kind.MAP, body=scaled, rdims=(), reduce=None, lookups=())
        if rank == 0:
            return [sums, means]
        means = replace(means, name=f"{op.name}_mean", out=Access(mean, place))
        apart = Call("sub", (op.body, Load(mean, place, DType.F32)), DType.F32)
        return [sums, means, replace(op, body=Call("mul", (apart, apart), DType.F32), reduce="sum")]

    def define(self, name: str, node: ast.expr) -> None:
        match node:
            case ast.Call(func=ast.Name(id="indirect"), args=[value], keywords=[size, *nowrap]):
                self.lookups[name] = self.lookup(name, value, size, wrap=not nowrap)
            case ast.Call(func=ast.Subscript(value=ast.Name(id="dot" | "sum" | "max"))):
                self.values[name] = _Pending(node)  # type: ignore[assignment]
            case ast.BinOp(op=ast.RShift()):
                self.values[name] = _Pending(node)  # type: ignore[assignment]
            case _:
                self.values[name] = self.value(node)

    def reduced(self, node: ast.expr) -> tuple[Scalar | _Number, str | None, int | None]:
        """The body, the reduction, and which result of a welford reduction."""
        match node:
            case ast.Name(id=name) if isinstance(self.values.get(name), _Pending):
                return self.reduced(self.values[name].node)  # type: ignore[union-attr]
            case ast.Attribute(value=inner, attr=attr):
                body, _, _ = self.reduced(inner)
                return body, "sum", int(attr[1:])
            case ast.Call(func=ast.Subscript(value=ast.Name(id="dot")), args=[product]):
                return self.product(product), "sum", None
            case ast.Call(func=ast.Subscript(value=ast.Name(id=reduce)), args=[value]):
                return self.value(value), reduce, None
        return self.value(node), None, None

    def product(self, node: ast.expr) -> Scalar:
        match node:
            case ast.Name(id=name):
                return self.product(self.values[name].node)  # type: ignore[union-attr]
            case ast.BinOp(left=left, op=ast.RShift(), right=right):
                args = (self.scalar(self.value(left)), self.scalar(self.value(right)))
                return Call("mul", args, DType.F32)
        raise ValueError(f"no product: {ast.unparse(node)}")

    # --- indices ---

    def lookup(self, name: str, value: ast.expr, size: ast.keyword, *, wrap: bool) -> Lookup:
        extent = _index(size.value)
        match self.scalar(self.value(value)):
            case Load(tensor, index, _, False) if not self.looked_up(index):
                return Lookup(name, tensor, index, extent, wrap)
            case body:
                return self.computed_lookup(name, body, extent, wrap=wrap)

    def looked_up(self, index: tuple[Expr, ...]) -> bool:
        return any(expr.names & self.lookups.keys() for expr in index)

    def computed_lookup(self, name: str, body: Scalar, size: Expr, *, wrap: bool) -> Lookup:
        """A lookup of a value that is no plain load: an op before this one stores it."""
        names = {n for node in walk(body) for n in _names(node)}
        used = {n for lookup in self.lookups.values() if lookup.name in names
                for e in lookup.index for n in e.names} | names  # fmt: skip
        dims = tuple(d for d in self.nest.dims + self.nest.rdims if d.name in used)
        place = tuple(Expr.var(d.name) for d in dims)
        table = f"{self.nest.lines[-1].strip().partition('[')[0]}_{name}"
        self.tensors[table] = Tensor(table, DType.I64, tuple(d.extent for d in dims), Role.LOCAL)
        lookups = tuple(v for n, v in self.lookups.items() if n in names)
        kind = Kind.GATHER if lookups else Kind.MAP
        self.before.append(
            Op(
                f"{self.nest.name}_{name}", kind, dims, body, Access(table, place),
                lookups=lookups, source=f"op{self.nest.op}",
            )
        )  # fmt: skip
        return Lookup(name, table, place, size, wrap)

    def access(self, name: str, places: ast.expr) -> Access:
        index, _ = self.places(name, places)
        if name not in self.owner.views:
            return Access(name, index)
        base, offset = self.owner.views[name]
        shifted = []
        strides = contiguous_strides(self.tensors[base].shape)
        for at, stride in zip(index, strides, strict=True):
            step = stride.constant
            assert step, "a view of a symbolic buffer"
            shifted.append(at + offset // step)
            offset %= step
        return Access(base, tuple(shifted))

    def places(self, name: str, node: ast.expr) -> tuple[tuple[Expr, ...], bool]:
        """The index per dim (carries resolved), and whether one was marked."""
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        marked = [isinstance(p, ast.BinOp) and isinstance(p.op, ast.BitOr) for p in parts]
        plain = [p.left if m else p for p, m in zip(parts, marked, strict=True)]  # type: ignore[attr-defined]
        index = [_index(part) for part in plain]
        shape = self.tensors[name].shape
        outer_one = all(extent.constant == 1 for extent in shape[: len(shape) - 1])
        if not any(marked) or (self.guarded and outer_one):
            return tuple(index), any(marked)
        for dim in range(len(index) - 1, 0, -1):
            if any(marked[dim:]):
                index[dim - 1] = index[dim - 1] + index[dim] // shape[dim]
                index[dim] = index[dim] % shape[dim]
        return tuple(index), True

    # --- values ---

    def scalar(self, value: Scalar | _Number) -> Scalar:
        if isinstance(value, _Number):
            dtype = DType.F32 if isinstance(value.value, float) else DType.I64
            return Const(value.value, dtype)
        return value

    def value(self, node: ast.expr) -> Scalar | _Number:
        match node:
            case ast.Constant(value=bool(truth)):
                return Const(int(truth), DType.BOOL)
            case ast.Constant(value=number) if isinstance(number, int | float):
                return _Number(number)
            case ast.Name(id="inf"):
                return _Number(float("inf"))
            case ast.Name(id=name):
                return self.values[name]
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return self.negated(self.value(inner))
            case ast.BinOp(left=left, op=ast.MatMult(), right=ast.Name(id=dtype)):
                return self.stated(left, _DTYPES[dtype])
            case ast.BinOp(left=left, op=op, right=right):
                return self.call(_BINARY[type(op)], [left, right])  # type: ignore[index]
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.call(_BINARY[type(op)], [left, right])  # type: ignore[index]
            case ast.Subscript(value=ast.Name(id=name), slice=places):
                return self.load(name, places)
            case ast.Call(func=ast.Name(id=name), args=args):
                return self.named(name, args)
        raise ValueError(f"cannot read {ast.unparse(node)}")

    def negated(self, value: Scalar | _Number) -> Scalar | _Number:
        if isinstance(value, _Number):
            return _Number(-value.value)
        return Call("neg", (value,), value.dtype.compute)

    def stated(self, node: ast.expr, dtype: DType) -> Scalar:
        match self.value(node):
            case _Number(value):
                return Const(value, dtype)
            case Index(value, _) if dtype is DType.I32:
                return Index(value, dtype)
            case Const(value, _):
                return Const(value, dtype)
            case value:
                return Call("cast", (value,), dtype)

    def load(self, name: str, places: ast.expr) -> Load:
        index, _ = self.places(name, places)
        return Load(name, index, self.tensors[name].dtype.compute, self.guarded)

    def named(self, name: str, args: list[ast.expr]) -> Scalar:
        if name == "idx":
            return Index(_index(args[0]))
        if name in _DTYPES:
            return Call("cast", (self.scalar(self.value(args[0])),), _DTYPES[name])
        if name == "relu":
            value = self.scalar(self.value(args[0]))
            return Call("max", (value, Const(0.0, DType.F32)), DType.F32)
        if name == "masked":
            return self.masked(*args)
        return self.call(_CALLS.get(name, name), args)

    def masked(self, condition: ast.expr, inner: ast.expr, other: ast.expr) -> Scalar:
        truth = self.scalar(self.value(condition))
        before, self.guarded = self.guarded, True
        value = self.scalar(self.value(inner))
        self.guarded = before
        args = [truth, value, *self.agreed([value, self.value(other)])[1:]]
        return Call("where", tuple(args), value.dtype.compute)

    def call(self, op: str, nodes: list[ast.expr]) -> Scalar:
        values = [self.value(node) for node in nodes]
        if op == "where":
            args = [self.scalar(values[0]), *self.agreed(values[1:])]
        else:
            args = self.agreed(values)
        return Call(op, tuple(args), result_class(op, tuple(args)))

    def agreed(self, values: list[Scalar | _Number]) -> list[Scalar]:
        """Literals take the class of what they stand beside."""
        classes = [v.dtype.compute for v in values if not isinstance(v, _Number)]
        args = []
        for value in values:
            if isinstance(value, _Number) and classes:
                typed = float(value.value) if classes[0] is DType.F32 else value.value
                args.append(Const(typed, classes[0]))
            else:
                args.append(self.scalar(value))
        return args


@dataclass(frozen=True, slots=True)
class _Pending:
    """A named reduction or product, read where it is used."""

    node: ast.expr


def _names(node: Scalar) -> frozenset[str]:
    match node:
        case Load(_, index):
            return frozenset(name for expr in index for name in expr.names)
        case Index(value):
            return value.names
    return frozenset()


def _tree(text: str) -> ast.expr:
    return ast.parse(_python(text).strip(), mode="eval").body
