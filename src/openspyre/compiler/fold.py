"""Scalar expressions made simpler where that is exact: decided conditions, idle casts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from openspyre.compiler.ranges import Facts
from openspyre.compiler.rewrite import facts_of, rewritten
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Call, Const, DType, Index, Kernel, Load, Op, Scalar

_ORDER = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_EXACT = (0.0, inf, -inf)
_EXACT_BITS = 31  # index arithmetic in i32 must stay inside this to be an expression


def fold_scalars(kernel: Kernel) -> Kernel:
    """Folds every op's body and drops guards of loads that stay inside their tensor."""
    return replace(kernel, ops=tuple(folded(op, kernel) for op in kernel.ops))


def folded(op: Op, kernel: Kernel) -> Op:
    body = folded_body(op.body, facts_of(op, kernel), kernel)
    return op if body is op.body else replace(op, body=body)


def folded_body(body: Scalar, facts: Facts, kernel: Kernel) -> Scalar:
    """The body made simpler by what is known of its dims."""
    return rewritten(body, lambda node: _fold(node, facts, kernel))


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
        case Call(op="cast", args=(Call(op="where", args=(_, Const(), Const())) as arg,)):
            return arg if _kept_by_cast(arg.args[1:], node.dtype) else node
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
            return yes if yes == no else _fold_choice(node, condition, yes, no)
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


def _kept_by_cast(values: Sequence[Scalar], dtype: DType) -> bool:
    """Whether a cast to a float dtype changes none of some constants."""
    exact = dtype.is_float and (not dtype.is_fp8 or dtype is DType.F8E5M2)
    return exact and all(
        isinstance(v, Const) and v.dtype is DType.F32 and v.value in _EXACT for v in values
    )


def _fold_choice(node: Call, condition: Scalar, yes: Scalar, no: Scalar) -> Scalar:
    """A choice between what is known of its branches: the same choice within them is made."""

    def chosen(branch: Scalar, place: int) -> Scalar:
        def inner(value: Scalar) -> Scalar:
            match value:
                case Call("where", args) if args[0] == condition:
                    return args[place]
            return value

        return rewritten(branch, inner)

    if isinstance(condition, Call) and condition.op == "not":
        turned = replace(node, args=(condition.args[0], no, yes))
        simpler = _fold_choice(turned, condition.args[0], no, yes)
        return node if simpler == turned else simpler
    new = chosen(yes, 1), chosen(no, 2)
    return node if new == (yes, no) else replace(node, args=(condition, *new))


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
    match args:
        case Call("where", (condition, Const(value=yes), Const(value=no))), Const(value=other):
            outcomes = _holds(node.op, yes, other), _holds(node.op, no, other)
            if outcomes[0] is outcomes[1]:
                return Const(int(outcomes[0]), DType.BOOL)
            return condition if outcomes[0] else Call("not", (condition,), DType.BOOL)
    left, right = _largest(args[0], facts), _largest(args[1], facts)
    pairs = [decided(node.op, x - y, facts) for x in left for y in right]
    if not pairs or (len(left) > 1 and len(right) > 1):
        return node
    settles = (node.op in ("gt", "ge")) is (len(left) > 1)  # by one pair for all of them
    if node.op in ("eq", "ne") and len(pairs) > 1:
        return node
    truth = settles if settles in pairs else None if None in pairs else not settles
    return node if truth is None else Const(int(truth), DType.BOOL)


def _holds(op: str, left: float, right: float) -> bool:
    return {
        "lt": left < right, "le": left <= right, "gt": left > right,
        "ge": left >= right, "eq": left == right, "ne": left != right,
    }[op]  # fmt: skip


def _largest(value: Scalar, facts: Facts) -> list[Expr]:
    """The expressions whose maximum a value is, none if it is something else; |x| is one of two."""
    match value:
        case Call("max", args, DType.I64 | DType.I32):
            parts = [_largest(a, facts) for a in args]
            return [e for part in parts for e in part] if all(parts) else []
        case Call("cast", (Call("max") as inner,), DType.I64 | DType.I32):
            found = _largest(inner, facts)
            fit = all(max(map(abs, facts.interval(e))) < 1 << _EXACT_BITS for e in found)
            return found if fit else []
    expr = as_expr(value, facts)
    return [] if expr is None else [expr]


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
