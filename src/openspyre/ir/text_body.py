"""The text of a scalar expression: the part of kernel text to the right of `<-`.

Printed text has brackets around every infix form. Where they are left out, operators bind as in
Python.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from types import MappingProxyType

from openspyre.errors import InvalidKernel
from openspyre.ir.index import Expr, parse
from openspyre.ir.kernel import Call, Const, DType, Index, Load, Scalar, Tensor
from openspyre.ir.ops import TABLE

INFIX: Mapping[str, str] = MappingProxyType({
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "remainder": "%",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
})  # fmt: skip
DTYPES: Mapping[str, DType] = MappingProxyType({d.value: d for d in DType})
_OPERATORS = MappingProxyType({sign: op for op, sign in INFIX.items()})
_COMPARISON = 0
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_BINDING: Mapping[str, int] = MappingProxyType({
    **dict.fromkeys(_COMPARISONS, _COMPARISON), "or": 1, "xor": 2, "and": 3, "shl": 4, "shr": 4,
    "add": 5, "sub": 5, "mul": 6, "div": 6, "floordiv": 6, "remainder": 6,
})  # fmt: skip
_SHARED_LENGTH = 24  # a repeated value shorter than this reads better where it is used
_TOKEN = re.compile(
    r"\s*(?:(?P<index>\[[^\]]*\])"
    r"|(?P<number>-?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?\b|inf\b|nan\b)(?!\?|\[))"
    r"|(?P<name>[A-Za-z_][\w.]*)|(?P<shared>%\d+)"
    r"|(?P<sign>//|==|!=|<=|>=|<<|>>|[-+*/%<>&|^(),?:]))"
)
Token = tuple[str, str]


def result_class(op: str, args: tuple[Scalar, ...]) -> DType:
    """The class of a call's value where the text states none."""
    row = TABLE[op]
    if row.result == "b":
        return DType.BOOL
    return args[-1].dtype.compute if args else DType.F32


# --- print ----------------------------------------------------------------------------------


def print_body(body: Scalar, tensors: Mapping[str, Tensor]) -> tuple[list[str], str]:
    """The values used more than once (`%0`, `%1`, ... in order) and the expression itself."""
    printer = _Printer(tensors)
    printer.count(printer.number(body))
    text = printer.text(body)
    return printer.lines, text


class _Printer:
    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self.lines: list[str] = []
        self.uses: dict[int, int] = {}  # by value number
        self.numbers: dict[object, int] = {}  # structure -> value number
        self.children: dict[int, tuple[int, ...]] = {}  # by value number
        self.seen: dict[int, int] = {}  # id of a node -> value number
        self.texts: dict[int, str] = {}  # by value number

    def number(self, node: Scalar) -> int:
        """The number of a node's value; equal values have one number."""
        if (known := self.seen.get(id(node))) is not None:
            return known
        key: object = node
        children: tuple[int, ...] = ()
        if isinstance(node, Call):
            children = tuple(self.number(arg) for arg in node.args)
            key = (node.op, node.dtype, children)
        elif isinstance(node, Const):
            key = (repr(node.value), node.dtype)
        number = self.numbers.setdefault(key, len(self.numbers))
        self.children[number] = children
        self.seen[id(node)] = number
        return number

    def count(self, number: int) -> None:
        """Count where the value's text would stand."""
        self.uses[number] = self.uses.get(number, 0) + 1
        if self.uses[number] == 1:
            for child in self.children[number]:
                self.count(child)

    def text(self, node: Scalar) -> str:
        number = self.seen[id(node)]
        if number not in self.texts:
            text = self.plain(node)
            if isinstance(node, Call) and self.uses[number] > 1 and len(text) > _SHARED_LENGTH:
                self.lines.append(text)
                text = f"%{len(self.lines) - 1}"
            self.texts[number] = text
        return self.texts[number]

    def plain(self, node: Scalar) -> str:
        match node:
            case Load(tensor, index, dtype, guarded):
                if tensor not in self.tensors:
                    raise InvalidKernel(f"a body loads {tensor}", why="there is no such tensor")
                text = f"{tensor}{'?' if guarded else ''}{index_text(index)}"
                return text + _class(dtype, self.tensors[tensor].dtype.compute)
            case Const(value, dtype):
                return const_text(value, dtype)
            case Index(value, dtype):
                return f"idx[{value}]" + _class(dtype, DType.I64)
            case Call("cast", (arg,), dtype):
                return f"{dtype.value}({self.argument(arg)})"
            case Call(op, args, dtype):
                if op not in TABLE or op == "cast":
                    raise InvalidKernel(f"{op} with {len(args)} arguments", why="no such op")
                if op in INFIX and len(args) == 2:
                    text = f"({self.text(args[0])} {INFIX[op]} {self.text(args[1])})"
                else:
                    text = f"{op}({', '.join(self.argument(arg) for arg in args)})"
                return text + _class(dtype, result_class(op, args))

    def argument(self, node: Scalar) -> str:
        """An argument stands in brackets already: its own would be doubled."""
        text = self.text(node)
        if isinstance(node, Call) and node.op in INFIX and text[0] == "(" and text[-1] == ")":
            return text[1:-1]
        return text


