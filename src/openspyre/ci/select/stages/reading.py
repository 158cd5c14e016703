"""Stage 1, one file: Python source to its shape. Nothing of it is imported or run."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from .canonical import Piece, dotted, imported_names
from .class_reading import (
    COMPUTED,
    NOTHING,
    both,
    class_of,
    class_piece,
    joined,
    method_of,
    no_test,
)
from .op_tables import asked_class, op_entries, table_piece
from .shape import ClassShape, FileShape, Instantiation, Method, OpEntry, is_test
from .syntax import (
    FunctionNode,
    Guards,
    bound_names,
    calls,
    changed_names,
    elements,
    instantiates,
    instantiating,
    is_loop,
    is_main,
    keyword,
    last_part,
    names_in,
    one_line,
    passes_class,
    piece_of,
    root_name,
    stored_names,
    texts_in,
)

_FOR_DEVICES = "instantiate_device_type_tests"


_FILE_NAME = re.compile(rb"[\"'/]([\w.-]+\.\w{1,12})[\"']")


def shape_of(source: bytes) -> FileShape:
    """The shape of a file; encodings, line ends and tabs are Python's affair."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        found = {name.decode(errors="replace") for name in _FILE_NAME.findall(source)}
        return replace(_Module().read(tree), file_names=frozenset(found))
    except SyntaxError as error:
        return FileShape(error=f"{type(error).__name__}: {error.msg}", line=error.lineno or 0)
    except (ValueError, RecursionError, MemoryError) as error:
        return FileShape(error=f"{type(error).__name__}: {error}")


