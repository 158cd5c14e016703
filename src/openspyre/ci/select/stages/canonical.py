"""What a piece of Python says, without how it is written: one walk gives a hash and its names."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WITH_DOCSTRING = (*_FUNCTIONS, ast.ClassDef, ast.Module)
_OMITTED = frozenset({"ctx", "kind", "type_comment"})  # u"" is "", and so on


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of source.

    Attributes:
        hash: of what it says; formatting, comments and docstrings left out.
        names: what it reads that it does not bind itself, dotted as written; a name that it
            imports itself reads `module:name`.
        called: last parts of the names of what it calls.
    """

    hash: str
    names: tuple[str, ...]
    called: tuple[str, ...]
    line: int
    end: int


def digest(parts: Iterable[str]) -> str:
    """A short hash of texts in order."""
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:16]


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a def, class or module behind its docstring."""
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest or [ast.Pass()]
    return body


def dotted(node: ast.AST) -> str:
    """`a.b.c` for an attribute chain on a name; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def is_super(node: ast.AST) -> bool:
    """`super()`, with arguments or without."""
    return isinstance(node, ast.Call) and dotted(node.func) == "super"


class Reader:
    """Walks nodes; afterwards `piece` tells what they said."""

    def __init__(self) -> None:
        self._said: list[str] = []
        self._names: set[str] = set()
        self._called: set[str] = set()
        self._bound: set[str] = set()
        self._free: set[str] = set()
        self._imports: dict[str, str] = {}
        self._line, self._end = 0, 0

    def read(self, *nodes: ast.AST | Sequence[ast.AST] | None) -> Reader:
        for node in nodes:
            self._see(node)
        return self

    def say(self, text: str) -> Reader:
        self._said.append(text)
        return self

    def bind(self, names: Iterable[str]) -> Reader:
        self._bound.update(names)
        return self

    def bound_names(self) -> frozenset[str]:
        """What the nodes bind."""
        return frozenset(self._bound - self._free)

    def piece(self, *, line: int = 0, end: int = 0, local: bool = True) -> Piece:
        """What was read.

        Args:
            local: what the nodes bind is their own; without, only what they import.
        """
        names = set()
        bound = (self._bound - self._free) if local else set()
        for name in self._names:
            root, _, rest = name.partition(".")
            if root in self._imports:
                names.add(f"{self._imports[root]}.{rest}" if rest else self._imports[root])
            elif root not in bound or root in ("self", "cls", "super"):
                names.add(name)
        return Piece(
            digest(self._said), tuple(sorted(names)), tuple(sorted(self._called)),
            line or self._line, end or self._end,
        )  # fmt: skip

    def _see(self, node: object) -> None:
        if isinstance(node, list):
            self._said.append("[")
            for item in node:
                self._see(item)
            self._said.append("]")
        elif isinstance(node, ast.AST):
            self._node(node)
        else:
            # 0 and False, 1 and 1.0 and True are equal, but do not say the same
            self._said.append(f"{type(node).__name__}{node!r}")

    def _node(self, node: ast.AST) -> None:
        line = getattr(node, "lineno", 0)
        if line:
            self._line = self._line or line
            self._end = max(self._end, getattr(node, "end_lineno", 0) or 0)
        self._said.append(type(node).__name__)
        match node:
            case ast.Name(id=name, ctx=ctx):
                (self._names if isinstance(ctx, ast.Load) else self._bound).add(name)
                self._said.append(name)
                return
            case ast.Attribute():
                if name := dotted(node):
                    self._names.add(name)
                    self._said.append(name)
                    return
                if is_super(node.value):
                    self._names.add(f"super.{node.attr}")
            case ast.Call(func=ast.Attribute(attr=last) | ast.Name(id=last)):
                self._called.add(last)
            case ast.arg(arg=name):
                self._bound.add(name)
            case ast.Global(names=listed) | ast.Nonlocal(names=listed):
                self._free.update(listed)
            case ast.Import() | ast.ImportFrom():
                self._imports.update(imported_names(node))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self._bound.add(name)
            case ast.ClassDef(name=name):
                self._bound.add(name)
        for field in node._fields:
            if field in _OMITTED:
                continue
            value = getattr(node, field, None)
            if field == "body" and isinstance(node, _WITH_DOCSTRING):
                self._see(without_docstring(node.body))
            else:
                self._see(value)


def imported_names(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """What an import binds: `module:` for a module, `module:name` for what is taken out of one."""
    if isinstance(node, ast.Import):
        return {
            alias.asname or alias.name.partition(".")[0]: (
                f"{alias.name}:" if alias.asname else f"{alias.name.partition('.')[0]}:"
            )
            for alias in node.names
        }
    module = "." * node.level + (node.module or "")
    return {alias.asname or alias.name: f"{module}:{alias.name}" for alias in node.names}
