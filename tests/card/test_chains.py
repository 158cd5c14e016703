"""Float programs whose values stay in the host's registers (csrc/card/chain.h): the bits of those
that go through the interpreter's registers step by step, as the portable instruction set does."""

from __future__ import annotations

import numpy as np
import pytest

from openspyre.card.native import SoftwareCard
from openspyre.ir.kernel import DType
from openspyre.ir.ops import CONST, TABLE
from openspyre.ir.program import VecOp
from tests.card.probe import isas
from tests.card.test_execute_vec import evaluate, load, op, vector_program
from tests.execute_programs import Array, stored, widened

F16, BF16, F32 = DType.F16, DType.BF16, DType.F32
UNARY = ("neg", "abs", "sign", "exp", "exp2", "sqrt", "rsqrt", "tanh", "sigmoid", "erf")
BINARY = ("add", "sub", "mul", "div", "max", "min")
INPUTS = [  # rows, single values per row and per lane, one value
    *((dtype, (0, 1)) for dtype in (F16, BF16, F32)),
    *((dtype, (0,)) for dtype in (F16, F32)),
    *((dtype, (1,)) for dtype in (F16, BF16, F32)),
    *((dtype, ()) for dtype in (BF16, F32)),
]
Output = tuple[DType, tuple[int, ...], str | None]
OUTPUTS: list[Output] = [(dtype, (0, 1), None) for dtype in (F16, BF16, F32)]
SUMS: list[Output] = [
    *((F32, (1,), reduce) for reduce in ("sum", "max")),
    *((F32, (0,), reduce) for reduce in ("sum", "min")),
    (F32, (), "prod"),
]


def random_ops(rng: np.random.Generator, inputs: int) -> list[VecOp]:
    """Values are needed once, twice in a row, much later or never."""
    ops = [load(i, INPUTS[i][0]) for i in range(inputs)]
    ops.append(VecOp(CONST, F32, (), 0.75))
    for _ in range(int(rng.integers(2, 14))):
        recent = max(0, len(ops) - 3)
        left, right = (
            int(rng.integers(recent if rng.random() < 0.6 else 0, len(ops))) for _ in "ab"
        )
        kind = rng.random()
        if kind < 0.1:
            target = (F16, BF16, F32)[int(rng.integers(3))]
            ops.append(VecOp(TABLE["cast"].code, target, (left,)))
        elif kind < 0.35:
            ops.append(op(str(rng.choice(UNARY)), F32, left))
        else:
            ops.append(op(str(rng.choice(BINARY)), F32, left, right))
    return ops


def bits(values: Array, dtype: DType) -> Array:
    """The bits of floats, one and the same for every NaN (kernels.h)."""
    wide = np.array(widened(values, dtype), np.float32)
    wide[np.isnan(wide)] = np.nan
    return wide.view(np.uint32)


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_have_the_same_bits_everywhere(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.choice([1, 2, 5, 65, 130]))
    lanes = int(rng.choice([64, 100, 128, 256, 257, 333, *([1024, 1500] if rows < 9 else [])]))
    given = [
        stored(
            np.array(rng.standard_normal([(rows, lanes)[a] for a in has]) * 2, np.float32), dtype
        )
        for dtype, has in INPUTS
    ]
    ops = random_ops(rng, len(INPUTS))
    chosen = [OUTPUTS[int(rng.integers(len(OUTPUTS)))] for _ in range(int(rng.integers(1, 4)))]
    if rng.random() < 0.5:
        chosen.append(SUMS[int(rng.integers(len(SUMS)))])
    late = [len(ops) - 1, *(int(v) for v in rng.integers(len(INPUTS), len(ops), len(chosen) - 1))]
    outputs = [
        (v, dtype, has, reduce, False) for v, (dtype, has, reduce) in zip(late, chosen, strict=True)
    ]
    one_loop = all(0 in has for _, has, _ in chosen)
    tiles = {0: 3} if rows > 3 and one_loop else {}
    prog = vector_program((rows, lanes), INPUTS, ops, outputs, tiles=tiles)
    out = [
        stored(np.zeros([(rows, lanes)[a] for a in has], np.float32), dtype)
        for dtype, has, _ in chosen
    ]
    found = {}
    for isa in isas():
        with SoftwareCard(memory=1 << 26, threads=2, isa=isa) as card:
            got = evaluate(card, prog, given, out)
        found[isa] = [bits(x, dtype) for x, (dtype, _, _) in zip(got, chosen, strict=True)]
    for isa, got in found.items():
        for ours, wanted in zip(got, found["portable"], strict=True):
            np.testing.assert_array_equal(ours, wanted, isa)
