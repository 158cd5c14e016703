"""Stage 1, one class or function: its parts, hashed one by one."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace

from .canonical import Piece, Reader, digest, dotted, without_docstring
from .shape import ClassShape, Decorator, Method, is_test
from .syntax import FunctionNode, Guards, calls, last_part, one_line, piece_of

_GENERATING = ("ops", "modules", "optims", "dtypes", "given", "reparametrize", "subtest")


_LIMITING = ("skip", "xfail", "only", "expected", "decorate", "disable", "suppress", "with")


COMPUTED = frozenset({"exec", "eval", "globals", "locals", "vars", "setattr", "type"})


NOTHING = Piece("", (), (), 0, 0)


def method_of(node: FunctionNode) -> Method:
    """A function's parts, hashed one by one."""
    body = without_docstring(node.body)
    own = Reader().read(node.args, body)
    reader = Reader().bind(own.bound_names()).read(body)
    signature = Reader().say(type(node).__name__).read(node.args, node.returns)
    decorators = tuple(map(_decorator, node.decorator_list))
    line = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    end = node.end_lineno or node.lineno
    return Method(
        node.name, reader.piece(line=node.lineno, end=end),
        signature.piece(line=node.lineno, end=node.lineno, local=True), decorators, line, end,
    )  # fmt: skip


def no_test(name: str) -> Method:
    """A name that hides an inherited test."""
    return Method(name, NOTHING, NOTHING, (), 0, 0)


def class_of(node: ast.ClassDef, guards: Guards, name: str) -> ClassShape:
    """A class's parts. Conditions inside it belong to what stands under them."""
    methods: dict[str, Method] = {}
    generators: list[Piece] = []
    own = Reader().read(*guards, node.bases, node.keywords)
    for statement, inside in _flat(without_docstring(node.body), ()):
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found = _guarded(method_of(statement), inside)
                known = methods.get(found.name)
                if known is not None and (inside or _is_accessor(statement)):
                    found = replace(found, body=both(known.body, found.body))
                methods[found.name] = found
            case ast.ClassDef():
                if not any(is_test(n.name) for n in statement.body if isinstance(n, FunctionNode)):
                    own.read(*inside, statement)
            case ast.Assign(targets=[ast.Name(id=test)], value=ast.Constant(value=None)) if is_test(
                test
            ):
                methods[test] = no_test(test)
            case ast.Assign(targets=[ast.Name(id=test)]) if is_test(test):
                piece = piece_of(inside, statement)
                empty = Piece("", (), (), piece.line, piece.line)
                methods[test] = Method(test, piece, empty, (), piece.line, piece.end)
            case ast.For() | ast.While() | ast.Expr(value=ast.Call()) if any(
                calls(statement, word) for word in COMPUTED
            ):
                generators.append(piece_of(inside, statement))
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case _:
                own.read(*inside, statement)
    decorators = tuple(map(_decorator, node.decorator_list))
    for decorator in node.decorator_list:
        own.read(decorator)
    return ClassShape(
        name, tuple(filter(None, map(_base_name, node.bases))),
        own.piece(line=node.lineno, end=node.end_lineno or 0, local=False), decorators, methods,
        tuple(generators), node.lineno, node.end_lineno or node.lineno,
    )  # fmt: skip


def _flat(body: Iterable[ast.stmt], guards: Guards) -> Iterator[tuple[ast.stmt, Guards]]:
    for node in body:
        match node:
            case ast.If(test=test, body=inner, orelse=orelse):
                yield from _flat(inner, (*guards, test))
                yield from _flat(orelse, (*guards, ast.Not(), test))
            case ast.Try(body=inner, handlers=handlers, orelse=orelse, finalbody=final):
                yield from _flat([*inner, *orelse, *final], guards)
                for handler in handlers:
                    yield from _flat(handler.body, (*guards, handler.type or ast.Pass()))
            case ast.With(items=items, body=inner):
                yield from _flat(inner, (*guards, *(item.context_expr for item in items)))
            case _:
                yield node, guards


def _guarded(method: Method, guards: Guards) -> Method:
    """A condition in the class is read with the decorators: both say whether there is a test."""
    if not guards:
        return method
    piece = piece_of(guards)
    guard = Decorator("if", "if " + " and ".join(map(one_line, guards)), piece, generates=False)
    return replace(method, decorators=(guard, *method.decorators))


def both(one: Piece, other: Piece) -> Piece:
    return Piece(
        digest([one.hash, other.hash]), tuple(sorted({*one.names, *other.names})),
        tuple(sorted({*one.called, *other.called})), one.line, other.end,
    )  # fmt: skip


def joined(one: ClassShape, other: ClassShape) -> ClassShape:
    """A class that is written twice under conditions."""
    methods = dict(one.methods)
    for name, method in other.methods.items():
        known = methods.get(name)
        methods[name] = replace(method, body=both(known.body, method.body)) if known else method
    return replace(
        other, bases=tuple(dict.fromkeys((*one.bases, *other.bases))), methods=methods,
        own=both(one.own, other.own), generators=(*one.generators, *other.generators),
    )  # fmt: skip


def _decorator(node: ast.expr) -> Decorator:
    called = node.func if isinstance(node, ast.Call) else node
    name = last_part(dotted(called)) or type(called).__name__
    word = name.lower().lstrip("_")
    generates = (
        "parametri" in word
        or word.startswith("dtypes")
        or (word.endswith(_GENERATING) and not word.startswith(_LIMITING))
    )
    return Decorator(name, one_line(node), Reader().read(node).piece(local=True), generates)


def class_piece(node: ast.ClassDef, guards: Guards) -> Piece:
    """What a class is to those that name it: all of it but tests."""
    reader = Reader().read(*guards, node.bases, node.keywords, node.decorator_list)
    for statement in without_docstring(node.body):
        if not (isinstance(statement, FunctionNode) and is_test(statement.name)):
            reader.read(statement)
    return reader.piece(line=node.lineno, end=node.end_lineno or 0)


def _is_accessor(node: FunctionNode) -> bool:
    return any(
        last_part(dotted(d)) in ("setter", "deleter", "overload") for d in node.decorator_list
    )


def _base_name(node: ast.expr) -> str:
    """The class that a base stands for: itself, or what is handed to the call that makes it."""
    if isinstance(node, ast.Call):
        return next((name for a in node.args if (name := dotted(a))), dotted(node.func))
    return dotted(node)
