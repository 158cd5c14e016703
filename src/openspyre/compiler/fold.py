"""Scalar expressions made simpler where that is exact: decided conditions, idle casts."""

from __future__ import annotations

from dataclasses import replace

from openspyre.compiler.ranges import Facts
from openspyre.compiler.rewrite import facts_of, rewritten
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Call, Const, DType, Index, Kernel, Load, Op, Scalar

_ORDER = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_EXACT_BITS = 31  # index arithmetic in i32 must stay inside this to be an expression


def fold_scalars(kernel: Kernel) -> Kernel:
    """Folds every op's body and drops guards of loads that stay inside their tensor."""
    return replace(kernel, ops=tuple(folded(op, kernel) for op in kernel.ops))


def folded(op: Op, kernel: Kernel) -> Op:
    facts = facts_of(op, kernel)
    body = rewritten(op.body, lambda node: _fold(node, facts, kernel))
    return op if body is op.body else replace(op, body=body)


def as_expr(value: Scalar, facts: Facts) -> Expr | None:
    """The index expression that an integer scalar is, if it is one (of dims and sizes only)."""
    match value:
        case Const(value=number, dtype=DType.I64 | DType.I32):
            return Expr.of(int(number))
        case Index(value=expr):
            return expr
        case Call(op="add" | "sub" | "mul" | "neg" as op, args=args, dtype=DType.I64 | DType.I32):
            parts = [as_expr(a, facts) for a in args]
            known = [p for p in parts if p is not None]
            if len(known) != len(parts):
                return None
            expr = _combined(op, known)
        case Call(op="cast", args=(arg,), dtype=DType.I64 | DType.I32):
            inner = as_expr(arg, facts) if arg.dtype.compute in (DType.I64, DType.I32) else None
            if inner is None:
                return None
            expr = inner
        case _:
            return None
    low, high = facts.interval(expr)
    bits = _EXACT_BITS if value.dtype is DType.I32 else 62
    return expr if -(1 << bits) < low and high < 1 << bits else None


def _combined(op: str, parts: list[Expr]) -> Expr:
    match op:
        case "add":
            return parts[0] + parts[1]
        case "sub":
            return parts[0] - parts[1]
        case "mul":
            return parts[0] * parts[1]
        case _:
            return -parts[0]


def _fold(node: Scalar, facts: Facts, kernel: Kernel) -> Scalar:
    match node:
        case Load(guarded=True, tensor=tensor, index=index):
            shape = kernel.tensors[tensor].shape
            if all(facts.within(e, size) for e, size in zip(index, shape, strict=True)):
                return replace(node, guarded=False)
        case Index(value=expr):
            simple = facts.simplify(expr)
            if simple.constant is not None:
                return Const(simple.constant, node.dtype)
            return node if simple == expr else replace(node, value=simple)
        case Call(op="cast", args=(arg,)):
            return arg if _cast_is_identity(arg, node.dtype, kernel) else node
        case Call(op="mul", args=(a, Const(value=1, dtype=kind))) if a.dtype.compute == kind:
            return a
        case Call(op="mul", args=(Const(value=1, dtype=kind), a)) if a.dtype.compute == kind:
            return a
        case Call(op="and" | "or" | "not", dtype=DType.BOOL):
            return _fold_logic(node)
        case Call(op="where", args=(condition, yes, no)):
            if isinstance(condition, Const):
                return yes if condition.value else no
            return yes if yes == no else node
        case Call(op=op, args=args) if op in _ORDER:
            return _fold_compare(node, args, facts)
    return node


def _cast_is_identity(arg: Scalar, target: DType, kernel: Kernel) -> bool:
    if target.compute is target:
        return arg.dtype.compute is target
    match arg:
        case Load(tensor=tensor):
            return kernel.tensors[tensor].dtype is target
        case Call(op="cast", dtype=already):
            return already is target
    return False


def _fold_logic(node: Call) -> Scalar:
    truth = [bool(a.value) if isinstance(a, Const) else None for a in node.args]
    if node.op == "not":
        return node if truth[0] is None else Const(int(not truth[0]), DType.BOOL)
    absorbing = node.op == "or"
    for known, other in ((0, 1), (1, 0)):
        if truth[known] is not None:
            settled = truth[known] is absorbing
            return Const(int(absorbing), DType.BOOL) if settled else node.args[other]
    return node.args[0] if node.args[0] == node.args[1] else node


def _fold_compare(node: Call, args: tuple[Scalar, ...], facts: Facts) -> Scalar:
    left, right = as_expr(args[0], facts), as_expr(args[1], facts)
    if left is None or right is None:
        return node
    truth = decided(node.op, left - right, facts)
    return node if truth is None else Const(int(truth), DType.BOOL)


def decided(op: str, difference: Expr, facts: Facts) -> bool | None:
    """Whether `difference op 0` holds at every point (True), at none (False), or it depends."""
    match op:
        case "lt":
            return decided_sign(-difference - 1, facts)
        case "le":
            return decided_sign(-difference, facts)
        case "gt":
            return decided_sign(difference - 1, facts)
        case "ge":
            return decided_sign(difference, facts)
        case "eq" | "ne":
            if not difference.terms:
                return op == "eq"
            apart = facts.nonnegative(difference - 1) or facts.nonnegative(-difference - 1)
            return (op == "ne") if apart else None
    return None


def decided_sign(expr: Expr, facts: Facts) -> bool | None:
    """Whether expr >= 0 always (True), never (False), or it depends (None)."""
    if facts.nonnegative(expr):
        return True
    return False if facts.nonnegative(-expr - 1) else None