def _class(dtype: DType, inferred: DType) -> str:
    return "" if dtype is inferred else f":{dtype.value}"


def index_text(index: tuple[Expr, ...]) -> str:
    return f"[{', '.join(map(str, index))}]"


def const_text(value: float | int, dtype: DType) -> str:
    if dtype is DType.BOOL and value in (0, 1):
        return "true" if value else "false"
    if dtype is DType.I64 and isinstance(value, int):
        return str(int(value))
    if dtype is DType.F32:
        return repr(float(value))
    return f"{value!r}:{dtype.value}" if isinstance(value, float) else f"{int(value)}:{dtype.value}"


# --- parse ----------------------------------------------------------------------------------


class BodyReader:
    """Reads the expressions of one kernel; equal index texts are parsed once.

    Every method raises InvalidKernel without a line number: the caller knows it.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self.shared: dict[str, Scalar] = {}  # of the current op
        self._indices: dict[str, tuple[Expr, ...]] = {}
        self._tokens: list[Token] = []
        self._at = 0

    def read(self, text: str) -> Scalar:
        """The expression that `text` holds."""
        self._tokens = _tokens(text)
        self._at = 0
        node = self._value()
        if self._at != len(self._tokens) - 1:
            raise InvalidKernel(
                f"{self._peek()!r} does not belong there", why="the value has ended"
            )
        return node

    def index(self, text: str) -> tuple[Expr, ...]:
        """`[e, e, ...]`, brackets included."""
        if (known := self._indices.get(text)) is None:
            parts = split_commas(text[1:-1])
            known = self._indices[text] = tuple(read_expr(part) for part in parts)
        return known

    def _peek(self) -> str:
        return self._tokens[self._at][1]

    def _next(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _expect(self, sign: str) -> None:
        kind, text = self._next()
        if text != sign or kind != "sign":
            raise InvalidKernel(f"expected {sign!r} and found {text or 'the end of the line'!r}")

    def _value(self, weakest: int = 0) -> Scalar:
        """A value, with the operators behind it that bind at least as tightly as `weakest`."""
        left = self._stated(self._primary())
        while (op := self._operator(weakest)) is not None:
            self._at += 1
            args = (left, self._value(_BINDING[op] + 1))
            left = Call(op, args, result_class(op, args))
            if _BINDING[op] == _COMPARISON and self._operator(_COMPARISON) in _COMPARISONS:
                raise InvalidKernel("comparisons do not chain", hint="put one of them in brackets")
        return left

    def _operator(self, weakest: int) -> str | None:
        kind, sign = self._tokens[self._at]
        op = _OPERATORS.get(sign) if kind == "sign" else None
        return op if op is not None and _BINDING[op] >= weakest else None

    def _stated(self, node: Scalar) -> Scalar:
        if self._tokens[self._at] != ("sign", ":"):
            return node
        self._at += 1
        dtype = dtype_named(self._next()[1])
        match node:
            case Load(tensor, index, _, guarded):
                return Load(tensor, index, dtype, guarded)
            case Const(value, _):
                return Const(value, dtype)
            case Index(value, _):
                return Index(value, dtype)
            case Call(op, args, _):
                return Call(op, args, dtype)

    def _primary(self) -> Scalar:
        kind, text = self._next()
        if kind == "number":
            return _number(text)
        if kind == "shared":
            if text not in self.shared:
                raise InvalidKernel(f"{text} is not defined", hint=f"a line `{text} = ...` before")
            return self.shared[text]
        if kind == "name":
            return self._named(text)
        if text == "(":
            node = self._value()
            self._expect(")")
            return node
        raise InvalidKernel(f"expected a value and found {text or 'the end of the line'!r}")

    def _named(self, name: str) -> Scalar:
        kind, text = self._tokens[self._at]
        if kind == "index" or text == "?":
            return self._load(name)
        if text == "(":
            self._at += 1
            args = self._arguments()
            if name in DTYPES and len(args) == 1:
                return Call("cast", args, DTYPES[name])
            row = TABLE.get(name)
            if row is None or name == "cast":
                close = get_close_matches(name, (*TABLE, *DTYPES), 3)
                raise InvalidKernel(f"there is no op {name}", hint=" or ".join(close))
            if row.arity != len(args):
                raise InvalidKernel(f"{name} takes {row.arity} arguments, not {len(args)}")
            return Call(name, args, result_class(name, args))
        if name in ("true", "false"):
            return Const(int(name == "true"), DType.BOOL)
        raise InvalidKernel(
            f"expected a value and found {name!r}", hint=f"{name}[...] or {name}(...)"
        )

    def _load(self, name: str) -> Scalar:
        guarded = self._tokens[self._at] == ("sign", "?")
        self._at += guarded
        kind, text = self._next()
        if kind != "index":
            raise InvalidKernel(f"expected the index of {name} and found {text!r}")
        index = self.index(text)
        if name == "idx" and len(index) == 1:
            return Index(index[0])
        if (tensor := self.tensors.get(name)) is None:
            close = get_close_matches(name, self.tensors, 3)
            raise InvalidKernel(f"there is no tensor {name}", hint=" or ".join(close))
        return Load(name, index, tensor.dtype.compute, guarded)

    def _arguments(self) -> tuple[Scalar, ...]:
        args = [self._value()]
        while self._peek() == ",":
            self._at += 1
            args.append(self._value())
        self._expect(")")
        return tuple(args)


@lru_cache(maxsize=10_000)
def read_expr(text: str) -> Expr:
    """One index expression. Cached: they recur within and across kernels."""
    return parse(text)


def _number(text: str) -> Const:
    if text.endswith("nan"):
        return Const(math.nan, DType.F32)
    if text.lstrip("-").isdigit():
        return Const(int(text), DType.I64)
    return Const(float(text), DType.F32)


def _tokens(text: str) -> list[Token]:
    tokens: list[Token] = []
    at, end = 0, len(text)
    scan: Callable[[str, int], re.Match[str] | None] = _TOKEN.match
    while at < end:
        match = scan(text, at)
        if match is None:
            if not text[at:].strip():
                break
            raise InvalidKernel(f"cannot read {text[at : at + 20].strip()!r}")
        kind = match.lastgroup or ""
        tokens.append((kind, match[kind]))
        at = match.end()
    tokens.append(("end", ""))
    return tokens


def dtype_named(name: str) -> DType:
    """The dtype whose text is `name`."""
    if name not in DTYPES:
        raise InvalidKernel(f"{name!r} is no dtype", hint="one of " + " ".join(DTYPES))
    return DTYPES[name]


def split_commas(text: str) -> list[str]:
    """The parts of `a, min(b, c)`: commas inside brackets do not split."""
    if "(" not in text:
        return [part.strip() for part in text.split(",")] if text.strip() else []
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]
