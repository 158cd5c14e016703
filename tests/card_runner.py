"""Runs planned kernels: numpy arrays in, numpy arrays out, through the interpreter or the card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from openspyre.card.native import NO_DEBUG, DebugMode, Report, SoftwareCard
from openspyre.compiler.emit import emit
from openspyre.compiler.pipeline import plan_kernel
from openspyre.compiler.residency import place
from openspyre.ir.interpret import interpret, symbol_block
from openspyre.ir.kernel import DType, Kernel, Role, Tensor
from openspyre.ir.program import Program
from openspyre.ir.reference import STORAGE, cast, evaluate, fp8_codes, fp8_values
from openspyre.ir.text import contiguous_strides
from openspyre.numerics import IEEE, Numerics
from openspyre.spec import SPYRE_CARD_V1, CardSpec

Array = np.ndarray[Any, np.dtype[Any]]
_ALIGNMENT = 128
_WRITTEN = (Role.OUTPUT, Role.MUTATED)


@dataclass(frozen=True)
class Placed:
    """A tensor in device memory: byte address of element zero and of every element."""

    tensor: Tensor
    address: int
    elements: Array
    contiguous: bool

    def shifted(self, by: int) -> Placed:
        return replace(self, address=self.address + by, elements=self.elements + by)

    def raw(self, memory: Array) -> Array:
        """The bytes of a contiguous tensor, without a copy."""
        count = self.elements.size * self.tensor.dtype.bytes
        shape = (*self.elements.shape, self.tensor.dtype.bytes)
        return memory[self.address : self.address + count].reshape(shape)

    def encode(self, memory: Array, values: Array) -> None:
        raw = encoded(values, self.tensor.dtype)
        if self.contiguous:
            self.raw(memory)[...] = raw
            return
        size = self.tensor.dtype.bytes
        memory[self.elements[..., None] + np.arange(size)] = raw

    def decode(self, memory: Array) -> Array:
        if self.contiguous:
            return decoded(self.raw(memory), self.tensor.dtype)
        size = self.tensor.dtype.bytes
        return decoded(memory[self.elements[..., None] + np.arange(size)], self.tensor.dtype)


def encoded(values: Array, dtype: DType) -> Array:
    stored = np.ascontiguousarray(cast(np.asarray(values), dtype))
    if dtype.is_fp8:
        stored = fp8_codes(stored, dtype)
    elif dtype is DType.BF16:
        stored = (stored.view(np.uint32) >> 16).astype(np.uint16)
    return stored.reshape(np.shape(values))[..., None].view(np.uint8)


def decoded(raw: Array, dtype: DType) -> Array:
    flat = np.ascontiguousarray(raw)
    if dtype.is_fp8:
        return fp8_values(flat[..., 0], dtype)
    if dtype is DType.BF16:
        return (flat.view(np.uint16)[..., 0].astype(np.uint32) << 16).view(np.float32)
    return flat.view(STORAGE[dtype])[..., 0]


def arranged(
    kernel: Kernel, sizes: Mapping[str, int], start: int = _ALIGNMENT
) -> tuple[list[Placed], int]:
    """Every device argument in memory from `start`, at its own strides; and the end."""
    found, end = [], start
    for name in kernel.arguments:
        tensor = kernel.tensors[name]
        if tensor.role is Role.SCALAR:
            continue
        shape = [e.evaluate(sizes) for e in tensor.shape]
        strides = [s.evaluate(sizes) for s in tensor.strides]
        offsets = np.zeros(shape, np.int64)
        for dim, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
            steps = np.arange(extent) * stride
            offsets += steps.reshape([-1 if d == dim else 1 for d in range(len(shape))])
        low = int(offsets.min()) if offsets.size else 0
        high = int(offsets.max()) + 1 if offsets.size else 0
        size = tensor.dtype.bytes
        address = end - low * size
        dense = tensor.strides == contiguous_strides(tensor.shape)
        found.append(Placed(tensor, address, offsets * size + address, dense))
        end += (high - low) * size
        end += -end % _ALIGNMENT + (_ALIGNMENT if len(found) % 2 else 0)
    return found, end


def interpret_program(
    program: Program,
    kernel: Kernel,
    inputs: Mapping[str, Any],
    sizes: Mapping[str, int] = MappingProxyType({}),
    card: CardSpec = SPYRE_CARD_V1,
) -> dict[str, Array]:
    """The outputs and mutated inputs of a program, by the interpreter."""
    placed, pool = arranged(kernel, sizes)
    memory = np.full(pool + program.pool_bytes + _ALIGNMENT, 0xFF, np.uint8)
    for p in placed:
        if p.tensor.name in inputs:
            p.encode(memory, np.asarray(inputs[p.tensor.name]))
    before = memory[:pool].copy()
    slots = symbol_block(
        program, [p.address for p in placed], *_numbers(kernel, inputs, sizes), pool
    )
    interpret(program, memory, slots, card)
    written = np.zeros(pool, bool)
    for p in placed:
        if p.tensor.role in _WRITTEN:
            written[(p.elements[..., None] + np.arange(p.tensor.dtype.bytes)).ravel()] = True
    assert (memory[:pool][~written] == before[~written]).all(), "wrote outside of its outputs"
    return {p.tensor.name: p.decode(memory) for p in placed if p.tensor.role in _WRITTEN}


def run_program(
    program: Program,
    kernel: Kernel,
    inputs: Mapping[str, Any],
    sizes: Mapping[str, int] = MappingProxyType({}),
    card: CardSpec = SPYRE_CARD_V1,
    isa: str | None = None,
    debug: DebugMode = NO_DEBUG,
    numerics: Numerics = IEEE,
) -> tuple[dict[str, Array], Report]:
    """The outputs and mutated inputs of a program, by the software card, and what it cost."""
    with SoftwareCard(memory=1 << 28, threads=1, isa=isa, spec=card, debug=debug) as machine:
        _, count = arranged(kernel, sizes)
        start = machine.allocate(count)
        placed, _ = arranged(kernel, sizes, start)
        memory = np.full(count, 0xFF, np.uint8)
        for p in placed:
            if p.tensor.name in inputs:
                p.shifted(-start).encode(memory, np.asarray(inputs[p.tensor.name]))
        machine.write(start, memory.tobytes())
        loaded = machine.load_program(program)
        pool = machine.allocate(loaded.pool_bytes)
        machine.write(pool, b"\xff" * loaded.pool_bytes)
        block = machine.fill(
            loaded, [p.address for p in placed], *_numbers(kernel, inputs, sizes), pool
        )
        try:
            machine.run(loaded, machine.store(block), numerics)
            report = machine.time(loaded, block)
        finally:
            machine.unload(loaded)
        after = np.frombuffer(machine.read(start, count), np.uint8).copy()
    outputs = [p.shifted(-start) for p in placed if p.tensor.role in _WRITTEN]
    written = np.zeros(count, bool)
    for p in outputs:
        written[(p.elements[..., None] + np.arange(p.tensor.dtype.bytes)).ravel()] = True
    assert (after[~written] == memory[~written]).all(), "wrote outside of its outputs"
    return {p.tensor.name: p.decode(after) for p in outputs}, report


def _numbers(
    kernel: Kernel, inputs: Mapping[str, Any], sizes: Mapping[str, int]
) -> tuple[list[int], list[float]]:
    scalars = [float(inputs[n]) for n in kernel.arguments if kernel.tensors[n].role is Role.SCALAR]
    return [sizes[s] for s in kernel.symbols], scalars


def interpret_kernel(
    kernel: Kernel,
    inputs: Mapping[str, Any],
    sizes: Mapping[str, int] = MappingProxyType({}),
    card: CardSpec = SPYRE_CARD_V1,
) -> dict[str, Array]:
    """Places, emits and interprets a kernel whose steps and divisions are planned."""
    planned = kernel if kernel.residency else place(kernel, card)
    return interpret_program(emit(planned, card), planned, inputs, sizes, card)


def run_kernel(
    kernel: Kernel,
    inputs: Mapping[str, Any],
    sizes: Mapping[str, int] = MappingProxyType({}),
    card: CardSpec = SPYRE_CARD_V1,
    isa: str | None = None,
    numerics: Numerics = IEEE,
) -> dict[str, Array]:
    """Compiles what is not planned yet, and runs the kernel on the software card.

    A kernel with steps is taken as planned up to there.
    """
    planned = kernel if kernel.steps else plan_kernel(kernel, card)
    planned = planned if planned.residency else place(planned, card)
    program = emit(planned, card)
    return run_program(program, planned, inputs, sizes, card, isa, numerics=numerics)[0]


def random_inputs(
    kernel: Kernel, sizes: Mapping[str, int] = MappingProxyType({}), seed: int = 0
) -> dict[str, Array]:
    """Normal floats, small integers, coins; exact in the tensor's dtype."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for name in kernel.arguments:
        tensor = kernel.tensors[name]
        if tensor.role is Role.OUTPUT:
            continue
        shape = tuple(e.evaluate(sizes) for e in tensor.shape)
        if tensor.dtype.is_float:
            found[name] = cast(np.asarray(rng.standard_normal(shape), np.float32), tensor.dtype)
        elif tensor.dtype is DType.BOOL:
            found[name] = np.asarray(rng.random(shape) < 0.5)
        else:
            found[name] = cast(np.asarray(rng.integers(-5, 6, shape)), tensor.dtype)
    return found


