"""Stage 1, one file: Python source to its shape. Nothing of it is imported or run."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from .canonical import Piece, Reader, digest, dotted, imported_names, without_docstring
from .shape import ClassShape, Decorator, FileShape, Instantiation, Method, OpEntry, is_test

_FOR_DEVICES = "instantiate_device_type_tests"
_GENERATING = ("ops", "modules", "optims", "dtypes", "given", "reparametrize", "subtest")
_LIMITING = ("skip", "xfail", "only", "expected", "decorate", "disable", "suppress", "with")
_FILE_NAME = re.compile(rb"[\"'/]([\w.-]+\.\w{1,12})[\"']")
_COMPUTED = frozenset({"exec", "eval", "globals", "locals", "vars", "setattr", "type"})
Guards = tuple[ast.AST, ...]
_Function = ast.FunctionDef | ast.AsyncFunctionDef


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
                own = _both(own, piece)
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
                main = _is_main(test)
                self._statements([n for n in body if not main or _instantiates(n)], (*guards, test))
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
                names = tuple(n for t in targets if (n := dotted(t)) in self.classes)
                if names:
                    piece = _piece(guards, node)
                    made = Instantiation("del", names, piece, _line(node), for_devices=False)
                    self.instantiations.append(made)
            case _:
                self._other(node, guards)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for name, target in imported_names(node).items():
            if name == "*":
                self.stars.append(target.removesuffix(":*"))
            else:
                self.imports.setdefault(name, []).append(target)

    def _function(self, node: _Function, guards: Guards) -> None:
        method = method_of(node)
        if is_test(node.name):
            self.functions[node.name] = method
        self._bind(node.name, _piece(guards, node))
        inner = (n for n in ast.walk(node) if isinstance(n, ast.ClassDef))
        for found in inner:
            shape = class_of(found, guards, f"{node.name}.<locals>.{found.name}")
            if shape.tests or shape.generators:
                self.classes[shape.name] = shape
        if _calls(node, _FOR_DEVICES):
            self._instantiate(node, guards)

    def _class(self, node: ast.ClassDef, guards: Guards, outer: str = "") -> None:
        shape = class_of(node, guards, outer + node.name)
        known = self.classes.get(shape.name)
        if known is not None and guards:  # one of two forms, by a condition
            shape = _joined(known, shape)
        self.classes[shape.name] = shape
        if not outer:
            self._bind(node.name, _class_piece(node, guards))
        for inner in node.body:
            if isinstance(inner, ast.ClassDef):
                self._class(inner, guards, f"{shape.name}.")

    def _assign(self, node: ast.stmt, targets: Sequence[ast.expr], guards: Guards) -> None:
        names = [n for t in targets for n in _bound(t)]
        if names:
            entries = tuple(_op_entries(node))
            for name in names:
                if entries:
                    self.tables[name] = (*self.tables.get(name, ()), *entries)
                if asked := _asked_class(node):
                    self.filters[name] = asked
                piece = _table_piece(node, guards) if entries else _piece(guards, node)
                self._bind(name, piece)
                self._made_class(name, node, piece)
            if _instantiates(node):
                self._instantiate(node, guards)
            return
        for target in targets:
            root = _root(target)
            if root in self.classes:
                self._member(root, target, _piece(guards, node))
            elif root in self.bindings:
                self._bind(root, _piece(guards, node))
            else:
                self._other(node, guards)

    def _member(self, cls: str, target: ast.expr, piece: Piece) -> None:
        """`TestA.limit = 3` is an attribute, `TestA.test_x = f` is a test."""
        if isinstance(target, ast.Attribute) and is_test(target.attr):
            shape, empty = self.classes[cls], replace(_NOTHING, line=piece.line, end=piece.line)
            method = Method(target.attr, piece, empty, (), piece.line, piece.end)
            self.classes[cls] = replace(shape, methods={**shape.methods, target.attr: method})
        else:
            self.attributes.setdefault(cls, []).append(piece)

    def _made_class(self, name: str, node: ast.stmt, piece: Piece) -> None:
        """`TestB = make(TestA)` is a class with TestA's tests, `TestA = skip(TestA)` is TestA."""
        value = getattr(node, "value", None)
        if not isinstance(value, ast.Call):
            return
        given = [n for a in value.args for n in (dotted(a), *map(dotted, _elements(a))) if n]
        if name in self.classes:
            self.attributes.setdefault(name, []).append(piece)
        elif "test" in name.lower() and given:
            bases = tuple(given)
            self.classes[name] = ClassShape(
                name, bases, piece, (), {}, (), piece.line, piece.end
            )  # fmt: skip

    def _other(self, node: ast.stmt, guards: Guards) -> None:
        """A call, a loop, an assertion: what it is about decides whom it concerns."""
        if _is_loop(node):
            for name in sorted({n for s in ast.walk(node) for n in _stored(s)}):
                self._bind(name, _piece(guards, node))
        if _instantiates(node):
            self._instantiate(node, guards)
            return
        piece = _piece(guards, node)
        about = self._classes_in(node)
        computed = any(_calls(node, name) for name in _COMPUTED)
        stores = {_root(s) for s in ast.walk(node) if isinstance(s, ast.Attribute | ast.Subscript)
                  and isinstance(s.ctx, ast.Store)}  # fmt: skip
        if about and (computed or stores & set(about) or _class_passed(node, about)):
            for name in about:
                self.of_class.setdefault(name, []).append(piece)
        elif computed:
            self.generators.append(piece)
        elif roots := _changed_names(node) & self.bindings.keys():
            for root in sorted(roots):
                self._bind(root, piece)
        elif any(isinstance(n, ast.Call) for n in ast.walk(node)) or not _is_loop(node):
            self.effects.append(piece)

    def _classes_in(self, node: ast.AST) -> tuple[str, ...]:
        """Classes of this file that a statement names, itself or through a list that it names."""
        names = set(_names(node))
        for name in sorted(names):
            for piece in self.bindings.get(name, ()):
                if name not in self.classes:
                    names |= set(piece.names)
        return tuple(name for name in self.classes if name in names)

    def _instantiate(self, node: ast.stmt, guards: Guards) -> None:
        whole = _piece(guards, node)
        for call in _instantiating(node):
            first = next(iter(call.args), None) or _keyword(call, "generic_test_class")
            name = dotted(first) if first is not None else ""
            classes = (name,) if name in self.classes else self._classes_in(node)
            if not classes and name.partition(".")[0] in self.imports:
                classes = (name,)
            local = [c for c in self.classes if c.endswith(f".<locals>.{name}")] if name else []
            function = _last(dotted(call.func))
            self.instantiations.append(
                Instantiation(
                    function, (*classes, *local), whole, _line(node),
                    for_devices=function == _FOR_DEVICES,
                    only_for=_texts(_keyword(call, "only_for")),
                    except_for=_texts(_keyword(call, "except_for")),
                )
            )  # fmt: skip

    def _bind(self, name: str, piece: Piece) -> None:
        self.bindings.setdefault(name, []).append(piece)