@dataclass(slots=True)
class _Module:
    """Collects what a module's statements mean, in order."""

    imports: dict[str, list[str]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    bindings: dict[str, list[Piece]] = field(default_factory=dict)
    classes: dict[str, ClassShape] = field(default_factory=dict)
    functions: dict[str, Method] = field(default_factory=dict)
    instantiations: list[Instantiation] = field(default_factory=list)
    effects: list[Piece] = field(default_factory=list)
    generators: list[Piece] = field(default_factory=list)
    of_class: dict[str, list[Piece]] = field(default_factory=dict)
    attributes: dict[str, list[Piece]] = field(default_factory=dict)
    tables: dict[str, tuple[OpEntry, ...]] = field(default_factory=dict)
    filters: dict[str, str] = field(default_factory=dict)

    def read(self, tree: ast.Module) -> FileShape:
        self._statements(tree.body, ())
        for name, pieces in self.of_class.items():
            shape = self.classes[name]
            self.classes[name] = replace(shape, generators=(*shape.generators, *pieces))
        for name, pieces in self.attributes.items():
            shape = self.classes[name]
            own = shape.own
            for piece in pieces:
                own = both(own, piece)
            self.classes[name] = replace(shape, own=own)
        return FileShape(
            imports={name: tuple(found) for name, found in self.imports.items()},
            stars=tuple(self.stars),
            bindings={name: tuple(found) for name, found in self.bindings.items()},
            classes=self.classes, functions=self.functions,
            instantiations=tuple(self.instantiations), effects=tuple(self.effects),
            generators=tuple(self.generators), tables=self.tables, filters=self.filters,
        )  # fmt: skip

    def _statements(self, body: Iterable[ast.stmt], guards: Guards) -> None:
        for node in body:
            self._statement(node, guards)

    def _statement(self, node: ast.stmt, guards: Guards) -> None:
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case ast.Import() | ast.ImportFrom():
                self._import(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, guards)
            case ast.ClassDef():
                self._class(node, guards)
            case ast.If(test=test, body=body, orelse=orelse):
                main = is_main(test)
                self._statements([n for n in body if not main or instantiates(n)], (*guards, test))
                self._statements(orelse, (*guards, ast.Not(), test))
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                self._statements([*body, *orelse, *final], guards)
                for handler in handlers:
                    guard = handler.type or ast.Pass()
                    self._statements(handler.body, (*guards, guard))
            case ast.With(items=items, body=body):
                self._statements(body, (*guards, *(item.context_expr for item in items)))
            case ast.Assign(targets=targets):
                self._assign(node, targets, guards)
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                self._assign(node, [target], guards)
            case ast.Delete(targets=targets):
                self._delete(node, targets, guards)
            case _:
                self._other(node, guards)

    def _delete(self, node: ast.stmt, targets: Sequence[ast.expr], guards: Guards) -> None:
        """`del TestA` takes a class out of the file, `del TestA.test_x` a test out of it."""
        names = [name for target in targets if (name := dotted(target))]
        for name in names:
            cls, _, member = name.rpartition(".")
            if cls in self.classes and is_test(member):
                shape = self.classes[cls]
                methods = {**shape.methods, member: no_test(member)}
                self.classes[cls] = replace(shape, methods=methods)
        if gone := tuple(name for name in names if name in self.classes):
            piece = piece_of(guards, node)
            made = Instantiation("del", gone, piece, one_line(node), for_devices=False)
            self.instantiations.append(made)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for name, target in imported_names(node).items():
            if name == "*":
                self.stars.append(target.removesuffix(":*"))
            elif target not in self.imports.setdefault(name, []):
                self.imports[name].append(target)

    def _function(self, node: FunctionNode, guards: Guards) -> None:
        method = method_of(node)
        if is_test(node.name):
            self.functions[node.name] = method
        self._bind(node.name, piece_of(guards, node))
        inner = (n for n in ast.walk(node) if isinstance(n, ast.ClassDef))
        for found in inner:
            shape = class_of(found, guards, f"{node.name}.<locals>.{found.name}")
            if shape.tests or shape.generators:
                self.classes[shape.name] = shape
        if calls(node, _FOR_DEVICES):
            self._instantiate(node, guards)

    def _class(self, node: ast.ClassDef, guards: Guards, outer: str = "") -> None:
        shape = class_of(node, guards, outer + node.name)
        known = self.classes.get(shape.name)
        if known is not None and guards:  # one of two forms, by a condition
            shape = joined(known, shape)
        self.classes[shape.name] = shape
        if not outer:
            self._bind(node.name, class_piece(node, guards))
        for inner in node.body:
            if isinstance(inner, ast.ClassDef):
                self._class(inner, guards, f"{shape.name}.")

    def _assign(self, node: ast.stmt, targets: Sequence[ast.expr], guards: Guards) -> None:
        names = [n for t in targets for n in bound_names(t)]
        if names:
            entries = tuple(op_entries(node))
            for name in names:
                if entries:
                    self.tables[name] = (*self.tables.get(name, ()), *entries)
                if asked := asked_class(node):
                    self.filters[name] = asked
                piece = table_piece(node, guards) if entries else piece_of(guards, node)
                self._bind(name, piece)
                self._made_class(name, node, piece)
            if instantiates(node):
                self._instantiate(node, guards)
            return
        for target in targets:
            root = root_name(target)
            if root in self.classes:
                self._member(root, target, piece_of(guards, node))
            elif root in self.bindings:
                self._bind(root, piece_of(guards, node))
            else:
                self._other(node, guards)

    def _member(self, cls: str, target: ast.expr, piece: Piece) -> None:
        """`TestA.limit = 3` is an attribute, `TestA.test_x = f` is a test."""
        if isinstance(target, ast.Attribute) and is_test(target.attr):
            shape, empty = self.classes[cls], replace(NOTHING, line=piece.line, end=piece.line)
            method = Method(target.attr, piece, empty, (), piece.line, piece.end)
            self.classes[cls] = replace(shape, methods={**shape.methods, target.attr: method})
        else:
            self.attributes.setdefault(cls, []).append(piece)

    def _made_class(self, name: str, node: ast.stmt, piece: Piece) -> None:
        """`TestB = make(TestA)` is a class with TestA's tests, `TestA = skip(TestA)` is TestA."""
        value = getattr(node, "value", None)
        if not isinstance(value, ast.Call):
            return
        given = [n for a in value.args for n in (dotted(a), *map(dotted, elements(a))) if n]
        if name in self.classes:
            self.attributes.setdefault(name, []).append(piece)
        elif "test" in name.lower() and given:
            bases = tuple(given)
            self.classes[name] = ClassShape(
                name, bases, piece, (), {}, (), piece.line, piece.end
            )  # fmt: skip

    def _other(self, node: ast.stmt, guards: Guards) -> None:
        """A call, a loop, an assertion: what it is about decides whom it concerns."""
        if is_loop(node):
            for name in sorted({n for s in ast.walk(node) for n in stored_names(s)}):
                self._bind(name, piece_of(guards, node))
        if instantiates(node):
            self._instantiate(node, guards)
            return
        piece = piece_of(guards, node)
        about = self._classes_in(node)
        computed = any(calls(node, name) for name in COMPUTED)
        stores = {
            root_name(n)
            for n in ast.walk(node)
            if isinstance(n, ast.Attribute | ast.Subscript) and isinstance(n.ctx, ast.Store)
        }
        if about and (computed or stores & set(about) or passes_class(node, about)):
            for name in about:
                self.of_class.setdefault(name, []).append(piece)
        elif computed:
            self.generators.append(piece)
        elif roots := changed_names(node) & self.bindings.keys():
            for root in sorted(roots):
                self._bind(root, piece)
        elif any(isinstance(n, ast.Call) for n in ast.walk(node)) or not is_loop(node):
            self.effects.append(piece)

    def _classes_in(self, node: ast.AST) -> tuple[str, ...]:
        """Classes of this file that a statement names, itself or through a list that it names."""
        names = set(names_in(node))
        for name in sorted(names):
            for piece in self.bindings.get(name, ()):
                if name not in self.classes:
                    names |= set(piece.names)
        return tuple(name for name in self.classes if name in names)

    def _instantiate(self, node: ast.stmt, guards: Guards) -> None:
        whole = piece_of(guards, node)
        for call in instantiating(node):
            first = next(iter(call.args), None) or keyword(call, "generic_test_class")
            name = dotted(first) if first is not None else ""
            classes = (name,) if name in self.classes else self._classes_in(node)
            if not classes and name.partition(".")[0] in self.imports:
                classes = (name,)
            local = [c for c in self.classes if c.endswith(f".<locals>.{name}")] if name else []
            function = last_part(dotted(call.func))
            self.instantiations.append(
                Instantiation(
                    function, (*classes, *local), whole, one_line(node),
                    for_devices=function == _FOR_DEVICES,
                    only_for=texts_in(keyword(call, "only_for")),
                    except_for=texts_in(keyword(call, "except_for")),
                )
            )  # fmt: skip

    def _bind(self, name: str, piece: Piece) -> None:
        self.bindings.setdefault(name, []).append(piece)