def as_stored(
    kernel: Kernel, inputs: Mapping[str, Any], sizes: Mapping[str, int]
) -> dict[str, Any]:
    """The inputs as memory holds them: elements of an expanded tensor are one."""
    placed, end = arranged(kernel, sizes)
    memory = np.zeros(end, np.uint8)
    stored = dict(inputs)
    for p in placed:
        if p.tensor.name in inputs:
            p.encode(memory, np.asarray(inputs[p.tensor.name]))
            stored[p.tensor.name] = p.decode(memory)
    return stored


def assert_matches(
    got: Mapping[str, Array], wanted: Mapping[str, Array], kernel: Kernel, names: Sequence[str] = ()
) -> None:
    """Equal for integers, within a few units in the last place of the dtype for floats."""
    for name in names or wanted:
        dtype = kernel.tensors[name].dtype
        if not dtype.is_float:
            np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)
            continue
        tolerance = {DType.F16: 2e-3, DType.BF16: 1.6e-2, DType.F32: 2e-5}.get(dtype, 0)
        np.testing.assert_allclose(
            got[name].astype(np.float64),
            wanted[name].astype(np.float64),
            rtol=tolerance,
            atol=tolerance,
            err_msg=name,
        )


def check_interpreted(
    kernel: Kernel,
    sizes: Mapping[str, int] = MappingProxyType({}),
    card: CardSpec = SPYRE_CARD_V1,
    **given: Any,
) -> dict[str, Array]:
    """The interpreter on a planned kernel against the reference, on random inputs and `given`."""
    inputs = as_stored(kernel, {**random_inputs(kernel, sizes), **given}, sizes)
    got = interpret_kernel(kernel, inputs, sizes, card)
    assert_matches(got, evaluate(kernel, inputs, sizes), kernel)
    return got


def check_on_card(
    kernel: Kernel,
    sizes: Mapping[str, int] = MappingProxyType({}),
    card: CardSpec = SPYRE_CARD_V1,
    isa: str | None = None,
    **given: Any,
) -> dict[str, Array]:
    """The software card on a kernel, planned or not, against the reference."""
    inputs = as_stored(kernel, {**random_inputs(kernel, sizes), **given}, sizes)
    got = run_kernel(kernel, inputs, sizes, card, isa)
    assert_matches(got, evaluate(kernel, inputs, sizes), kernel)
    return got
