"""Integer expressions over named dims and symbols: sizes, strides, index maps.

An `Expr` is a polynomial with integer coefficients over atoms. An atom is a name (a dim, a
size symbol, a lookup) or one of `//`, `%`, `min`, `max` over two expressions. Equal expressions
compare and hash equal, whatever order they were built in, so `a + b - b == a`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Union

from openspyre.errors import InvalidKernel

Size = Union["Expr", int]
_BINARY: Mapping[str, Callable[[int, int], int]] = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
}


@dataclass(frozen=True, slots=True, order=True)
class Name:
    """An atom that stands for a value: a dim, a symbol or a lookup."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Binary:
    """An atom that is not polynomial: `left op right`, op one of `//`, `%`, `min`, `max`."""

    op: str
    left: Expr
    right: Expr

    def __str__(self) -> str:
        if self.op in ("min", "max"):
            return f"{self.op}({self.left}, {self.right})"
        return f"{_bracketed(self.left)} {self.op} {_bracketed(self.right)}"


Atom = Union[Name, Binary]
Monomial = tuple[Atom, ...]


@dataclass(frozen=True)
class Expr:
    """A polynomial: monomials (sorted atoms, repeated for powers) with nonzero coefficients."""

    terms: tuple[tuple[Monomial, int], ...]

    @staticmethod
    def of(value: Size) -> Expr:
        return value if isinstance(value, Expr) else _number(int(value))

    @staticmethod
    def var(name: str) -> Expr:
        return _variable(name)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        return Expr, (self.terms,)  # what else is remembered holds in this process only

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    @cached_property
    def constant(self) -> int | None:
        """The value, if the expression has no atoms."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and not self.terms[0][0]:
            return self.terms[0][1]
        return None

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name in the expression, those inside `//` and the like included."""
        found: set[str] = set()
        for monomial, _ in self.terms:
            for atom in monomial:
                found |= _names_of(atom)
        return frozenset(found)

    @cached_property
    def is_polynomial(self) -> bool:
        """True when no `//`, `%`, `min` or `max` occurs."""
        return all(isinstance(a, Name) for monomial, _ in self.terms for a in monomial)

    def __add__(self, other: Size) -> Expr:
        right = Expr.of(other)
        if not right.terms:
            return self
        return _collect([*self.terms, *right.terms]) if self.terms else right

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return Expr(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Size) -> Expr:
        return self + (-Expr.of(other))

    def __rsub__(self, other: Size) -> Expr:
        return Expr.of(other) - self

    def __mul__(self, other: Size) -> Expr:
        right = Expr.of(other)
        for by, factor in ((right.constant, self), (self.constant, right)):
            if by is not None:
                return factor if by == 1 else _scaled(factor, by)
        return _collect(
            (tuple(sorted(m + n, key=str)) if m and n else m + n, c * d)
            for m, c in self.terms
            for n, d in right.terms
        )

    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Expr:
        right = Expr.of(other)
        if right.constant == 1:
            return self
        if (exact := self._divided(right)) is not None:
            return exact
        return _binary("//", self, right)

    def __mod__(self, other: Size) -> Expr:
        right = Expr.of(other)
        if right.constant == 1 or self._divided(right) is not None:
            return Expr.of(0)
        return _binary("%", self, right)

    def _divided(self, other: Expr) -> Expr | None:
        """The exact quotient by a single monomial, or None."""
        if len(other.terms) != 1:
            return None
        divisor, by = other.terms[0]
        if by == 0:
            return None
        quotient = []
        for monomial, coefficient in self.terms:
            rest = list(monomial)
            for atom in divisor:
                if atom not in rest:
                    return None
                rest.remove(atom)
            if coefficient % by:
                return None
            quotient.append((tuple(rest), coefficient // by))
        return _collect(quotient)

    def substitute(self, values: Mapping[str, Size]) -> Expr:
        """The expression with names replaced; names not in `values` stay."""
        if not (self.names & values.keys()):
            return self
        terms: list[tuple[Monomial, int]] = []
        for monomial, coefficient in self.terms:
            if not any(_names_of(atom) & values.keys() for atom in monomial):
                terms.append((monomial, coefficient))
                continue
            product = Expr.of(coefficient)
            for atom in monomial:
                match atom:
                    case Name(name):
                        product = product * values.get(name, Expr((((atom,), 1),)))
                    case Binary(op, left, right):
                        product = product * combine(
                            op, left.substitute(values), right.substitute(values)
                        )
            terms += product.terms
        return _collect(terms)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The value; raises KeyError for a name without one."""
        total = 0
        for monomial, coefficient in self.terms:
            product = coefficient
            for atom in monomial:
                match atom:
                    case Name(name):
                        product *= values[name]
                    case Binary(op, left, right):
                        product *= _BINARY[op](left.evaluate(values), right.evaluate(values))
            total += product
        return total

    def coefficient(self, name: str) -> Expr:
        """What multiplies `name` in an expression that is affine in it.

        Raises:
            ValueError: `name` occurs squared or inside `//`, `%`, `min`, `max`.
        """
        if name not in self.names:
            return _number(0)
        found = []
        for monomial, coefficient in self.terms:
            hits = [a for a in monomial if name in _names_of(a)]
            if len(hits) > 1 or any(isinstance(a, Binary) for a in hits):
                raise ValueError(f"{self} is not affine in {name}")
            if hits:
                found.append((tuple([a for a in monomial if a is not hits[0]]), coefficient))
        return _collect(found)

    def affine(self, names: frozenset[str]) -> tuple[dict[str, Expr], Expr]:
        """The coefficient of each of `names` that occurs, and the terms without any of them.

        Raises:
            ValueError: one of them occurs squared or inside `//`, `%`, `min`, `max`.
        """
        found: dict[str, list[tuple[Monomial, int]]] = {}
        rest = []
        for monomial, coefficient in self.terms:
            used = names.intersection(n for atom in monomial for n in _names_of(atom))
            for name in used:
                others = tuple(a for a in monomial if a != Name(name))
                if len(others) != len(monomial) - 1 or name in Expr(((others, 1),)).names:
                    raise ValueError(f"{self} is not affine in {name}")
                found.setdefault(name, []).append((others, coefficient))
            if not used:
                rest.append((monomial, coefficient))
        return {name: _collect(terms) for name, terms in found.items()}, Expr(tuple(rest))

    def is_affine_in(self, names: frozenset[str]) -> bool:
        """True when every name of `names` occurs at most linearly and never with another."""
        for monomial, _ in self.terms:
            hits = 0
            for atom in monomial:
                match atom:
                    case Name(name):
                        hits += name in names
                    case Binary(_, left, right):
                        if (left.names | right.names) & names:
                            return False
            if hits > 1:
                return False
        return True

    def without(self, names: frozenset[str]) -> Expr:
        """The terms in which none of `names` occurs: the offset of an affine expression."""
        return Expr(tuple((m, c) for m, c in self.terms if not (Expr(((m, 1),)).names & names)))

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        text = ""
        for monomial, coefficient in self.terms:
            factors = [
                f"({a})" if isinstance(a, Binary) and a.op in "//%" else str(a) for a in monomial
            ]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            sign = (
                ("-" if coefficient < 0 else "")
                if not text
                else (" - " if coefficient < 0 else " + ")
            )
            text += sign + "*".join(factors)
        return text

    __repr__ = __str__


@lru_cache(maxsize=4096)
def _variable(name: str) -> Expr:
    return Expr((((Name(name),), 1),))


@lru_cache(maxsize=4096)
def _number(value: int) -> Expr:
    return Expr((((), value),)) if value else Expr(())


def _scaled(expr: Expr, by: int) -> Expr:
    return Expr(tuple([(m, c * by) for m, c in expr.terms])) if by else _number(0)


def _names_of(atom: Atom) -> frozenset[str]:
    match atom:
        case Name(name):
            return frozenset((name,))
        case Binary(_, left, right):
            return left.names | right.names


def _collect(terms: Iterator[tuple[Monomial, int]] | list[tuple[Monomial, int]]) -> Expr:
    total: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    kept = [(m, c) for m, c in total.items() if c]
    if len(kept) < 2:
        return Expr(tuple(kept))
    return Expr(tuple(sorted(kept, key=lambda t: (-len(t[0]), [str(a) for a in t[0]]))))


def _binary(op: str, left: Expr, right: Expr) -> Expr:
    if left.constant is not None and right.constant is not None:
        if right.constant == 0 and op in ("//", "%"):
            raise InvalidKernel(f"{left} {op} 0", why="division by zero in a size or an index")
        return Expr.of(_BINARY[op](left.constant, right.constant))
    if op in ("min", "max") and left == right:
        return left
    return Expr((((Binary(op, left, right),), 1),))


def combine(op: str, left: Size, right: Size) -> Expr:
    """`left op right` for op one of `//`, `%`, `min`, `max`."""
    a, b = Expr.of(left), Expr.of(right)
    match op:
        case "//":
            return a // b
        case "%":
            return a % b
        case _:
            return _binary(op, a, b)


def ceil_div(a: Size, b: Size) -> Expr:
    """The smallest integer not below a / b, for positive b."""
    return (Expr.of(a) + b - 1) // b


def parse(text: str) -> Expr:
    """Read what `str(expr)` prints (Python syntax over names and integers).

    Raises:
        InvalidKernel: the text is not such an expression.
    """
    try:
        return _from_ast(ast.parse(text, mode="eval").body)
    except (SyntaxError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidKernel(f"cannot read the index expression {text!r}", why=str(error)) from None


def _from_ast(node: ast.expr) -> Expr:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return Expr.of(value)
        case ast.Name(id=name):
            return Expr.var(name)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_from_ast(inner)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _from_ast(left) + _from_ast(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _from_ast(left) - _from_ast(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _from_ast(left) * _from_ast(right)
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
            return _from_ast(left) // _from_ast(right)
        case ast.BinOp(left=left, op=ast.Mod(), right=right):
            return _from_ast(left) % _from_ast(right)
        case ast.Call(func=ast.Name(id=("min" | "max") as op), args=[left, right]):
            return combine(op, _from_ast(left), _from_ast(right))
    raise ValueError(f"unexpected {type(node).__name__}")


def _bracketed(expr: Expr) -> str:
    simple = len(expr.terms) == 0 or (
        len(expr.terms) == 1
        and (
            (not expr.terms[0][0] and expr.terms[0][1] >= 0)
            or (
                expr.terms[0][1] == 1
                and len(expr.terms[0][0]) == 1
                and isinstance(expr.terms[0][0][0], Name)
            )
        )
    )
    return str(expr) if simple else f"({expr})"
