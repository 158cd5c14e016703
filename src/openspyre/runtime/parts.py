"""Parts of a kernel as kernels of their own, compiled and run on a card. Needs no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from openspyre.card.native import NO_DEBUG
from openspyre.compiler.pipeline import compile_kernel
from openspyre.compiler.rewrite import indices
from openspyre.ir.binary import decode, encode
from openspyre.ir.index import Expr
from openspyre.ir.interpret import interpret, symbol_block
from openspyre.ir.kernel import Dim, Kernel, Load, Op, Role, Tensor, walk
from openspyre.ir.ops import Array
from openspyre.ir.text import contiguous_strides
from openspyre.numerics import Numerics
from openspyre.runtime.clock import card_timer
from openspyre.runtime.launch_values import Memory, Sizes, memory_of
from openspyre.runtime.replay import machine_with, run_interruptibly
from openspyre.spec import CardSpec

_ROOM = 1 << 20
_ZERO = np.zeros(())
_WRITTEN = (Role.OUTPUT, Role.MUTATED)


def part_of(region: Kernel, ops: Sequence[Op], shown: Collection[str]) -> Kernel:
    """Some ops of a kernel, in order, as a kernel.

    What it reads and does not write is an input. Locals become plain tensors where they are inputs
    or `shown`.
    """
    written = [op.out.tensor for op in ops]
    used = dict.fromkeys(name for op in ops for name in _touched(op))
    order = [*(n for n in region.arguments if n in used), *(n for n in used if n not in
             region.arguments)]  # fmt: skip
    earlier = _written_before(region, ops)
    tensors = {}
    for name in order:
        tensor = region.tensors[name]
        role = _role(tensor, written=name in written, shown=name in shown, before=name in earlier)
        plain = tensor.role is Role.LOCAL and role is not Role.LOCAL
        strides = contiguous_strides(tensor.shape) if plain else tensor.strides
        tensors[name] = replace(tensor, role=role, strides=strides)
    arguments = tuple(n for n in order if tensors[n].role is not Role.LOCAL)
    symbols = _symbols(region, ops, tensors.values())
    return Kernel(
        f"part of {region.name}", symbols, arguments, tensors, tuple(ops),
        limits={s: region.limits[s] for s in symbols if s in region.limits},
    )  # fmt: skip


def _touched(op: Op) -> Iterable[str]:
    for node in walk(op.body):
        if isinstance(node, Load):
            yield node.tensor
    for lookup in op.lookups:
        yield lookup.tensor
    yield op.out.tensor


def _written_before(region: Kernel, ops: Sequence[Op]) -> frozenset[str]:
    """Tensors that hold something when the first of the ops begins."""
    first = region.ops.index(ops[0])
    begun = {op.out.tensor for op in region.ops[:first]}
    own = {n for n, t in region.tensors.items() if t.role in (Role.INPUT, Role.MUTATED)}
    return frozenset(begun | own)


def _role(tensor: Tensor, *, written: bool, shown: bool, before: bool) -> Role:
    if not written:
        return tensor.role if tensor.role is Role.SCALAR else Role.INPUT
    if before:
        return Role.MUTATED
    return Role.OUTPUT if shown or tensor.role is not Role.LOCAL else Role.LOCAL


def _symbols(region: Kernel, ops: Sequence[Op], tensors: Iterable[Tensor]) -> tuple[str, ...]:
    names: set[str] = set()
    for tensor in tensors:
        for expr in (*tensor.shape, *tensor.strides):
            names |= expr.names
    for op in ops:
        names |= _names(op)
    return tuple(symbol for symbol in region.symbols if symbol in names)


def _names(op: Op) -> set[str]:
    dims: tuple[Dim, ...] = (*op.dims, *op.rdims)
    exprs: list[Expr] = [*(d.extent for d in dims), *indices(op), *(k.size for k in op.lookups)]
    return {name for expr in exprs for name in expr.names}


@dataclass(frozen=True, slots=True)
class Bench:
    """A card on which kernels are tried, and how.

    Attributes:
        timed: whether a clock chooses between plans, as it does at run time.
    """

    card: CardSpec
    numerics: Numerics
    timed: bool = False

    def compiled(self, kernel: Kernel) -> bytes:
        """The program of a kernel. Raises what `compile_kernel` does."""
        timer = card_timer(self.card) if self.timed else None
        return encode(compile_kernel(kernel, self.card, timer=timer))

    def interpreted(
        self, program: bytes, kernel: Kernel, given: Mapping[str, Array], sizes: Sizes
    ) -> dict[str, Array]:
        """The same by the interpreter of programs: slow, and it shares nothing with the card."""
        tensors = [kernel.tensors[name] for name in kernel.arguments]
        device = [t for t in tensors if t.role is not Role.SCALAR]
        memories = [memory_of(t, given.get(t.name, _ZERO), sizes) for t in device]
        stick, ends = int(self.card.stick_bytes), [0]
        for memory in memories:
            ends.append(ends[-1] + -(-max(len(memory.data), 1) // stick) * stick)
        decoded = decode(program)
        room = np.full(ends[-1] + decoded.pool_bytes + stick, 0xFF, np.uint8)
        for place, memory in zip(ends, memories, strict=False):
            room[place : place + len(memory.data)] = np.frombuffer(memory.data, np.uint8)
        addresses = [p + m.origin for p, m in zip(ends, memories, strict=False)]
        scalars = [float(given[t.name]) for t in tensors if t.role is Role.SCALAR]
        numbers = [sizes[symbol] for symbol in kernel.symbols]
        interpret(
            decoded, room, symbol_block(decoded, addresses, numbers, scalars, ends[-1]), self.card
        )
        return {
            t.name: Memory(room[p : p + len(m.data)].tobytes(), m.origin).values(t, sizes)
            for t, p, m in zip(device, ends, memories, strict=False)
            if t.role in _WRITTEN
        }

    def values(
        self, program: bytes, kernel: Kernel, given: Mapping[str, Array], sizes: Sizes
    ) -> dict[str, Array]:
        """What a program leaves in the outputs and mutated inputs of its kernel."""
        tensors = [kernel.tensors[name] for name in kernel.arguments]
        device = [t for t in tensors if t.role is not Role.SCALAR]
        memories = [memory_of(t, given.get(t.name, _ZERO), sizes) for t in device]
        room = (
            sum(len(m.data) + 512 for m in memories)
            + len(program)
            + decode(program).pool_bytes
            + _ROOM
        )
        with machine_with(room, self.card, NO_DEBUG, program) as (machine, loaded):
            stick = self.card.stick_bytes
            places = [machine.allocate(max(len(m.data), 1), stick) for m in memories]
            for place, memory in zip(places, memories, strict=True):
                machine.write(place, memory.data)
            addresses = [p + m.origin for p, m in zip(places, memories, strict=True)]
            scalars = [float(given[t.name]) for t in tensors if t.role is Role.SCALAR]
            pool = machine.allocate(max(loaded.pool_bytes, 1), stick)
            numbers = [sizes[symbol] for symbol in kernel.symbols]
            launch = loaded, addresses, numbers, scalars, pool, self.numerics
            run_interruptibly(machine, lambda: machine.launch(*launch))
            return {
                tensor.name: Memory(machine.read(place, len(m.data)), m.origin).values(
                    tensor, sizes
                )
                for tensor, place, m in zip(device, places, memories, strict=True)
                if tensor.role in _WRITTEN
            }