def method_of(node: _Function) -> Method:
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
                    found = replace(found, body=_both(known.body, found.body))
                methods[found.name] = found
            case ast.ClassDef():
                if not any(is_test(n.name) for n in statement.body if isinstance(n, _Function)):
                    own.read(*inside, statement)
            case ast.Assign(targets=[ast.Name(id=test)]) if is_test(test):
                piece = _piece(inside, statement)
                empty = Piece("", (), (), piece.line, piece.line)
                methods[test] = Method(test, piece, empty, (), piece.line, piece.end)
            case ast.For() | ast.While() | ast.Expr(value=ast.Call()) if any(
                _calls(statement, word) for word in _COMPUTED
            ):
                generators.append(_piece(inside, statement))
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


_NOTHING = Piece("", (), (), 0, 0)


def _elements(node: ast.expr) -> list[ast.expr]:
    """`(Base,)` as an argument of `type`."""
    return node.elts if isinstance(node, ast.Tuple | ast.List) else []


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
    piece = _piece(guards)
    guard = Decorator("if", "if " + " and ".join(map(_line, guards)), piece, generates=False)
    return replace(method, decorators=(guard, *method.decorators))


def _both(one: Piece, other: Piece) -> Piece:
    return Piece(
        digest([one.hash, other.hash]), tuple(sorted({*one.names, *other.names})),
        tuple(sorted({*one.called, *other.called})), one.line, other.end,
    )  # fmt: skip


def _joined(one: ClassShape, other: ClassShape) -> ClassShape:
    """A class that is written twice under conditions."""
    methods = dict(one.methods)
    for name, method in other.methods.items():
        known = methods.get(name)
        methods[name] = replace(method, body=_both(known.body, method.body)) if known else method
    return replace(
        other, bases=tuple(dict.fromkeys((*one.bases, *other.bases))), methods=methods,
        own=_both(one.own, other.own), generators=(*one.generators, *other.generators),
    )  # fmt: skip


