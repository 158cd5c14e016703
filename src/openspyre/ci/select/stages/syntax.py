"""Small questions about Python's syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from .canonical import Piece, Reader, dotted

Guards = tuple[ast.AST, ...]


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def piece_of(guards: Guards, *nodes: ast.AST) -> Piece:
    reader = Reader().read(*guards, *nodes)
    functions = all(isinstance(node, FunctionNode) for node in nodes)
    return reader.piece(local=functions and bool(nodes))


def instantiating(node: ast.AST) -> list[ast.Call]:
    return [
        call for call in ast.walk(node)
        if isinstance(call, ast.Call) and last_part(dotted(call.func)).startswith("instantiate_")
    ]  # fmt: skip


def instantiates(node: ast.AST) -> bool:
    return bool(instantiating(node))


def calls(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Name | ast.Attribute)
        and last_part(dotted(n.func)) == name for n in ast.walk(node)
    )  # fmt: skip


def passes_class(node: ast.AST, classes: Sequence[str]) -> bool:
    """Whether a class is an argument of a call."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            given = [*call.args, *(k.value for k in call.keywords)]
            if any(name in classes for argument in given for name in names_in(argument)):
                return True
    return False


def changed_names(node: ast.AST) -> set[str]:
    """`skips` in `skips.update(...)` and `skips[1] = 2`, also inside a loop."""
    found = set()
    for n in ast.walk(node):
        match n:
            case ast.Expr(value=ast.Call(func=ast.Attribute() as func)):
                found.add(dotted(func).partition(".")[0])
            case ast.Subscript(ctx=ast.Store()):
                found.add(root_name(n))
    return found


def is_loop(node: ast.AST) -> bool:
    return isinstance(node, ast.For | ast.While | ast.AsyncFor)


def is_main(test: ast.expr) -> bool:
    return any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(test))


def bound_names(target: ast.expr) -> Iterator[str]:
    match target:
        case ast.Name(id=name):
            yield name
        case ast.Tuple(elts=inner) | ast.List(elts=inner):
            for item in inner:
                yield from bound_names(item)
        case ast.Starred(value=inner):
            yield from bound_names(inner)


def elements(node: ast.expr) -> list[ast.expr]:
    """`(Base,)` as an argument of `type`."""
    return node.elts if isinstance(node, ast.Tuple | ast.List) else []


def stored_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id


def names_in(node: ast.AST) -> Iterator[str]:
    return (n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def root_name(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((k.value for k in call.keywords if k.arg == name), None)


def texts_in(node: ast.expr | None) -> tuple[str, ...]:
    if node is None:
        return ()
    return tuple(n.value for n in ast.walk(node)
                 if isinstance(n, ast.Constant) and isinstance(n.value, str))  # fmt: skip


def last_part(name: str) -> str:
    return name.rpartition(".")[2]


def one_line(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:200]
