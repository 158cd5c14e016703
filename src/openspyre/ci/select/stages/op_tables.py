"""Tables of ops: their entries, read one by one, and the rest of the statement around them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from .canonical import Piece, Reader, dotted
from .shape import OpEntry
from .syntax import Guards, keyword, last_part, piece_of


def table_piece(node: ast.stmt, guards: Guards) -> Piece:
    """A statement that makes a table, without the entries, which are compared one by one."""
    inside = {n for call in ast.walk(node) if _op_name(call) for n in ast.walk(call)}
    outside = [n for n in ast.walk(node) if n not in inside]
    names = [dotted(n) for n in outside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    reader = Reader().read(*guards)
    for n in outside:
        reader.say(type(n).__name__)
        if isinstance(n, ast.Name | ast.Constant):
            reader.read(n)
    piece = reader.piece(line=getattr(node, "lineno", 0), local=False)
    return replace(piece, names=tuple(sorted({*piece.names, *names})))


def op_entries(node: ast.AST) -> Iterator[OpEntry]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and (name := _op_name(call)):
            variant = keyword(call, "variant_test_name")
            text = variant.value if isinstance(variant, ast.Constant) else ""
            yield OpEntry(name, str(text), last_part(dotted(call.func)), piece_of((), call))


def _op_name(node: ast.AST) -> str:
    match node:
        case ast.Call(func=func) if last_part(dotted(func)).endswith("Info"):
            first = next(iter(node.args), None) or keyword(node, "name")
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                return first.value
            if first is not None and last_part(dotted(func)) in ("ModuleInfo", "OptimizerInfo"):
                return dotted(first)
    return ""


def asked_class(node: ast.stmt) -> str:
    """`[op for op in op_db if isinstance(op, UnaryUfuncInfo)]`: UnaryUfuncInfo."""
    match getattr(node, "value", None):
        case ast.ListComp(generators=[ast.comprehension(ifs=ifs)]):
            for test in ifs:
                match test:
                    case ast.Call(func=ast.Name(id="isinstance"), args=[_, asked]):
                        return last_part(dotted(asked))
    return ""
