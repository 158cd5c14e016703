"""Fake arguments of one eager call: what Inductor lowers it with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from openspyre.frontend.eager_call import Form, Inputs, Number, SizeSource, Source


class Sizes:
    """Fake arguments whose sizes are symbols, equal sizes being one symbol.

    Args:
        known: sizes that stay numbers.
    """

    def __init__(self, known: frozenset[int] = frozenset()) -> None:
        self.known = known | {0, 1}
        self.env = ShapeEnv(duck_shape=True)
        self.mode = FakeTensorMode(shape_env=self.env)
        self.sources: dict[str, SizeSource] = {}
        self._sizes: dict[int, Any] = {}

    def tensor(self, form: Form, number: int) -> torch.Tensor:
        """A dense fake tensor of the form's sizes."""
        sizes = [self.size(n, (0, number, dim)) for dim, n in enumerate(form.sizes)]
        with self.mode:
            return torch.empty(sizes, dtype=form.dtype, device="spyre")

    def size(self, example: int, source: SizeSource) -> Any:
        if example in self.known:
            return example
        if example not in self._sizes:
            origin = ConstantSource(f"n{len(self._sizes)}")
            symbol = self.env.create_symbol(example, origin, DimDynamic.DUCK, None)
            self._sizes[example] = self.env.create_symintnode(symbol, hint=example, source=origin)
            self.sources[str(symbol)] = source
        return self._sizes[example]

    def number(self, example: float, position: int) -> Any:
        origin = ConstantSource(f"x{position}")
        symbol = self.env.create_unspecified_symbol(example, origin, DimDynamic.DYNAMIC)
        return self.env.create_symfloatnode(symbol, hint=example, source=origin)

    def host(self, form: Form) -> torch.Tensor:
        with self.mode:
            return torch.empty((), dtype=form.dtype, device="cpu")

    def exact(self) -> tuple[str, ...]:
        """Symbols whose value lowering looked at, beyond telling two sizes apart."""
        found: set[str] = set()
        for guard in self.env.guards:
            expr = guard.expr
            if isinstance(expr, sympy.Ne) and all(isinstance(a, sympy.Symbol) for a in expr.args):
                continue
            found |= {str(symbol) for symbol in expr.free_symbols}
        return tuple(sorted(found))


def fakes_of(
    name: str, inputs: Inputs, outputs: Sequence[Form], sizes: Sizes, *, symbolic: bool
) -> tuple[list[Any], list[Source]]:
    """Fake values of the leaves of an op, and their numbers among tensors or launch scalars."""
    given = [leaf for leaf in inputs.leaves if isinstance(leaf, Form) and leaf.on_card]
    floats = any(f.dtype.is_floating_point for f in given or outputs)
    fakes: list[Any] = []
    origins: list[Source] = []
    counts = [0, 0]
    for leaf in inputs.leaves:
        on_card = isinstance(leaf, Form) and leaf.on_card
        kind = 0 if on_card else 1
        origins.append((kind, counts[kind]))
        match leaf:
            case Number() if name == "arange" and not floats:
                fakes.append(sizes.host(Form(torch.int64, False, True, (), ())))
            case Number(example):
                fakes.append(sizes.number(example, counts[1]))
            case Form(on_card=True):
                fakes.append(sizes.tensor(leaf, counts[0]))
            case Form(wrapped=True) if symbolic and (floats or leaf.dtype.is_floating_point):
                fakes.append(sizes.number(2.5, counts[1]))
            case Form():
                fakes.append(sizes.host(leaf))
        counts[kind] += 1
    return fakes, origins
