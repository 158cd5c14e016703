"""Random programs on the card and in the interpreter: every byte of memory must agree.

Floats are small whole numbers, so that sums are exact in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from openspyre.card.native import SoftwareCard
from openspyre.ir.interpret import interpret, symbol_block
from openspyre.ir.kernel import DType
from openspyre.ir.ops import CONST, LOAD, TABLE
from openspyre.ir.program import Program, VecOp
from openspyre.spec import SPYRE_CARD_V1
from tests.card.test_execute_matmul import matmul
from tests.card.test_execute_vec import vector_program
from tests.execute_programs import Array, stored

DTYPES = (DType.F16, DType.BF16, DType.F32, DType.I64, DType.I32, DType.I16, DType.I8, DType.U8)
SMALL = replace(SPYRE_CARD_V1, lx_bytes=1 << 19)  # the interpreter poisons all of it
BINARY = ("add", "sub", "mul", "min", "max", "eq", "lt", "ge")


@pytest.fixture(scope="module")
def card() -> Iterator[SoftwareCard]:
    with SoftwareCard(memory=1 << 26, threads=2) as opened:
        yield opened


def agree(card: SoftwareCard, prog: Program, arrays: list[Array]) -> None:
    """Both runs start from the same bytes; arguments lie one behind the other, unaligned."""
    offsets, end = [], 0
    for array in arrays:
        offsets.append(end)
        end += array.nbytes + 2 * array.itemsize
    memory = np.random.default_rng(0).integers(0, 255, max(end, 8)).astype(np.uint8)
    for array, offset in zip(arrays, offsets, strict=True):
        memory[offset : offset + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    base = card.store(memory.tobytes())
    loaded = card.load_program(prog)
    try:
        card.launch(loaded, [base + offset for offset in offsets])
    finally:
        card.unload(loaded)
    interpret(prog, memory, symbol_block(prog, offsets, [], [], 0), SMALL)
    got = np.frombuffer(card.read(base, len(memory)), np.uint8)
    np.testing.assert_array_equal(got, memory)


def random_ops(rng: np.random.Generator, inputs: list[DType]) -> list[VecOp]:
    ops = [VecOp(LOAD, dtype.compute, (i,)) for i, dtype in enumerate(inputs)]
    ops.append(VecOp(CONST, DType.F32, (), 2.0))
    ops.append(VecOp(CONST, DType.I32, (), -3))
    for _ in range(rng.integers(1, 8)):
        left = int(rng.integers(len(ops)))
        dtype = ops[left].dtype.compute
        same = [i for i, op in enumerate(ops) if op.dtype.compute is dtype]
        right = int(rng.choice(same))
        bools = [i for i, op in enumerate(ops) if op.dtype is DType.BOOL]
        if bools and dtype is not DType.BOOL and rng.random() < 0.3:
            args = (int(rng.choice(bools)), left, right)
            ops.append(VecOp(TABLE["where"].code, dtype, args))
        elif rng.random() < 0.25:
            target = DType(rng.choice(["f32", "i64", "i32", "i16", "b1"]))
            ops.append(VecOp(TABLE["cast"].code, target, (left,)))
        elif dtype is DType.BOOL:
            ops.append(VecOp(TABLE["xor"].code, dtype, (left, right)))
        else:
            row = TABLE[str(rng.choice(BINARY))]
            result = DType.BOOL if row.result == "b" else dtype
            ops.append(VecOp(row.code, result, (left, right)))
    return ops


@pytest.mark.parametrize("seed", range(120))
def test_vector_programs(card: SoftwareCard, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 5))
    extents = [
        int(rng.choice([0, 1, 2, 3, 5, 17, 66], p=[0.03, *[0.97 / 6] * 6])) for _ in range(rank)
    ]
    while np.prod(extents) > 6000:
        extents[int(np.argmax(extents))] //= 3

    def some_axes() -> tuple[int, ...]:
        chosen = [a for a in range(rank) if rng.random() < 0.7]
        return tuple(int(a) for a in rng.permutation(chosen))

    inputs = [DTYPES[int(rng.integers(len(DTYPES)))] for _ in range(rng.integers(1, 4))]
    has = [some_axes() for _ in inputs]
    ops = random_ops(rng, inputs)
    outputs, mixed = [], set()
    for _ in range(rng.integers(1, 4)):
        value = int(rng.integers(len(ops)))
        dtype = ops[value].dtype.compute
        kept = some_axes()
        if len(kept) < rank and rng.random() < 0.7:
            reduce = "any" if dtype is DType.BOOL else str(rng.choice(["sum", "max", "min"]))
            outputs.append((value, dtype, kept, reduce, False))
            mixed.add(frozenset(kept))
        else:
            whole = tuple(int(a) for a in rng.permutation(rank))
            narrow = [DType.F16, DType.F32] if dtype.is_float else [DType.I16, DType.I64]
            out = dtype if dtype is DType.BOOL else narrow[int(rng.integers(2))]
            outputs.append((value, out, whole, None, False))
            mixed.add(frozenset(whole))
    tiles, parts, cores = {}, {}, 1
    for axis in range(rank):
        everywhere = all(axis in kept for kept in mixed)
        nowhere = all(axis not in kept for kept in mixed)
        if (everywhere or nowhere) and rng.random() < 0.4:
            tiles[axis] = int(rng.integers(1, 9))
        if everywhere and rng.random() < 0.4:
            parts[axis] = int(rng.integers(1, 32 // cores + 1))
            cores *= parts[axis]
    prog = vector_program(
        extents, list(zip(inputs, has, strict=True)), ops, outputs, tiles=tiles, parts=parts
    )
    arrays = [
        stored(rng.integers(-4 if d is not DType.U8 else 0, 5, [extents[a] for a in h]), d)
        for d, h in zip(inputs, has, strict=True)
    ]
    arrays += [stored(np.zeros([extents[a] for a in o[2]]), o[1]) for o in outputs]
    agree(card, prog, arrays)


@pytest.mark.parametrize("seed", range(40))
def test_matmuls(card: SoftwareCard, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = tuple(int(rng.choice([0, 1, 2, 6, 7, 16, 33, 65, 70])) for _ in range(3))
    dtype = (DType.F16, DType.BF16, DType.F32)[int(rng.integers(3))]
    tiles = tuple(int(t) if rng.random() < 0.5 else 0 for t in rng.integers(1, 40, 3))
    parts = int(rng.integers(1, 6)), int(rng.integers(1, 6))
    b_is_nk = bool(rng.random() < 0.5)
    prog = matmul(sizes, dtype, DType.F32, parts=parts, tiles=tiles, b_is_nk=b_is_nk)
    a = stored(rng.integers(-4, 5, (sizes[0], sizes[2])), dtype)
    b = stored(rng.integers(-4, 5, sizes[:0:-1] if not b_is_nk else sizes[1:]), dtype)
    agree(card, prog, [a, b, np.zeros(sizes[:2], np.float32)])
