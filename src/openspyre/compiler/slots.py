"""The symbol block of a Program: a slot for whatever a launch passes or the host computes."""

from __future__ import annotations

from openspyre.ir.index import Atom, Binary, Expr, Name
from openspyre.ir.kernel import Kernel, Role
from openspyre.ir.program import Calc, Given, Slot, SlotDef, Value

_CALC = {"//": Calc.FLOORDIV, "%": Calc.MOD, "min": Calc.MIN, "max": Calc.MAX}
Formula = tuple[tuple[Calc, int], ...]


class SlotTable:
    """Collects the slots of a Program; equal ones are one."""

    def __init__(self, kernel: Kernel) -> None:
        self.definitions: list[SlotDef] = []
        self._known: dict[object, Slot] = {}
        tensors = [kernel.tensors[name] for name in kernel.arguments]
        device = [t.name for t in tensors if t.role is not Role.SCALAR]
        scalars = [t.name for t in tensors if t.role is Role.SCALAR]
        self.argument_numbers = {name: number for number, name in enumerate(device)}
        self.scalar_numbers = {name: number for number, name in enumerate(scalars)}
        self.symbol_numbers = {name: number for number, name in enumerate(kernel.symbols)}
        self.counts = (len(device), len(kernel.symbols), len(scalars))

    def scalar(self, tensor: str) -> Slot:
        """The float64 of a host scalar."""
        return self._given(Given.SCALAR, self.scalar_numbers[tensor], tensor)

    def value(self, expr: Expr) -> Value:
        """A size expression: an int if it is constant, else a slot."""
        if expr.constant is not None:
            return expr.constant
        if len(expr.terms) == 1 and expr.terms[0][1] == 1 and len(expr.terms[0][0]) == 1:
            atom = expr.terms[0][0][0]
            if isinstance(atom, Name):
                return self._size(atom.name)
        return self._define(("expr", expr), self._formula(expr), str(expr))

    def address(self, tensor: str, offset: Expr) -> Value:
        """The address of an argument plus bytes."""
        base = self._given(Given.ADDRESS, self.argument_numbers[tensor], tensor)
        return self._plus(base, offset, tensor)

    def pool(self, tensor: str, start: int, offset: Expr) -> Value:
        """The address of a tensor in the launch's pool plus bytes.

        Tensors have slots of their own, also where they take turns at one place.
        """
        pool = self._given(Given.POOL, 0, "pool")
        formula = ((Calc.SLOT, pool.index), (Calc.CONST, start), (Calc.ADD, 0))
        return self._plus(self._define(("pool", tensor), formula, tensor), offset, tensor)

    def _plus(self, base: Slot, offset: Expr, name: str) -> Value:
        if offset.constant == 0:
            return base
        formula = ((Calc.SLOT, base.index), *self._formula(offset), (Calc.ADD, 0))
        return self._define((base, offset), formula, f"{name} + {offset}")

    def _given(self, given: Given, number: int, name: str) -> Slot:
        key = (given, number)
        if key not in self._known:
            self._known[key] = Slot(len(self.definitions))
            self.definitions.append(SlotDef(given, number, (), name))
        return self._known[key]

    def _size(self, symbol: str) -> Slot:
        return self._given(Given.SIZE, self.symbol_numbers[symbol], symbol)

    def _define(self, key: object, formula: Formula, name: str) -> Slot:
        if key not in self._known:
            self._known[key] = Slot(len(self.definitions))
            self.definitions.append(SlotDef(Given.FORMULA, 0, formula, name))
        return self._known[key]

    def _formula(self, expr: Expr) -> Formula:
        """Postfix: the sum of the products of the terms."""
        steps: list[tuple[Calc, int]] = []
        for count, (monomial, coefficient) in enumerate(expr.terms):
            if coefficient != 1 or not monomial:
                steps.append((Calc.CONST, coefficient))
            for place, atom in enumerate(monomial):
                steps += self._atom(atom)
                if place or coefficient != 1:
                    steps.append((Calc.MUL, 0))
            if count:
                steps.append((Calc.ADD, 0))
        return tuple(steps) or ((Calc.CONST, 0),)

    def _atom(self, atom: Atom) -> Formula:
        match atom:
            case Name(name):
                return ((Calc.SLOT, self._size(name).index),)
            case Binary(op, left, right):
                return (*self._formula(left), *self._formula(right), (_CALC[op], 0))