def _decorator(node: ast.expr) -> Decorator:
    called = node.func if isinstance(node, ast.Call) else node
    name = _last(dotted(called)) or type(called).__name__
    word = name.lower().lstrip("_")
    generates = (
        "parametri" in word
        or word.startswith("dtypes")
        or (word.endswith(_GENERATING) and not word.startswith(_LIMITING))
    )
    return Decorator(name, _line(node), Reader().read(node).piece(local=True), generates)


def _class_piece(node: ast.ClassDef, guards: Guards) -> Piece:
    """What a class is to those that name it: all of it but tests."""
    reader = Reader().read(*guards, node.bases, node.keywords, node.decorator_list)
    for statement in without_docstring(node.body):
        if not (isinstance(statement, _Function) and is_test(statement.name)):
            reader.read(statement)
    return reader.piece(line=node.lineno, end=node.end_lineno or 0)


def _piece(guards: Guards, *nodes: ast.AST) -> Piece:
    reader = Reader().read(*guards, *nodes)
    functions = all(isinstance(node, _Function) for node in nodes)
    return reader.piece(local=functions and bool(nodes))


def _table_piece(node: ast.stmt, guards: Guards) -> Piece:
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


def _op_entries(node: ast.AST) -> Iterator[OpEntry]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and (name := _op_name(call)):
            variant = _keyword(call, "variant_test_name")
            text = variant.value if isinstance(variant, ast.Constant) else ""
            yield OpEntry(name, str(text), _last(dotted(call.func)), _piece((), call))


def _op_name(node: ast.AST) -> str:
    match node:
        case ast.Call(func=func) if _last(dotted(func)).endswith("Info"):
            first = next(iter(node.args), None) or _keyword(node, "name")
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                return first.value
            if first is not None and _last(dotted(func)) in ("ModuleInfo", "OptimizerInfo"):
                return dotted(first)
    return ""


def _asked_class(node: ast.stmt) -> str:
    """`[op for op in op_db if isinstance(op, UnaryUfuncInfo)]`: UnaryUfuncInfo."""
    match getattr(node, "value", None):
        case ast.ListComp(generators=[ast.comprehension(ifs=ifs)]):
            for test in ifs:
                match test:
                    case ast.Call(func=ast.Name(id="isinstance"), args=[_, asked]):
                        return _last(dotted(asked))
    return ""


def _instantiating(node: ast.AST) -> list[ast.Call]:
    return [
        call for call in ast.walk(node)
        if isinstance(call, ast.Call) and _last(dotted(call.func)).startswith("instantiate_")
    ]  # fmt: skip


def _instantiates(node: ast.AST) -> bool:
    return bool(_instantiating(node))


def _calls(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Name | ast.Attribute)
        and _last(dotted(n.func)) == name for n in ast.walk(node)
    )  # fmt: skip


def _class_passed(node: ast.AST, classes: Sequence[str]) -> bool:
    """Whether a class is an argument of a call."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            given = [*call.args, *(k.value for k in call.keywords)]
            if any(name in classes for argument in given for name in _names(argument)):
                return True
    return False


def _changed_names(node: ast.AST) -> set[str]:
    """`skips` in `skips.update(...)` and `skips[1] = 2`, also inside a loop."""
    found = set()
    for n in ast.walk(node):
        match n:
            case ast.Expr(value=ast.Call(func=ast.Attribute() as func)):
                found.add(dotted(func).partition(".")[0])
            case ast.Subscript(ctx=ast.Store()):
                found.add(_root(n))
    return found


def _is_loop(node: ast.AST) -> bool:
    return isinstance(node, ast.For | ast.While | ast.AsyncFor)


def _is_main(test: ast.expr) -> bool:
    return any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(test))


def _is_accessor(node: _Function) -> bool:
    return any(_last(dotted(d)) in ("setter", "deleter", "overload") for d in node.decorator_list)


def _base_name(node: ast.expr) -> str:
    """The class that a base stands for: itself, or what is handed to the call that makes it."""
    if isinstance(node, ast.Call):
        return next((name for a in node.args if (name := dotted(a))), dotted(node.func))
    return dotted(node)


def _bound(target: ast.expr) -> Iterator[str]:
    match target:
        case ast.Name(id=name):
            yield name
        case ast.Tuple(elts=inner) | ast.List(elts=inner):
            for item in inner:
                yield from _bound(item)
        case ast.Starred(value=inner):
            yield from _bound(inner)


def _stored(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id


def _names(node: ast.AST) -> Iterator[str]:
    return (n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((k.value for k in call.keywords if k.arg == name), None)


def _texts(node: ast.expr | None) -> tuple[str, ...]:
    if node is None:
        return ()
    return tuple(n.value for n in ast.walk(node)
                 if isinstance(n, ast.Constant) and isinstance(n.value, str))  # fmt: skip


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _line(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:200]
