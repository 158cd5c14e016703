"""Numerics `card` in the execute engine: what is documented of silicon appears, no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from openspyre.card.native import DebugMode
from openspyre.compiler.emit import emit
from openspyre.compiler.pipeline import plan_kernel
from openspyre.ir.kernel import DType, Kernel
from openspyre.ir.reference import cast, fp8_values
from openspyre.ir.text import parse_kernel
from openspyre.numerics import CARD, IEEE, Bf16Round, Dl16Round, Numerics, SumFormat
from openspyre.spec import SPYRE_CARD_V1
from tests.card import dl16
from tests.card.probe import isas
from tests.card_runner import as_stored, random_inputs, run_kernel, run_program
from tests.planned_kernels import ALL, given

Array = np.ndarray[Any, np.dtype[Any]]
FP32 = replace(CARD, acc_format=SumFormat.FP32, acc_chunk=0)
EXACT_8 = replace(CARD, acc_format=SumFormat.FP32, acc_chunk=8)
SEQUENTIAL = replace(CARD, acc_chunk=0)
FUSED = replace(CARD, acc_format=SumFormat.DL16_FUSED)


def kernel(text: str) -> Kernel:
    return parse_kernel("kernel k\n" + text)


def matmul(m: int, k: int, n: int, dtype: str = "f16") -> Kernel:
    return kernel(f"""
        arguments x w z
        input x: {dtype}[{m}, {k}]
        input w: {dtype}[{n}, {k}]
        output z: {dtype}[{m}, {n}]
        op a contract i0:{m} i1:{n} | r0:{k}
          z[i0, i1] <- sum: x[i0, r0] * w[i1, r0]
        """)


def fp8_matmul(m: int, k: int, n: int) -> Kernel:
    return kernel(f"""
        arguments x w z
        input x: f8e4m3[{m}, {k}]
        input w: f8e5m2[{n}, {k}]
        output z: f32[{m}, {n}]
        op a contract i0:{m} i1:{n} | r0:{k}
          z[i0, i1] <- sum: x[i0, r0] * w[i1, r0]
        """)


def elementwise(body: str, dtype: str = "f16", out: str = "") -> Kernel:
    return kernel(f"""
        arguments x z
        input x: {dtype}[1200]
        output z: {out or dtype}[1200]
        op a map i0:1200
          z[i0] <- {body}
        """)


def on_card(k: Kernel, numerics: Numerics = CARD, **inputs: Array) -> Array:
    return run_kernel(k, inputs, numerics=numerics)["z"].astype(np.float64)


def error(got: Array, exact: Array) -> float:
    return float(np.linalg.norm(got - exact) / np.linalg.norm(exact))


# --- elements -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rounding", Dl16Round)
def test_float16_becomes_dl16_where_it_enters(rounding: Dl16Round) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    numerics = replace(CARD, dl16_round=rounding)
    for start in range(0, finite.size, 1200):
        x = np.resize(finite[start : start + 1200], 1200)
        got = on_card(elementwise("x[i0]"), numerics, x=x)
        with np.errstate(over="ignore"):  # 65504 may become 65536
            wanted = dl16.rounded(x, rounding).astype(np.float16)
        assert np.array_equal(got, wanted)


@pytest.mark.parametrize(
    ("value", "rounding", "becomes"),
    [
        (-2.001953125, Dl16Round.NEAREST_UP, -2.00390625),
        (-2.001953125, Dl16Round.NEAREST_EVEN, -2.0),  # as silicon (#1771)
        (-2.001953125, Dl16Round.TRUNCATE, -2.0),
        (0.59033203125, Dl16Round.NEAREST_UP, 0.5908203125),  # as silicon (#1938)
        (0.59033203125, Dl16Round.TRUNCATE, 0.58984375),
        (0.1668701171875, Dl16Round.TRUNCATE, 0.166748046875),  # as silicon (#1938)
        (0.1668701171875, Dl16Round.NEAREST_UP, 0.1669921875),
    ],
)
def test_ties(value: float, rounding: Dl16Round, becomes: float) -> None:
    x = np.full(1200, value, np.float16)
    assert x[0] == value
    got = on_card(elementwise("x[i0]"), replace(CARD, dl16_round=rounding), x=x)
    assert np.all(got == becomes)


def test_bfloat16_is_dl16_inside_and_has_its_range_outside() -> None:
    x = np.resize(np.array([1e9, 3e10, -3e10, 1e-10, 1.0, -0.0]), 1200).astype(np.float32)
    got = on_card(elementwise("x[i0]", "bf16"), x=x)
    inside = dl16.rounded(got, Dl16Round.NEAREST_UP)
    assert list(got[1:4]) == [np.inf, -np.inf, 0]
    assert np.array_equal(got[[0, 4, 5]], inside[[0, 4, 5]])


@pytest.mark.parametrize(
    ("rounding", "becomes"), [(Bf16Round.NEAREST_EVEN, 1.0078125), (Bf16Round.TRUNCATE, 1.0)]
)
def test_dl16_to_bfloat16(rounding: Bf16Round, becomes: float) -> None:
    """1 + 3/512 is a DL16 value; bfloat16 has steps of 4/512."""
    k = kernel("""
        arguments x y z
        input x: bf16[1200]
        input y: bf16[1200]
        output z: bf16[1200]
        op a map i0:1200
          z[i0] <- bf16(x[i0] + y[i0])
        """)
    x, y = np.full(1200, 1.0, np.float32), np.full(1200, 3 / 512, np.float32)
    got = on_card(k, replace(CARD, bf16_out_round=rounding), x=x, y=y)
    assert np.all(got == becomes)


def test_a_chain_rounds_where_the_kernel_casts() -> None:
    x = np.random.default_rng(0).standard_normal(1200).astype(np.float16)
    once = on_card(elementwise("f16((x[i0] * 3.0) + 1.0)"), x=x)
    twice = on_card(elementwise("f16(f16(x[i0] * 3.0) + 1.0)"), x=x)
    held = dl16.rounded(x, Dl16Round.NEAREST_UP)
    product = held * 3.0
    for got, before in ((once, product), (twice, dl16.rounded(product, Dl16Round.NEAREST_UP))):
        wanted = dl16.rounded(before + 1.0, Dl16Round.NEAREST_UP)
        assert np.array_equal(got, wanted.astype(np.float16))
    assert not np.array_equal(once, twice)


def test_what_overflows_float16_fits_dl16_on_the_card() -> None:
    k = kernel("""
        arguments x z
        input x: f16[64]
        output z: f16[64]
        local t: f16[64]
        op a map i0:64
          t[i0] <- f16(x[i0] * 100.0)
        op b reduce i0:64 | r0:1
          z[i0] <- max: t[i0] * 0.01
        """)
    x = np.full(64, 50000, np.float16)
    got = on_card(k, x=x)
    assert np.all(np.abs(got - 50000) <= 128)


def test_a_mask_of_infinities_is_one() -> None:
    x = np.full(1200, -np.inf, np.float16)
    assert np.all(on_card(elementwise("f16(exp(x[i0]))"), x=x) == 0)
    nan = np.full(1200, np.nan, np.float16)
    assert np.all(on_card(elementwise("f16(sigmoid(x[i0]))"), x=nan) == 1)  # as silicon (#1774)


@pytest.mark.parametrize("dtype", ["f32", "i32", "i64", "b1", "u8"])
def test_other_dtypes_are_what_they_are(dtype: str) -> None:
    body = "x[i0]" if dtype == "b1" else "x[i0] + x[i0]"
    k = elementwise(body, dtype)
    inputs = random_inputs(k)
    assert np.array_equal(
        run_kernel(k, inputs, numerics=CARD)["z"], run_kernel(k, inputs, numerics=IEEE)["z"]
    )


# --- matmul -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_operands() -> tuple[Array, Array]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((16, 12800)).astype(np.float16)
    return x, (rng.standard_normal((64, 12800)) * 0.02).astype(np.float16)


@pytest.mark.parametrize(
    ("numerics", "low", "high"),
    [
        (IEEE, 0, 0.0004),
        (FP32, 0.0003, 0.0012),  # the operands' own rounding, and the result's
        (CARD, 0.007, 0.011),  # card.md 2.3: 0.86 %; silicon 1.07 %
        (FUSED, 0.006, 0.010),
        (SEQUENTIAL, 0.03, 0.06),
        (EXACT_8, 0.010, 0.025),
    ],
    ids=str,
)
def test_a_long_k(
    long_operands: tuple[Array, Array], numerics: Numerics, low: float, high: float
) -> None:
    x, w = long_operands
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    assert low <= error(on_card(matmul(16, 12800, 64), numerics, x=x, w=w), exact) <= high


@pytest.mark.parametrize("numerics", [CARD, FUSED, SEQUENTIAL, EXACT_8, FP32], ids=str)
def test_sums_of_small_integers_are_exact(numerics: Numerics) -> None:
    rng = np.random.default_rng(2)
    x = rng.integers(-1, 2, (9, 700)).astype(np.float16)
    w = rng.integers(-2, 3, (70, 700)).astype(np.float16)
    got = on_card(matmul(9, 700, 70), numerics, x=x, w=w)
    assert np.array_equal(got, x.astype(np.float64) @ w.astype(np.float64).T)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("numerics", [CARD, FUSED, SEQUENTIAL, EXACT_8, FP32], ids=str)
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (3, 200, 70), (13, 64, 64), (70, 129, 9)])
def test_matmul_is_the_sum_that_is_defined(
    dtype: str, numerics: Numerics, m: int, k: int, n: int
) -> None:
    planned = matmul(m, k, n, dtype)
    inputs = as_stored(planned, random_inputs(planned), {})
    x, w = (dl16.rounded(inputs[name], Dl16Round.NEAREST_UP) for name in ("x", "w"))
    wanted = dl16.total(x[:, None, :], w[None, :, :], numerics)
    wanted = dl16.rounded(wanted, Dl16Round.NEAREST_UP)
    got = on_card(planned, numerics, **inputs)
    step = 2.0**-8 if dtype == "bf16" else 0
    assert np.all(np.abs(got - wanted) <= np.abs(wanted) * step)


@pytest.mark.parametrize("numerics", [CARD, FUSED, SEQUENTIAL, EXACT_8, FP32], ids=str)
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (3, 200, 70), (13, 64, 64)])
def test_fp8_matmul_is_the_sum_that_is_defined(numerics: Numerics, m: int, k: int, n: int) -> None:
    planned = fp8_matmul(m, k, n)
    inputs = as_stored(planned, random_inputs(planned), {})
    x, w = (inputs[name].astype(np.float64) for name in ("x", "w"))  # exact in fp9, and in DL16
    wanted = dl16.total(x[:, None, :], w[None, :, :], numerics)
    if numerics is not FP32:
        wanted = dl16.rounded(wanted, Dl16Round.NEAREST_UP)
    np.testing.assert_allclose(on_card(planned, numerics, **inputs), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("bias", [1, 6, 8, 15])
def test_the_bias_of_fp8_scales_what_its_codes_mean(bias: int) -> None:
    """Each step of the bias halves every value of 1-4-3, products included; 1-5-2 has none."""
    numerics, scale = replace(CARD, fp8_bias=bias), 2.0 ** (7 - bias)
    codes = np.resize(fp8_values(np.arange(256, dtype=np.uint8), DType.F8E4M3), 1200)
    got = on_card(elementwise("x[i0]", "f8e4m3", "f32"), numerics, x=codes)
    finite = np.isfinite(codes)
    assert np.array_equal(got[finite], codes[finite] * scale)
    assert np.all(np.isinf(got[~finite]))
    back = on_card(elementwise("x[i0]", "f8e4m3"), numerics, x=codes)
    assert np.array_equal(back, codes, equal_nan=True)
    wide = np.resize(np.linspace(-500, 500, 1111), 1200).astype(np.float32)
    stored = on_card(elementwise("x[i0]", "f32", "f8e4m3"), numerics, x=wide)
    assert np.array_equal(stored, cast(wide / np.float32(scale), DType.F8E4M3))
    rounded = on_card(elementwise("f8e4m3(x[i0])", "f32"), numerics, x=wide)
    assert np.array_equal(rounded, stored * scale)
    other = on_card(elementwise("x[i0]", "f8e5m2", "f32"), numerics, x=wide)
    assert np.array_equal(other, cast(wide, DType.F8E5M2))
    planned = fp8_matmul(3, 64, 70)
    inputs = as_stored(planned, random_inputs(planned), {})
    assert np.array_equal(on_card(planned, numerics, **inputs), on_card(planned, **inputs) * scale)


@pytest.mark.parametrize("numerics", [IEEE, CARD], ids=str)
def test_special_fp8_operands(numerics: Numerics) -> None:
    """A NaN of fp8 is one of the product: in `card` the NaN/infinity of DL16."""
    planned = fp8_matmul(2, 3, 5)
    x, w = np.ones((2, 3), np.float32), np.ones((5, 3), np.float32)
    x[0, 1], w[2, 0] = np.nan, np.inf
    got = on_card(planned, numerics, x=x, w=w)
    assert not np.isfinite(got[0]).any()
    assert not np.isfinite(got[:, 2]).any()
    assert np.array_equal(got[1, [0, 1, 3, 4]], [3.0] * 4)


def test_float32_matmul_stays_float32() -> None:
    planned = matmul(5, 300, 70, "f32")
    inputs = random_inputs(planned)
    assert np.array_equal(on_card(planned, CARD, **inputs), on_card(planned, IEEE, **inputs))


def test_no_terms() -> None:
    assert np.all(on_card(matmul(3, 0, 5), x=np.ones((3, 0)), w=np.ones((5, 0))) == 0)


# --- reductions -----------------------------------------------------------------------------------

SHAPE = (200, 3, 130)
REDUCTIONS: dict[str, tuple[str, str, Callable[[Array], Array]]] = {
    "rows": ("i0:200 i1:3 | r0:130", "x[i0, i1, r0]", lambda x: x),
    "outer": ("i0:3 i1:130 | r0:200", "x[r0, i0, i1]", lambda x: x.transpose(1, 2, 0)),
    "middle": ("i0:200 i1:130 | r0:3", "x[i0, r0, i1]", lambda x: x.transpose(0, 2, 1)),
}


def reduction(name: str, dtype: str = "f16", body: str = "{}", reduce: str = "sum") -> Kernel:
    dims, at, _ = REDUCTIONS[name]
    kept = [d.partition(":")[2] for d in dims.split("|")[0].split()]
    return kernel(f"""
        arguments x z
        input x: {dtype}[{", ".join(map(str, SHAPE))}]
        output z: {dtype}[{", ".join(kept)}]
        op a reduce {dims}
          z[{", ".join(f"i{n}" for n in range(len(kept)))}] <- {reduce}: {body.format(at)}
        step s0: a
          axes i0:{kept[0]}
          bind a: i0=i0
        division s0: i0 parts {min(int(kept[0]), 5)} stride 1 granule 1
        """)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("numerics", [CARD, SEQUENTIAL, EXACT_8], ids=str)
def test_sums_of_float16_run_in_dl16(name: str, numerics: Numerics) -> None:
    """In chunks of 64 along the reduced axis."""
    k = reduction(name)
    inputs = random_inputs(k)
    held = dl16.rounded(inputs["x"], Dl16Round.NEAREST_UP)
    terms = REDUCTIONS[name][2](held)
    got = on_card(k, numerics, **inputs)
    assert np.array_equal(got, dl16.total(terms, None, numerics).astype(np.float16))
    assert name == "middle" or not np.array_equal(got, on_card(k, FP32, **inputs))


@pytest.mark.parametrize(("inner", "tile"), [(2000, 0), (1, 0), (40, 50)])
def test_chunks_of_an_outer_axis_go_on_across_blocks(inner: int, tile: int) -> None:
    """Rows longer than a register are computed in pieces; a trip of a loop ends a chunk."""
    loop = f"inner a: r0/{tile}" if tile else ""
    k = kernel(f"""
        arguments x z
        input x: f16[200, {inner}]
        output z: f32[{inner}]
        op a reduce i0:{inner} | r0:200
          z[i0] <- sum: x[r0, i0]
        step s0: a
          axes i0:{inner}
          bind a: i0=i0
          {loop}
        """)
    inputs = random_inputs(k)
    terms = dl16.rounded(inputs["x"], Dl16Round.NEAREST_UP).T
    wanted: Array | None = None
    for start in range(0, 200, tile or 200):
        wanted = dl16.total(terms[:, start : start + (tile or 200)], None, CARD, wanted)
    assert np.array_equal(on_card(k, **inputs), wanted)


def test_a_sum_over_everything() -> None:
    k = kernel("""
        arguments x z
        input x: f16[7, 130]
        output z: f16[]
        op a reduce | r0:7 r1:130
          z[] <- sum: x[r0, r1]
        """)
    assert on_card(k, x=np.ones((7, 130), np.float16)) == 910  # exact: DL16 has ten bits
    noisy = np.random.default_rng(0).uniform(0, 1, (7, 130)).astype(np.float16)
    exact = noisy.astype(np.float64).sum()
    assert 0 < error(on_card(k, x=noisy), exact) < 0.03


@pytest.mark.parametrize("name", REDUCTIONS)
def test_sums_of_float32_do_not(name: str) -> None:
    k = reduction(name, "f32")
    inputs = random_inputs(k)
    assert np.array_equal(on_card(k, CARD, **inputs), on_card(k, IEEE, **inputs))


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_extremes_are_exact(reduce: str) -> None:
    k = reduction("rows", reduce=reduce)
    inputs = random_inputs(k)
    held = dl16.rounded(inputs["x"], Dl16Round.NEAREST_UP)
    assert np.array_equal(on_card(k, **inputs), getattr(held, reduce)(-1))


def test_a_sum_of_float32_made_from_float16_runs_in_dl16() -> None:
    """As in softmax, where the exponentials lie in an f32 tile."""
    k = kernel("""
        arguments x z
        input x: f16[4, 1000]
        output z: f32[4]
        local t: f32[4, 1000]
        op a map i0:4 i1:1000
          t[i0, i1] <- exp(x[i0, i1])
        op b reduce i0:4 | r0:1000
          z[i0] <- sum: t[i0, r0]
        """)
    x = np.random.default_rng(5).standard_normal((4, 1000)).astype(np.float16)
    got = on_card(k, x=x)
    assert np.array_equal(got, dl16.rounded(got, Dl16Round.NEAREST_UP))
    assert not np.array_equal(on_card(k, FP32, x=x), got)


def test_a_running_sum_rounds_at_every_step() -> None:
    k = kernel("""
        arguments x z
        input x: f16[3, 500]
        output z: f16[3, 500]
        op a scan i0:3 | r0:500
          z[i0, r0] <- sum: x[i0, r0]
        """)
    x = np.random.default_rng(6).standard_normal((3, 500)).astype(np.float16)
    held, total = dl16.rounded(x, Dl16Round.NEAREST_UP), np.zeros(3)
    got = on_card(k, x=x)
    for step in range(500):
        total = dl16.rounded(total + held[:, step], Dl16Round.NEAREST_UP)
        assert np.array_equal(got[:, step], total.astype(np.float16))


def test_an_adding_store_rounds_at_every_addition() -> None:
    k = kernel("""
        arguments z ids x
        mutated z: f16[4]
        input ids: i64[300]
        input x: f16[300]
        op a scatter i0:300
          lookup t = ids[i0] size 4
          z[t] += x[i0]
        """)
    rng = np.random.default_rng(7)
    ids, x = rng.integers(0, 4, 300), rng.standard_normal(300).astype(np.float16)
    total = np.zeros(4)
    for place, value in zip(ids, dl16.rounded(x, Dl16Round.NEAREST_UP), strict=True):
        total[place] = dl16.rounded(total[place] + value, Dl16Round.NEAREST_UP)
    got = on_card(k, z=np.zeros(4, np.float16), ids=ids, x=x)
    assert np.array_equal(got, total.astype(np.float16))


# --- every program --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("numerics", [CARD, SEQUENTIAL], ids=str)
def test_programs_run_the_same_on_every_isa_and_in_debug_modes(
    name: str, numerics: Numerics
) -> None:
    planned = kernel(ALL[name])
    inputs = as_stored(planned, {**random_inputs(planned), **given(name)}, {})
    results = [run_kernel(planned, inputs, isa=isa, numerics=numerics) for isa in isas()]
    full = plan_kernel(planned, SPYRE_CARD_V1) if not planned.steps else planned
    if full.residency:
        late = run_program(
            emit(full, SPYRE_CARD_V1), full, inputs, debug=DebugMode.LATE, numerics=numerics
        )[0]
        results.append(late)
    for other in results[1:]:
        for output, values in results[0].items():
            assert np.array_equal(values, other[output], equal_nan=values.dtype.kind == "f")


@pytest.mark.parametrize("name", ALL)
def test_programs_stay_near_the_reference(name: str) -> None:
    planned = kernel(ALL[name])
    inputs = as_stored(planned, {**random_inputs(planned), **given(name)}, {})
    exact = run_kernel(planned, inputs)
    got = run_kernel(planned, inputs, numerics=CARD)
    for output, values in exact.items():
        if values.dtype.kind != "f":
            continue
        scale = np.abs(values[np.isfinite(values)]).max(initial=1)
        assert np.all(np.abs((got[output] - values)[np.isfinite(values)]) <= 0.02 * scale)
